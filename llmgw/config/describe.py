"""A Config as plain values for people and programs, written as in the file; a secret is ``***``."""

from collections.abc import Mapping
from typing import Any

import attrs

from llmgw.config.load import Config
from llmgw.config.read import MODELS, SECTIONS
from llmgw.config.units import text_of_bytes, text_of_seconds
from llmgw.core.engine_spec import Want
from llmgw.core.fleet import Endpoint, Fallback, Model
from llmgw.core.settings import Unit
from llmgw.store.place import without_password


def describe(config: Config) -> dict[str, Any]:
    """Every section with every setting, and the models; fit for JSON."""
    described: dict[str, Any] = {}
    for section, classes in SECTIONS.items():
        described[section] = {}
        for name in classes:
            described[section] |= _settings(getattr(config, name))
    described["store"]["url"] = without_password(config.store.url.reveal()) if config.store.url else ""
    wants = {want.model: want for want in config.wants}
    described[MODELS] = [_model(model) | _want(wants.get(model.name)) for model in config.fleet.models.values()]
    return described


def _settings(values: Any) -> dict[str, Any]:
    return {f.name: _shown(getattr(values, f.name), f.metadata["unit"]) for f in attrs.fields(type(values))}


def _shown(value: Any, unit: Unit) -> Any:
    match unit:
        case Unit.SECONDS:
            return text_of_seconds(value)
        case Unit.BYTES:
            return text_of_bytes(value)
        case Unit.SECRET:
            return "***" if value else ""
        case Unit.LIST:
            return list(value)
        case Unit.TABLE:
            return dict(value) if isinstance(value, Mapping) else value
        case _:
            return value


def _model(model: Model) -> dict[str, Any]:
    return {
        "name": model.name,
        "aliases": list(model.aliases),
        "context_max": model.context_max,
        "ceilings": dict(model.bands.ceilings),
        "floors": dict(model.bands.floors),
        "ttl": {band: text_of_seconds(ttl) for band, ttl in model.bands.ttl.items()},
        "fallback": [_fallback(fallback) for fallback in model.fallback],
        "endpoints": [_endpoint(endpoint) for endpoint in model.endpoints],
    }


def _want(want: Want | None) -> dict[str, Any]:
    if want is None:
        return {}
    engine = attrs.asdict(want.spec, value_serializer=_plain) | {"revision": want.spec.revision}
    placement = attrs.asdict(want.rules, value_serializer=_plain)
    return {"replicas": {"min": want.least, "max": want.most}, "engine": engine, "placement": placement}


def _plain(_: object, __: object, value: Any) -> Any:
    return sorted(value) if isinstance(value, frozenset) else list(value) if isinstance(value, tuple) else value


def _fallback(fallback: Fallback) -> dict[str, Any]:
    return {"model": fallback.model, "on": sorted(fallback.on)}


def _endpoint(endpoint: Endpoint) -> dict[str, Any]:
    return {
        "id": endpoint.id,
        "url": endpoint.url,
        "engine": str(endpoint.engine),
        "api_key": "***" if endpoint.api_key else "",
        "ca": endpoint.ca or "",
        "served_as": endpoint.served_as,
        "capacity": endpoint.capacity,
        "adapters": sorted(endpoint.adapters),
        "inject_usage": endpoint.inject_usage,
    }
