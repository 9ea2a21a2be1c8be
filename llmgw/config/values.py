"""What one setting's value is, from TOML or from an environment variable, by what the setting says of itself."""

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from llmgw.config.addresses import split_address
from llmgw.config.problems import Refused
from llmgw.config.secrets import secret_of
from llmgw.config.units import WHOLE_MAX, bytes_of, seconds_of, shown, text_of_bytes, text_of_seconds
from llmgw.core.settings import Unit

FLAGS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
SCALARS_ONLY = "set it in the file: environment variables hold scalars only"


def value_of(raw: object, setting: "attrs.Attribute[Any]", environ: Mapping[str, str]) -> Any:
    """A value out of TOML; raises Refused."""
    unit: Unit = setting.metadata["unit"]
    value = _read(unit, raw, setting.metadata["of"], environ)
    choices = setting.metadata["choices"]
    if choices and value not in choices:
        raise Refused(f"{shown(value)} is not known here", f"write one of {', '.join(choices)}")
    _check_bounds(value, unit, setting.metadata["at_least"], setting.metadata["at_most"])
    return value


def value_of_variable(text: str, setting: "attrs.Attribute[Any]", environ: Mapping[str, str]) -> Any:
    """A value out of an environment variable; raises Refused."""
    unit: Unit = setting.metadata["unit"]
    if unit in (Unit.LIST, Unit.TABLE):
        raise Refused(f"a {unit.value} can't be set here", SCALARS_ONLY)
    return value_of(_from_text(unit, text.strip()), setting, environ)


def written(value: Any, unit: Unit, of: Unit | None = None) -> str:
    """A value as TOML writes it, for the example file and for messages; a secret is ``***``."""
    match unit:
        case Unit.SECONDS:
            return f'"{text_of_seconds(value)}"'
        case Unit.BYTES:
            text = text_of_bytes(value)
            return text if text.isdigit() else f'"{text}"'
        case Unit.SECRET:
            return '"***"' if value else '""'
        case Unit.FLAG:
            return "true" if value else "false"
        case Unit.LIST:
            return "[" + ", ".join(quoted(item) for item in value) + "]"
        case Unit.TABLE:
            items = (f"{key} = {written(item, of or Unit.TEXT)}" for key, item in value.items())
            return "{" + ", ".join(items) + "}"
        case _:
            return _plain(value)


def quoted(text: str) -> str:
    """Text as a TOML basic string."""
    escapes = {'"': '\\"', "\\": "\\\\"}
    return '"' + "".join(escapes.get(c) or (c if c.isprintable() else f"\\U{ord(c):08x}") for c in text) + '"'


def _plain(value: Any) -> str:
    return quoted(value) if isinstance(value, str) else repr(value)


def _read(unit: Unit, raw: object, of: Unit | None, environ: Mapping[str, str]) -> Any:
    if unit is Unit.SECRET:
        return secret_of(raw, environ)
    if unit is Unit.TABLE:
        return _table(raw, of or Unit.TEXT, environ)
    return _READERS[unit](raw)


def _check_bounds(value: Any, unit: Unit, at_least: float | None, at_most: float | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    least = 0 if at_least is None else at_least
    if value < least:
        raise Refused(f"{written(value, unit)} is too little", f"write {written(type(value)(least), unit)} or more")
    if at_most is not None and value > at_most:
        raise Refused(f"{written(value, unit)} is too much", f"write {written(type(value)(at_most), unit)} or less")


def _from_text(unit: Unit, text: str) -> object:
    """The TOML value that a variable's text stands for; what is no such value is left for the reader to refuse."""
    if unit is Unit.FLAG:
        return FLAGS.get(text.lower(), text)
    try:
        if unit is Unit.COUNT:
            return int(text)
        if unit is Unit.RATIO:
            return float(text)
    except ValueError:
        return text
    return text


def _count(raw: object) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int):
        raise Refused(f"{shown(raw)} is no whole number", "write it like 100")
    if abs(raw) > WHOLE_MAX:
        raise Refused(f"{shown(raw)} is far too much", "write it like 100")
    return raw


def _ratio(raw: object) -> float:
    # Compared before it becomes a float: TOML's whole numbers have no end.
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not abs(raw) <= WHOLE_MAX:
        raise Refused(f"{shown(raw)} is no number", "write it like 0.5")
    return float(raw)


def _flag(raw: object) -> bool:
    if not isinstance(raw, bool):
        raise Refused(f"{shown(raw)} is neither true nor false", "write true or false, without quotes")
    return raw


def _text(raw: object) -> str:
    if not isinstance(raw, str):
        raise Refused(f"{shown(raw)} is no text", "put it in quotes")
    if not raw.isprintable():
        raise Refused("the text has characters that can't be shown", "write it on one line")
    return raw


def _address(raw: object) -> str:
    split_address(_text(raw))
    return _text(raw)


def _texts(raw: object) -> tuple[str, ...]:
    if not isinstance(raw, list):
        raise Refused(f"{shown(raw)} is no list", 'write it like ["a", "b"]')
    return tuple(_text(item) for item in raw)


def _table(raw: object, of: Unit, environ: Mapping[str, str]) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise Refused(f"{shown(raw)} is no table", "write it like {name = value}")
    return {str(key): _item(str(key), of, value, environ) for key, value in raw.items()}


def _item(key: str, of: Unit, raw: object, environ: Mapping[str, str]) -> Any:
    """One value of a table; what is wrong is said with its name."""
    try:
        value = _read(of, raw, None, environ)
        _check_bounds(value, of, None, None)
    except Refused as refused:
        raise Refused(f"{key}: {refused.what}", refused.what_to_do) from None
    return value


_READERS: Mapping[Unit, Callable[[object], Any]] = {
    Unit.SECONDS: seconds_of,
    Unit.BYTES: bytes_of,
    Unit.COUNT: _count,
    Unit.RATIO: _ratio,
    Unit.TEXT: _text,
    Unit.FLAG: _flag,
    Unit.ADDRESS: _address,
    Unit.PATH: _text,
    Unit.LIST: _texts,
}
