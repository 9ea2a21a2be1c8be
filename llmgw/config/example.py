"""The example file, written from what the settings say of themselves; a test compares it with the real one."""

from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any

import attrs

from llmgw.config.read import SECTIONS, default_of, settings_of
from llmgw.config.settings import EndpointSettings, EngineSettings, ModelSettings, PlacementSettings
from llmgw.config.values import written
from llmgw.core.fleet import FALLBACK_DEFAULT, FallbackOn

HEAD = f"""\
# llmgw.toml: every setting with its default. A line that begins with "#" and a name is a default: take the
# "#" away to change it. `llmgw check-config FILE` says what is wrong with a file, and what to do about it.
#
# Durations: "250ms", "30s", "5min", "1h", "2d"; a bare number is seconds.
# Sizes: "512", "64KiB", "64MB", "1GiB"; a bare number is bytes.
# Secrets: "@/path" is read from a file that only its owner can read (chmod 600), "@name" from
# $CREDENTIALS_DIRECTORY (systemd's LoadCredential), anything else is the secret itself.
# Environment variables come before this file: LLMGW_RELAY__TOTAL=10min is [relay] total. Scalars only: no lists,
# no models.
# SIGHUP and `llmgw ctl apply` read the file again; what then still needs a restart is named.

# Models: who answers to which name. A fallback is another model, tried when no endpoint of this one answers;
# `on` says for what, out of {", ".join(FallbackOn)}
# (unless said: {", ".join(on for on in FallbackOn if on in FALLBACK_DEFAULT)}).
"""
TITLES = {
    "server": "The client listener.",
    "admin": "The operators' listener: management API, metrics, profiler. Keep it off public networks.",
    "relay": "Deadlines of a request, and what is retried.",
    "admission": "When a request may proceed: a key's band decides, and how full the pool of its model is.",
    "scheduling": "Which endpoint of a model gets a request: the one with the highest weighted sum of these scores.",
    "probe": "How endpoints are watched.",
    "breaker": "When an endpoint that fails requests is left alone.",
    "engines": "Connections to engines.",
    "replica": "Engines that agents run: when one is healthy, when it is restarted, how long it may take to leave.",
    "drain": "Taking a node out of service.",
    "lease": "Who leads, where two control planes share a store on PostgreSQL. The same on both.",
    "gpu": "GPUs that something speaks against.",
    "cluster": "What the control plane and its nodes expect of each other.",
    "agents": "The listener for agents, which run engines on their nodes. It stands once it has a certificate.",
    "agent": "Read by `llmgw agent` on a node, in the same kind of file; nothing else of it concerns an agent.",
    "records": "What is remembered of requests.",
    "store": "Where keys and usage are kept.",
    "log": "Log lines, on standard error.",
}
WRITTEN_OUT: dict[str, Any] = {"name": "qwen3-32b", "aliases": ("gpt-4o", "default"), "url": "http://10.0.0.5:8000"}
IF_KNOWN: dict[str, Any] = {"context_max": 32768, "capacity": 256, "max_in_flight": 64}  # nobody has them by default
ELSEWHERE: dict[str, Any] = {"start_within": 600.0, "stop_grace": 30.0}  # unless said, another setting or table says
EMPTY: Mapping[str, Any] = {}
WIDTH = 116


def example() -> str:
    return "\n".join([HEAD, *_models(), *(line for section in SECTIONS for line in _section(section))]) + "\n"


def _section(section: str) -> Iterator[str]:
    yield from ("", f"# {TITLES[section]}", f"[{section}]")
    for setting in settings_of(section):
        yield from _setting(setting)


def _models() -> Iterator[str]:
    yield "[[models]]"
    for setting in attrs.fields(ModelSettings):
        yield from _setting(setting, WRITTEN_OUT)
    yield "# where else a request may go"
    yield '#fallback = ["other-model", {model = "hosted-model", on = ["429", "saturated"]}]'
    yield "# engines that agents run, of the kind in [models.engine]; a number, or {min = 1, max = 4}"
    yield "#replicas = 1"
    yield from ("", "[[models.endpoints]]")
    for setting in attrs.fields(EndpointSettings):
        yield from _setting(setting, WRITTEN_OUT)
    yield from ("", "[[models.endpoints]]", 'url = "http://10.0.0.6:8000"')
    yield from (
        "",
        "# Engines that agents run on their nodes, beside static endpoints or in their stead.",
        "#[models.engine]",
    )
    for setting in attrs.fields(EngineSettings):
        yield from _setting(setting)
    yield from ("", "# Where they may run.", "#[models.placement]")
    for setting in attrs.fields(PlacementSettings):
        yield from _setting(setting)


def _setting(setting: "attrs.Attribute[Any]", written_out: Mapping[str, Any] = EMPTY) -> Iterator[str]:
    yield from wrap(_about(setting), WIDTH, initial_indent="# ", subsequent_indent="# ")
    name, unit = setting.name, setting.metadata["unit"]
    if name in written_out:
        yield f"{name} = {written(written_out[name], unit)}"
    else:
        shown = (IF_KNOWN | ELSEWHERE).get(name, default_of(setting))
        yield f"#{name} = {written(shown, unit, setting.metadata['of'])}"


def _about(setting: "attrs.Attribute[Any]") -> str:
    about, unit = setting.metadata, setting.metadata["unit"]
    more = [f"one of {', '.join(filter(None, about['choices']))}"] if about["choices"] else []
    if about["at_least"]:
        more.append(f"at least {written(about['at_least'], unit)}")
    if about["at_most"] is not None:
        more.append(f"at most {written(about['at_most'], unit)}")
    if setting.name in IF_KNOWN:
        more.append("unknown unless said")
    help_text: str = about["help"]
    return f"{help_text} ({'; '.join(more)})" if more else help_text
