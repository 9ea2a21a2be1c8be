"""A LiteLLM proxy's config as llmgw.toml, and everything of it that has no counterpart here.

Pure: a parsed file comes in, text and notes go out. No key is ever written, only the name it is to be found under.
Source of the keys: https://docs.litellm.ai/docs/proxy/config_settings
"""

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import define, field, frozen

from llmgw.cli.failure import printable
from llmgw.cli.litellm_advice import not_carried
from llmgw.cli.litellm_deployment import Deployment, NotCarried, deployment_of
from llmgw.config.models import named
from llmgw.config.problems import Refused
from llmgw.config.units import shown, text_of_seconds
from llmgw.config.values import quoted
from llmgw.gateway.limits import RelayLimits

# LiteLLM leaves for a fallback after any error that its retries did not cure.
FALLBACK_ON = '["unreachable", "5xx", "429", "timeout", "no_endpoint"]'
SECTIONS = ("model_list", "router_settings", "litellm_settings", "general_settings")


@frozen
class Imported:
    text: str
    notes: tuple[str, ...]  # what could not be carried, or needs a hand
    credentials: tuple[str, ...]  # names that the text asks the service manager for


@define
class _Model:
    deployments: list[Deployment] = field(factory=list)
    aliases: list[str] = field(factory=list)
    fallbacks: list[str] = field(factory=list)


@define
class _Draft:
    environ: Mapping[str, str]
    credentials: dict[str, str] = field(factory=dict, repr=False)  # each with the key as LiteLLM has it
    models: dict[str, _Model] = field(factory=dict)
    relay: dict[str, str] = field(factory=dict)
    notes: list[str] = field(factory=list)

    def note(self, where: str, says: str) -> None:
        self.notes.append(printable(f"{where}: {says}"))

    def answers(self, name: str) -> str | None:
        """The model that a name means."""
        if name in self.models:
            return name
        return next((model for model, draft in self.models.items() if name in draft.aliases), None)


def imported(tree: object, source: str, environ: Mapping[str, str]) -> Imported:
    """``environ`` is asked for addresses written as ``os.environ/NAME``, never for keys."""
    draft = _Draft(environ)
    if not isinstance(tree, dict):
        draft.note(source, "it is no LiteLLM config: a table with model_list was expected")
        tree = {}
    settings = {name: _table(draft, tree, name) for name in SECTIONS[1:]}
    _read_models(draft, tree.get("model_list"))
    router, library, general = settings.values()
    _read_aliases(draft, router.pop("model_group_alias", None))
    for section, table in (("router_settings", router), ("litellm_settings", library)):
        _read_fallbacks(draft, f"{section}.fallbacks", table.pop("fallbacks", None))
    _read_timeout(draft, router, library)
    _read_retries(draft, router, library)
    if general.pop("master_key", None) is not None:
        says = "make keys with `llmgw ctl keys create`; `llmgw ctl keys import` takes over those that people have"
        draft.note("general_settings.master_key", says)
    _note_the_rest(draft, tree, settings)
    return Imported(_written(draft, source), tuple(draft.notes), tuple(draft.credentials))


def _table(draft: _Draft, tree: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = tree.get(name) or {}
    if isinstance(table, dict):
        return dict(table)
    draft.note(name, "it is no table, not carried: mend it there")
    return {}


def _read_models(draft: _Draft, entries: object) -> None:
    if not isinstance(entries, list):
        draft.note("model_list", "there is none, so there are no models")
        return
    ids: set[str] = set()
    for index, entry in enumerate(entries):
        where = f"model_list[{index}]"
        try:
            name = _name(entry)
            where = f"{where} ({name})"
            deployment = deployment_of(name, entry, ids, draft.environ, draft.credentials)
        except NotCarried as why:
            draft.note(where, str(why))
            continue
        ids.add(deployment.id)
        if deployment.credential:
            draft.credentials[deployment.credential] = str(entry["litellm_params"]["api_key"])
        draft.models.setdefault(name, _Model()).deployments.append(deployment)
        for says in deployment.notes:
            draft.note(where, says)


def _name(entry: object) -> str:
    if not isinstance(entry, dict) or not isinstance(entry.get("model_name"), str):
        raise NotCarried("it has no model_name", "mend it there")
    name: str = entry["model_name"]
    if "*" in name:
        raise NotCarried(f"{name!r} stands for many models", "write each with its own [[models]]")
    return _carried_name(name)


def _carried_name(name: str) -> str:
    try:
        return named(name)
    except Refused as refused:
        raise NotCarried(refused.what, refused.what_to_do) from None


def _read_aliases(draft: _Draft, aliases: object) -> None:
    if not isinstance(aliases, dict | None):
        draft.note("router_settings.model_group_alias", "it is no table, not carried: mend it there")
    for alias, target in aliases.items() if isinstance(aliases, dict) else ():
        where = f"router_settings.model_group_alias.{alias}"
        model = target.get("model") if isinstance(target, dict) else target
        try:
            name = _carried_name(str(alias))
        except NotCarried as why:
            draft.note(where, str(why))
            continue
        if not isinstance(model, str) or model not in draft.models:
            draft.note(where, f"there is no model {shown(model)} here, not carried: add the model, then the alias")
        elif draft.answers(name):
            draft.note(where, f"{name!r} is already a name for {draft.answers(name)!r}, not carried: choose another")
        else:
            draft.models[model].aliases.append(name)


def _read_fallbacks(draft: _Draft, where: str, rules: object) -> None:
    if not isinstance(rules, list | None):
        draft.note(where, "it is no list, not carried: mend it there")
    for rule in rules if isinstance(rules, list) else ():
        for name, others in rule.items() if isinstance(rule, dict) else ():
            for other in others if isinstance(others, list) else [others]:
                if why := _add_fallback(draft, name, other):
                    draft.note(where, f"{name} → {other}: {why}")


def _add_fallback(draft: _Draft, name: object, other: object) -> str:
    """Why not; empty if it was added."""
    if not isinstance(name, str) or not isinstance(other, str):
        return "only names of models are understood, not carried: write it by hand"
    home, target = draft.answers(name), draft.answers(other)
    if home is None or target is None:
        return f"nobody here answers to {(other if home else name)!r}, not carried: add that model first"
    if home in _reached(draft, target):
        return "it would lead in a circle, not carried: let one end it"
    if other not in draft.models[home].fallbacks:
        draft.models[home].fallbacks.append(other)
    return ""


def _reached(draft: _Draft, start: str) -> set[str]:
    reached, waiting = {start}, [start]
    while waiting:
        following = {draft.answers(f) or f for f in draft.models[waiting.pop()].fallbacks} - reached
        reached |= following
        waiting += following
    return reached


def _read_timeout(draft: _Draft, router: dict[str, Any], library: dict[str, Any]) -> None:
    general, own = library.pop("request_timeout", None), router.pop("timeout", None)
    total = own if own is not None else general
    if total is None:
        return
    if isinstance(total, bool) or not isinstance(total, int | float) or not 0.001 <= total < 10**7:
        draft.note("timeout", f"{total!r} is no number of seconds, not carried: set relay.total")
        return
    draft.relay["total"] = quoted(text_of_seconds(total))
    defaults = RelayLimits()
    for key in ("dial", "headers", "first_token", "idle"):
        if getattr(defaults, key) > total:
            draft.relay[key] = quoted(text_of_seconds(total))


def _read_retries(draft: _Draft, router: dict[str, Any], library: dict[str, Any]) -> None:
    general, own = library.pop("num_retries", None), router.pop("num_retries", None)
    retries = own if own is not None else general
    if retries is None:
        return
    if isinstance(retries, int) and not isinstance(retries, bool) and 0 <= retries < 100:
        draft.relay["attempts_max"] = str(retries + 1)
    else:
        draft.note("num_retries", "it is no small number, not carried: set relay.attempts_max")


def _note_the_rest(draft: _Draft, tree: Mapping[str, Any], settings: Mapping[str, Mapping[str, Any]]) -> None:
    for section, table in settings.items():
        for says in not_carried(map(str, table)):
            draft.note(section, says)
    for says in not_carried(str(key) for key in tree.keys() - set(SECTIONS)):
        draft.note("other sections", says)


def _written(draft: _Draft, source: str) -> str:
    lines = [f"# Made by `llmgw import litellm` from {printable(source)}.", "#"]
    if draft.notes:
        lines += ["# What could not be carried, or needs a hand:", *(f"# - {note}" for note in draft.notes)]
    else:
        lines += ["# Everything was carried."]
    if draft.relay:
        lines += ["", "[relay]", *(f"{key} = {value}" for key, value in draft.relay.items())]
    for name, model in draft.models.items():
        lines += _model_lines(name, model)
    return "\n".join(lines) + "\n"


def _model_lines(name: str, model: _Model) -> Iterator[str]:
    yield from ("", "[[models]]", f"name = {quoted(name)}")
    if model.aliases:
        yield f"aliases = [{', '.join(map(quoted, model.aliases))}]"
    if model.fallbacks:
        yield "fallback = ["
        yield from (f"    {{model = {quoted(other)}, on = {FALLBACK_ON}}}," for other in model.fallbacks)
        yield "]"
    for deployment in model.deployments:
        yield from ("", "[[models.endpoints]]", *deployment.lines)
