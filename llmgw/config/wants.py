"""``replicas``, ``[models.engine]`` and ``[models.placement]`` as values: what agents shall run of a model."""

from collections.abc import Mapping
from typing import Any

import attrs

from llmgw.config.problems import Problems, Refused
from llmgw.config.read import read_table
from llmgw.config.settings import EngineSettings, PlacementSettings
from llmgw.config.units import shown
from llmgw.config.wanted_words import check_words
from llmgw.core.engine_spec import MIB, EngineSpec, OnFull, PlacementRules, Strategy, Want
from llmgw.core.joining import may_be_named

KEYS = ("replicas", "engine", "placement")
REPLICAS_MAX = 1000
_ENGINE = {field.name: field for field in attrs.fields(EngineSettings)}
_PLACEMENT = {field.name: field for field in attrs.fields(PlacementSettings)}
_WAY_OUT = "write a number like 2, or {min = 1, max = 4}"


def read_want(
    model: Mapping[str, Any], where: str, name: str, environ: Mapping[str, str], problems: Problems
) -> Want | None:
    """None: nothing of this model runs under agents."""
    if "engine" not in model:
        for key in ("replicas", "placement"):
            if key in model:
                problems.add(f"{where}.{key}", "there is no engine that it is about", "add a [models.engine]")
        return None
    engine = _table(model, "engine", where, _ENGINE, environ, problems)
    placement = _table(model, "placement", where, _PLACEMENT, environ, problems)
    least, most = 1, 1
    with problems.at(f"{where}.replicas"):
        least, most = _replicas(model.get("replicas", 1))
    spec = _spec(engine)
    if isinstance(model.get("engine"), dict):
        _check(spec, where, problems)
        check_words(spec, f"{where}.engine", problems)
    rules = _rules(placement)
    _check_rules(rules, name, f"{where}.placement", problems)
    return Want(name, spec, rules, least, most)


def _table(
    model: Mapping[str, Any],
    key: str,
    where: str,
    known: Mapping[str, "attrs.Attribute[Any]"],
    environ: Mapping[str, str],
    problems: Problems,
) -> dict[str, Any]:
    table = model.get(key, {})
    if not isinstance(table, dict):
        problems.add(f"{where}.{key}", "it is no table", f"write [models.{key}] on a line by itself")
        return {}
    return read_table(table, known, f"{where}.{key}", environ, problems)


def _replicas(raw: object) -> tuple[int, int]:
    if isinstance(raw, dict):
        for key in raw.keys() - {"min", "max"}:
            raise Refused(f"replicas has no {key!r}", _WAY_OUT)
        least = _count(raw.get("min", 0))
        most = _count(raw.get("max", least))
        if least > most:
            raise Refused(f"min {least} is above max {most}", _WAY_OUT)
        return least, most
    count = _count(raw)
    return count, count


def _count(raw: object) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int) or not 0 <= raw <= REPLICAS_MAX:
        raise Refused(f"{shown(raw)} is no number of replicas from 0 to {REPLICAS_MAX}", _WAY_OUT)
    return raw


def _spec(values: Mapping[str, Any]) -> EngineSpec:
    said = {key: value for key, value in values.items() if key in _SAME}
    return EngineSpec(
        values.get("preset", "vllm"),
        adapters=frozenset(values.get("adapters", ())),
        gpu_memory_mib=values.get("gpu_memory", 0) // MIB,
        memory_mib=values.get("memory", 0) // MIB,
        fetch_within_s=values.get("fetch_within", 3600.0),
        start_within_s=values.get("start_within") or 0.0,
        stop_grace_s=values.get("stop_grace") or 0.0,
        **said,
    )


_SAME = frozenset(attrs.fields_dict(EngineSpec)) & frozenset(_ENGINE) - {"preset", "adapters"}


def _rules(values: Mapping[str, Any]) -> PlacementRules:
    return PlacementRules(
        values.get("selector", {}),
        values.get("nodes", ()),
        Strategy(values.get("strategy", Strategy.SPREAD)),
        values.get("apart_from", ()),
        values.get("one_per_node", False),
        OnFull(values.get("on_full", OnFull.WAIT)),
    )


def _check(spec: EngineSpec, where: str, problems: Problems) -> None:
    at = f"{where}.engine"
    if spec.preset == "program" and not spec.executable:
        problems.add(f"{at}.executable", "a program needs one", 'write executable = ["/path/of/it"]')
    if spec.preset == "llamacpp" and not spec.model:
        problems.add(f"{at}.model", "llama.cpp loads a file", 'write model = "/models/name.gguf"')
    if spec.gpu_memory_mib and not spec.gpus:
        problems.add(f"{at}.gpu_memory", "it asks for no GPU", "write gpus = 1, or use memory for the host's")
    if not spec.exclusive and not spec.gpu_memory_mib:
        problems.add(f"{at}.exclusive", "a whole card can't be shared", "write gpu_memory, or take exclusive out")
    if spec.fetch and not spec.model.startswith("/"):
        problems.add(f"{at}.fetch", "nobody knows where its files belong", "write model as an absolute path")


def _check_rules(rules: PlacementRules, model: str, at: str, problems: Problems) -> None:
    for index, node in enumerate(rules.nodes):
        if not may_be_named(node):
            what = f"{shown(node)} is no name of a node"
            problems.add(f"{at}.nodes[{index}]", what, "write it as `llmgw ctl nodes` does, like node-1")
    for index, other in enumerate(rules.apart_from):
        if model and other == model:
            way_out = "write one_per_node = true to keep its replicas apart"
            problems.add(f"{at}.apart_from[{index}]", f"{shown(other)} is this model itself", way_out)
