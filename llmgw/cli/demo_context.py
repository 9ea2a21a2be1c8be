"""A context for the time of a demo, so that ``llmgw ctl`` and ``llmgw console`` find it without a word."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from llmgw.cli.ctl.contexts import Contexts, Named
from llmgw.cli.failure import Failure

NAME = "demo"
# `ctl context add` takes this off, so a context that has it is a demo's: of one that was killed, it is replaced.
MARK = "/admin/v1"
OUTDO_CONTEXTS = ("LLMGW_ADMIN_URL", "LLMGW_ADMIN_TOKEN", "LLMGW_CONFIG")


@contextmanager
def context(admin_url: str, data: Path) -> Iterator[str]:
    """What to say to ``llmgw console`` to open it there; afterwards the contexts are as they were."""
    try:
        ours = Named(admin_url + MARK, (data / "admin.token").read_text(encoding="utf-8").strip())
        before, words = _enter(ours)
    except (Failure, OSError):  # no place for contexts, or none that may be touched
        yield f"--data-dir {data}"
        return
    try:
        yield words
    finally:
        _leave(ours, before)


def _enter(ours: Named) -> tuple[Named | None, str]:
    contexts = Contexts.read()
    found = contexts.named.get(NAME)
    before = None if found is None or _is_a_demos(found) else found
    if contexts.current == NAME and before is None:
        contexts.current = None
    contexts.named[NAME] = ours
    contexts.current = contexts.current or NAME
    contexts.write()
    alone = contexts.current == NAME and not any(os.environ.get(name) for name in OUTDO_CONTEXTS)
    return before, "" if alone else f"--context {NAME}"


def _leave(ours: Named, before: Named | None) -> None:
    """What was changed meanwhile stays."""
    try:
        contexts = Contexts.read()
        if contexts.named.get(NAME) != ours:
            return
        if before is not None:
            contexts.named[NAME] = before
        else:
            del contexts.named[NAME]
            contexts.current = None if contexts.current == NAME else contexts.current
        contexts.write()
    except Failure as failure:
        click.echo(f"llmgw: {failure}; `llmgw ctl context remove {NAME}`", err=True)


def _is_a_demos(named: Named) -> bool:
    return named.url.endswith(MARK)
