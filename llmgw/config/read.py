"""Sections of settings: which classes make up each, and their values from the file and the environment.

Everything is read off the classes' own fields, so a new setting needs no line here.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import attrs
from attrs import frozen

from llmgw.config.problems import Problem, Problems, Refused
from llmgw.config.settings import AdminSettings, GpuSettings, ListenSettings
from llmgw.config.values import SCALARS_ONLY, value_of, value_of_variable
from llmgw.control.nearest import meant
from llmgw.core.agent_settings import AgentSettings
from llmgw.core.bands import AdmissionLimits
from llmgw.core.breaker import BreakerLimits
from llmgw.core.drain import DrainLimits
from llmgw.core.lease_facts import LeaseLimits
from llmgw.core.replicas import ReplicaLimits
from llmgw.core.scheduling import Weights
from llmgw.engines.limits import ClientLimits, ProbeLimits
from llmgw.gateway.limits import DoorLimits, RecordLimits, RelayLimits
from llmgw.nodes.limits import AgentsLimits, ClusterLimits
from llmgw.store.limits import StoreLimits
from llmgw.telemetry.log import LogLimits

# Section -> the Config's field -> its class. Within a section no two classes have a field of one name.
SECTIONS: Mapping[str, Mapping[str, type[Any]]] = {
    "server": {"listen": ListenSettings, "door": DoorLimits},
    "admin": {"admin": AdminSettings},
    "relay": {"relay": RelayLimits},
    "admission": {"admission": AdmissionLimits},
    "scheduling": {"weights": Weights},
    "probe": {"probe": ProbeLimits},
    "breaker": {"breaker": BreakerLimits},
    "engines": {"engines": ClientLimits},
    "replica": {"replica": ReplicaLimits},
    "drain": {"drain": DrainLimits},
    "gpu": {"gpu": GpuSettings},
    "cluster": {"cluster": ClusterLimits},
    "agents": {"agents": AgentsLimits},
    "agent": {"agent": AgentSettings},
    "records": {"records": RecordLimits},
    "lease": {"lease": LeaseLimits},
    "store": {"store": StoreLimits},
    "log": {"log": LogLimits},
}
MODELS = "models"
ENVIRONMENT = "environment"
COMMAND_LINE = "command line"
PREFIX = "LLMGW_"


@frozen
class Read:
    """What file and environment say: the values given, by section and key."""

    values: Mapping[str, Mapping[str, Any]]
    places: Mapping[str, str]  # "relay.total" -> the variable that said so, or the option


def as_options(environ: Mapping[str, str], options: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """The environment with options of the command line in it: ``{"--no-auth": (variable, value)}``.

    Each stands there as its variable, and under its own name, which no variable has, for who wants to say it.
    """
    said = dict(options.values())
    return {**environ, **said, **{option: variable for option, (variable, _) in options.items()}}


def source_of(place: str) -> str:
    return COMMAND_LINE if place.startswith("--") else ENVIRONMENT


def settings_of(section: str) -> Iterator["attrs.Attribute[Any]"]:
    for kind in SECTIONS[section].values():
        yield from attrs.fields(kind)


def default_of(setting: "attrs.Attribute[Any]") -> Any:
    default: Any = setting.default
    return default.factory() if hasattr(default, "factory") else default


def read_sections(tree: Mapping[str, Any], environ: Mapping[str, str], problems: Problems) -> Read:
    values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for section, table in tree.items():
        if section in SECTIONS and isinstance(table, dict):
            known = {setting.name: setting for setting in settings_of(section)}
            values[section] = read_table(table, known, section, environ, problems)
        elif section in SECTIONS:
            problems.add(section, "it is no section", f"write [{section}] on a line by itself")
        elif section != MODELS:
            problems.add(
                section, "there is no such section", meant(section, [*SECTIONS, MODELS], most=len(SECTIONS) + 1)
            )
    places: dict[str, str] = {}
    options = {variable: name for name, variable in environ.items() if name.startswith("--")}
    for variable, text in sorted(environ.items()):
        if variable.startswith(PREFIX) and "__" in variable:
            _read_variable(variable, text, options.get(variable, variable), values, places, environ, problems)
    return Read(values, places)


def misspelt_variables(environ: Mapping[str, str]) -> Iterator[Problem]:
    """Variables with one underscore where two belong, which nobody reads."""
    for variable in sorted(environ):
        section, _, key = variable.removeprefix(PREFIX).lower().partition("_")
        if variable.startswith(PREFIX) and section in SECTIONS and key in {s.name for s in settings_of(section)}:
            hint = f"did you mean {PREFIX}{section.upper()}__{key.upper()}?"
            yield Problem(ENVIRONMENT, variable, "nobody reads it", hint)


def build_sections(read: Read) -> dict[str, Any]:
    """The Config's fields, each an instance of its class; what nobody set has its default."""
    built: dict[str, Any] = {}
    for section, classes in SECTIONS.items():
        given = read.values[section]
        for name, kind in classes.items():
            mine = {f.name for f in attrs.fields(kind)}
            built[name] = kind(**{key: value for key, value in given.items() if key in mine})
    return built


def read_table(
    table: Mapping[str, Any],
    known: Mapping[str, "attrs.Attribute[Any]"],
    where: str,
    environ: Mapping[str, str],
    problems: Problems,
    besides: tuple[str, ...] = (),
) -> dict[str, Any]:
    """The values of a table's settings; ``besides`` are keys that somebody else reads."""
    values: dict[str, Any] = {}
    for key, raw in table.items():
        if key in known:
            with problems.at(f"{where}.{key}"):
                values[key] = value_of(raw, known[key], environ)
        elif key not in besides:
            problems.add(
                f"{where}.{key}", "there is no such setting", _elsewhere(key) or meant(key, [*known, *besides])
            )
    return values


def _elsewhere(key: str) -> str:
    homes = [section for section in SECTIONS if key in {setting.name for setting in settings_of(section)}]
    return f"it belongs to [{homes[0]}]" if len(homes) == 1 else ""


def _read_variable(
    variable: str,
    text: str,
    place: str,
    values: dict[str, dict[str, Any]],
    places: dict[str, str],
    environ: Mapping[str, str],
    problems: Problems,
) -> None:
    section, _, key = variable.removeprefix(PREFIX).lower().partition("__")
    with problems.at(place, source_of(place)):
        if section == MODELS:
            raise Refused("models can't be set here", SCALARS_ONLY)
        if section not in SECTIONS:
            raise Refused(f"there is no section {section!r}", meant(section, SECTIONS, most=len(SECTIONS)))
        known = {setting.name: setting for setting in settings_of(section)}
        if key not in known:
            raise Refused(f"there is no setting {section}.{key}", meant(key, known))
        values[section][key] = value_of_variable(text, known[key], environ)
        places[f"{section}.{key}"] = place
