"""How a duration and a size are written: ``"250ms"``, ``"5min"``, ``"64KiB"``; a bare number is seconds or bytes."""

import math
import re
from collections.abc import Mapping

from llmgw.config.problems import Refused

DURATIONS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
SIZES = {
    "B": 1,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}

# Beyond these the kernel, a timer or the store would refuse; a limit nobody reaches is written smaller.
SECONDS_MAX = 3650 * 86400.0
WHOLE_MAX = 2**63 - 1

_NUMBER_UNIT = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s?([A-Za-z]*)", re.ASCII)


LIKE_DURATION = 'write it like "250ms", "30s", "5min", "1h" or "2d"'
LIKE_SIZE = 'write it like "512", "64KiB", "64MB" or "1GiB"'


def seconds_of(value: object) -> float:
    """A duration in seconds; raises Refused."""
    if isinstance(value, str):
        number, scale = _split(value, DURATIONS, "s", "duration", LIKE_DURATION)
        # Through a division where that is exact: 250ms is 0.25, not 250 * 0.001.
        seconds = float(number) / 1000 if scale == DURATIONS["ms"] else float(number) * scale
    else:
        seconds = float(_number(value, "duration", LIKE_DURATION))
    if seconds > SECONDS_MAX:
        raise Refused(f"{shown(value)} is too long", f'write "{text_of_seconds(SECONDS_MAX)}" or less')
    return seconds


def bytes_of(value: object) -> int:
    """A size in bytes; raises Refused."""
    if isinstance(value, str):
        number, scale = _split(value, SIZES, "B", "size", LIKE_SIZE)
        amount = float(number) * scale if "." in number else int(number) * int(scale)
    else:
        amount = _number(value, "size", LIKE_SIZE)
    if amount != int(amount):
        raise Refused(f"{value!r} is no whole number of bytes", LIKE_SIZE)
    if amount > WHOLE_MAX:
        raise Refused(f"{shown(value)} is too large", LIKE_SIZE)
    return int(amount)


def text_of_seconds(value: float) -> str:
    """The shortest way to write a duration: 300.0 is ``5min``."""
    for unit in ("d", "h", "min", "s"):
        amount = value / DURATIONS[unit]
        if amount >= 1 and amount.is_integer():
            return f"{int(amount)}{unit}"
    if value == 0:
        return "0s"
    millis = value * 1000
    if abs(millis - round(millis)) < 1e-6:
        return f"{round(millis)}ms"
    return f"{value:.9f}".rstrip("0").rstrip(".") + "s"


def text_of_bytes(value: int) -> str:
    """The shortest way to write a size: 65536 is ``64KiB``."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if value and value % SIZES[unit] == 0:
            return f"{value // SIZES[unit]}{unit}"
    return str(value)


def _split(text: str, units: Mapping[str, float], bare: str, kind: str, like: str) -> tuple[str, float]:
    match = _NUMBER_UNIT.fullmatch(text.strip())
    if match is None:
        raise Refused(f"{shown(text)} is no {kind}", like)
    unit = match[2] or bare
    if unit not in units:
        raise Refused(f"{unit!r} is no unit of a {kind}", f"write one of {', '.join(units)}")
    return match[1], units[unit]


def _number(value: object, kind: str, like: str) -> float | int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Refused(f"{shown(value)} is no {kind}", like)
    # Compared, not turned into a float: TOML's whole numbers have no end.
    if not 0 <= value < math.inf:
        raise Refused(f"{shown(value)} is no {kind}", like)
    if value > WHOLE_MAX:
        raise Refused(f"{shown(value)} is too large for a {kind}", like)
    return value


def shown(value: object) -> str:
    """A value as a message shows it: short, on one line."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no number of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= 60 else text[:57] + "…"
