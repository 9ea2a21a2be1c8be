"""The same file read again while the process runs: what changes now, and what has to wait for a restart."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
from attrs import frozen

from llmgw.config.load import NO_FILE, Config, load_revision
from llmgw.config.problems import ConfigError, Problem
from llmgw.config.read import MODELS, SECTIONS

# What a running process takes over: models, and these fields of the Config.
LIVE = frozenset({"door", "relay", "weights", "probe"})
LIVE_EXCEPT = frozenset({"scheduling.prefix_entries_max", "server.write_stall"})


@frozen
class Reloaded:
    """``config`` is what the process now runs on: what needs a restart is in it as it was."""

    config: Config
    needs_restart: tuple[str, ...]  # keys that the file has otherwise


def reload(old: Config, path: Path | None, environ: Mapping[str, str], text: str | None = None) -> Reloaded:
    """Raises ConfigError; then the old config stays."""
    new = load_revision(path, environ, text, old.fleet.revision + 1)
    _keep_serving(old, new, str(path) if path else NO_FILE)
    waiting: list[str] = []
    kept: dict[str, Any] = {}
    for section, classes in SECTIONS.items():
        for name in classes:
            before, after = getattr(old, name), getattr(new, name)
            late = [key for key in _differing(before, after) if not _is_live(section, name, key)]
            waiting += [f"{section}.{key}" for key in late]
            kept[name] = attrs.evolve(after, **{key: getattr(before, key) for key in late})
    return Reloaded(attrs.evolve(new, **kept), tuple(waiting))


def _keep_serving(old: Config, new: Config, file: str) -> None:
    """A file that is empty, half written or another one's would end all service, which nobody asks for this way."""
    if old.fleet.models and not new.fleet.models:
        what = f"there are no models in it, which would end every one that is served now ({len(old.fleet.models)})"
        way_out = "keep at least one [[models]], or stop the server if that is meant"
        raise ConfigError((Problem(file, MODELS, what, way_out),))


def _is_live(section: str, name: str, key: str) -> bool:
    return name in LIVE and f"{section}.{key}" not in LIVE_EXCEPT


def _differing(before: Any, after: Any) -> Iterator[str]:
    fields = attrs.fields(type(before))
    yield from (f.name for f in fields if getattr(before, f.name) != getattr(after, f.name))
