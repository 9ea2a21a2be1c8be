"""``[[models]]`` as values: each model, its endpoints and its fallbacks, with the place each was written."""

import re
import ssl
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
from attrs import frozen

from llmgw.config.problems import Problems, Refused
from llmgw.config.read import MODELS, read_table
from llmgw.config.settings import EndpointSettings, ModelSettings
from llmgw.config.units import shown
from llmgw.config.urls import host_port, url_of
from llmgw.config.wants import KEYS, read_want
from llmgw.control.nearest import meant
from llmgw.core.bands import PoolBands
from llmgw.core.engine_spec import Want
from llmgw.core.fleet import Endpoint, Engine, Fallback, FallbackOn, Model

_NAME = re.compile(r"[A-Za-z0-9._:/-]{1,128}", re.ASCII)
_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}", re.ASCII)
_MODEL = {field.name: field for field in attrs.fields(ModelSettings)}
_ENDPOINT = {field.name: field for field in attrs.fields(EndpointSettings)}


@frozen
class Written:
    """A model and where it stands in the file, as ``models[2]``; its endpoints' places by their order."""

    where: str
    model: Model
    endpoint_places: tuple[str, ...]
    fallback_places: tuple[str, ...]
    want: Want | None = None


def read_models(tree: Mapping[str, Any], environ: Mapping[str, str], problems: Problems) -> tuple[Written, ...]:
    read = (_model(table, where, environ, problems) for where, table in _tables(tree, "", MODELS, problems))
    return tuple(written for written in read if written is not None)


def _model(table: Mapping[str, Any], where: str, environ: Mapping[str, str], problems: Problems) -> Written | None:
    values = read_table(table, _MODEL, where, environ, problems, besides=("fallback", "endpoints", *KEYS))
    name = ""
    with problems.at(f"{where}.name"):
        name = named(values.get("name", "")) if "name" in values or "name" not in table else ""
    for index, alias in enumerate(values.get("aliases", ())):
        with problems.at(f"{where}.aliases[{index}]"):
            named(alias)
    endpoints = list(_endpoints(table, where, name, environ, problems))
    fallbacks = list(_fallbacks(table.get("fallback", []), f"{where}.fallback", problems))
    want = read_want(table, where, name, environ, problems)
    if not name:
        return None
    model = Model(
        name,
        values.get("aliases", ()),
        tuple(fallback for _, fallback in fallbacks),
        tuple(endpoint for _, endpoint in endpoints),
        values.get("context_max"),
        PoolBands(values.get("ceilings", {}), values.get("floors", {}), values.get("ttl", {})),
        want.spec.adapters if want else frozenset(),
        run_by_agents=want is not None,
    )
    places = tuple(place for place, _ in endpoints), tuple(place for place, _ in fallbacks)
    return Written(where, model, *places, want)


def _endpoints(
    model: Mapping[str, Any], where: str, name: str, environ: Mapping[str, str], problems: Problems
) -> Iterator[tuple[str, Endpoint]]:
    for place, table in _tables(model, f"{where}.", "endpoints", problems):
        values = read_table(table, _ENDPOINT, place, environ, problems)
        with problems.at(f"{place}.url"):
            values["url"] = url_of(values.pop("url", ""))
        with problems.at(f"{place}.id"):
            values["id"] = _identity(values)
        with problems.at(f"{place}.ca"):
            _check_bundle(values.get("ca", ""))
        for index, adapter in enumerate(values.get("adapters", ())):
            with problems.at(f"{place}.adapters[{index}]"):
                named(adapter)
        yield place, _endpoint(values, name)


def _endpoint(values: Mapping[str, Any], name: str) -> Endpoint:
    return Endpoint(
        values.get("id", ""),
        name,
        values.get("url", ""),
        engine=Engine(values.get("engine", Engine.VLLM)),
        api_key=values.get("api_key"),
        ca=values.get("ca") or None,
        served_as=values.get("served_as", ""),
        capacity=values.get("capacity"),
        max_in_flight=values.get("max_in_flight"),
        adapters=frozenset(values.get("adapters", ())),
        inject_usage=values.get("inject_usage", True),
    )


def _fallbacks(raw: object, where: str, problems: Problems) -> Iterator[tuple[str, Fallback]]:
    if not isinstance(raw, list):
        problems.add(where, "it is no list", 'write it like ["other"] or [{model = "other", on = ["429"]}]')
        return
    for index, item in enumerate(raw):
        with problems.at(f"{where}[{index}]"):
            yield f"{where}[{index}]", _fallback(item)


def _fallback(item: object) -> Fallback:
    if isinstance(item, str):
        return Fallback(item)
    if not isinstance(item, dict) or not isinstance(item.get("model"), str):
        raise Refused(f"{shown(item)} names no model", 'write "other" or {model = "other", on = ["429"]}')
    for key in item.keys() - {"model", "on"}:
        raise Refused(f"a fallback has no {key!r}", meant(key, ["model", "on"]))
    if "on" not in item:
        return Fallback(item["model"])
    return Fallback(item["model"], _reasons(item["on"]))


def _reasons(raw: object) -> frozenset[FallbackOn]:
    known = ", ".join(FallbackOn)
    if not isinstance(raw, list) or not raw:
        raise Refused(f"on = {shown(raw)} is no list of reasons", f"write some of {known}")
    for reason in raw:
        if reason not in tuple(FallbackOn):
            raise Refused(f"{shown(reason)} is no reason to fall back", f"write some of {known}")
    return frozenset(map(FallbackOn, raw))


def named(name: str) -> str:
    """A name that clients may ask for; raises Refused."""
    if not name:
        raise Refused("a name is missing", "write one")
    if not _NAME.fullmatch(name) or ".." in name:
        raise Refused(
            f"{shown(name)} is no name for a model", "use up to 128 of A-Z a-z 0-9 . _ : / - and no two dots in a row"
        )
    return name


def _identity(values: Mapping[str, Any]) -> str:
    identity: str = values.get("id") or (host_port(values["url"]) if values.get("url") else "")
    if identity and not _ID.fullmatch(identity):
        raise Refused(f"{shown(identity)} is no name for an endpoint", "set id, up to 64 of A-Z a-z 0-9 . _ : -")
    return identity


def _check_bundle(path: str) -> None:
    try:
        if path:
            ssl.create_default_context(cafile=path)
    except OSError as error:  # SSLError is one
        raise Refused(f"{path} is no PEM bundle ({error.strerror or error})", "name an existing file") from None


def _tables(
    tree: Mapping[str, Any], before: str, key: str, problems: Problems
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    raw = tree.get(key, [])
    if not isinstance(raw, list) or not all(isinstance(item, dict) for item in raw):
        problems.add(f"{before}{key}", "it is no list of tables", f"write [[{MODELS}]] or [[{MODELS}.endpoints]]")
        return
    yield from ((f"{before}{key}[{index}]", item) for index, item in enumerate(raw))
