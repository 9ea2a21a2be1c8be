"""The same file read again while the process runs: what changes now, and what has to wait for a restart."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
from attrs import frozen

from llmgw.config.load import Config, load_revision
from llmgw.config.read import SECTIONS

# What a running process takes over: models, and these fields of the Config.
LIVE = frozenset({"door", "relay", "weights", "probe"})
LIVE_EXCEPT = frozenset({"scheduling.prefix_entries_max"})


@frozen
class Reloaded:
    config: Config
    needs_restart: tuple[str, ...]  # keys that differ and stay as they were


def reload(old: Config, path: Path | None, environ: Mapping[str, str], text: str | None = None) -> Reloaded:
    """Raises ConfigError; then the old config stays."""
    new = load_revision(path, environ, text, old.fleet.revision + 1)
    return Reloaded(new, tuple(_needs_restart(old, new)))


def _needs_restart(old: Config, new: Config) -> Iterator[str]:
    for section, classes in SECTIONS.items():
        for name in classes:
            before, after = getattr(old, name), getattr(new, name)
            for key in _differing(before, after):
                if name not in LIVE or f"{section}.{key}" in LIVE_EXCEPT:
                    yield f"{section}.{key}"


def _differing(before: Any, after: Any) -> Iterator[str]:
    fields = attrs.fields(type(before))
    yield from (f.name for f in fields if getattr(before, f.name) != getattr(after, f.name))
