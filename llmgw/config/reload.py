"""The same file read again while the process runs: what changes now, and what has to wait for a restart."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from attrs import frozen

from llmgw.config.load import NO_FILE, Config, load_revision
from llmgw.config.problems import ConfigError, Problem
from llmgw.config.read import MODELS, SECTIONS
from llmgw.config.values import written
from llmgw.control.desired import difference
from llmgw.core.fleet import differences

# What a running process takes over: models, and these fields of the Config.
LIVE = frozenset({"door", "relay", "admission", "weights", "probe", "replica", "drain", "gpu"})
LIVE_EXCEPT = frozenset({"scheduling.prefix_entries_max", "server.write_stall"})


@frozen
class Reloaded:
    """``config`` is what the process now runs on: what needs a restart is in it as it was."""

    config: Config
    changes: tuple[str, ...]  # what is otherwise from now on; without any, the revision is the one before
    needs_restart: tuple[str, ...]  # keys that the file has otherwise
    replaces: tuple[str, ...] = ()  # models whose engines are started anew
    may_stop: tuple[str, ...] = ()  # models whose waiting replacements stop running replicas first from now on


def reload(
    old: Config,
    path: Path | None,
    environ: Mapping[str, str],
    text: str | None = None,
    named: str = "",
    models: Sequence[Mapping[str, Any]] | None = None,
) -> Reloaded:
    """Raises ConfigError; then the old config stays. ``named``: what problems call it; ``models``: not its own."""
    new = load_revision(path, environ, text, old.fleet.revision + 1, named, models)
    _keep_serving(old, new, named or (str(path) if path else NO_FILE))
    limits: list[str] = []
    waiting: list[str] = []
    kept: dict[str, Any] = {}
    for section, classes in SECTIONS.items():
        for name in classes:
            before, after = getattr(old, name), getattr(new, name)
            differing = list(_differing(before, after))
            late = [f.name for f in differing if not _is_live(section, name, f.name)]
            limits += [_change(section, f, before, after) for f in differing if f.name not in late]
            waiting += [f"{section}.{key}" for key in late]
            kept[name] = attrs.evolve(after, **{key: getattr(before, key) for key in late})
    engines = difference({w.model: w for w in old.wants}, {w.model: w for w in new.wants})
    changes = (*differences(old.fleet, new.fleet), *engines.changes, *limits)
    fleet = new.fleet if changes else old.fleet
    return Reloaded(attrs.evolve(new, **kept, fleet=fleet), changes, tuple(waiting), engines.restarts, engines.may_stop)


def _keep_serving(old: Config, new: Config, file: str) -> None:
    """A file that is empty, half written or another one's would end all service, which nobody asks for this way."""
    if old.fleet.models and not new.fleet.models:
        what = f"there are no models in it, which would end every one that is served now ({len(old.fleet.models)})"
        way_out = "keep at least one [[models]], or stop the server if that is meant"
        raise ConfigError((Problem(file, MODELS, what, way_out),))


def _is_live(section: str, name: str, key: str) -> bool:
    return name in LIVE and f"{section}.{key}" not in LIVE_EXCEPT


def _differing(before: Any, after: Any) -> Iterator["attrs.Attribute[Any]"]:
    return (f for f in attrs.fields(type(before)) if getattr(before, f.name) != getattr(after, f.name))


def _change(section: str, setting: "attrs.Attribute[Any]", before: Any, after: Any) -> str:
    about = setting.metadata
    was, is_now = (written(getattr(each, setting.name), about["unit"], about["of"]) for each in (before, after))
    return f"{section}.{setting.name}: {was} -> {is_now}"
