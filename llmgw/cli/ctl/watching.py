"""Asking again and again: redrawn in place on a terminal, one JSON object a line for programs."""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

import click

from llmgw.cli.ctl.session import JSON, CtlCommand, ListingGroup, Session
from llmgw.cli.ctl.show import print_json

EVERY_S = 1.0
LEAST_S = 0.05
_HOME, _LINE_END, _BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_CLEAR = "\x1b[2J"


class _Watched(click.Command):
    """With ``--watch [SECONDS]``; whatever follows it and is no number is not its value."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        count = click.option("--count", type=click.IntRange(1), help="With --watch: end after this many.")
        watch = click.option(
            "--watch",
            type=click.FloatRange(LEAST_S),
            is_flag=False,
            flag_value=EVERY_S,
            metavar="[SECONDS]",
            help=f"Ask again every so often, {EVERY_S:g} s unless said; Ctrl-C ends.",
        )
        count(watch(self))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        said = [
            f"--watch={EVERY_S}" if word == "--watch" and not _is_number(following) else word
            for word, following in zip(args, [*args[1:], ""], strict=False)
        ]
        return super().parse_args(ctx, said)


class WatchCommand(_Watched, CtlCommand):
    """A command with ``--watch``."""


class WatchGroup(_Watched, ListingGroup):
    """A group that lists, with ``--watch``, when no command of it is named."""


def shown(
    session: Session, every: float | None, count: int | None, ask: Callable[[], Any], draw: Callable[[Any], str]
) -> None:
    """What ``ask`` gives: once, or ``every`` so many seconds until ``count`` or Ctrl-C."""
    if every is None:
        if count is not None:
            raise click.UsageError("--count goes with --watch")
        answer = ask()
        if session.output == JSON:
            print_json(answer)
        else:
            click.echo(draw(answer))
        return
    try:
        _watch(session, every, count, ask, draw)
    except KeyboardInterrupt:
        click.echo(err=True)  # so that the shell's prompt begins a line


def _watch(
    session: Session, every: float, count: int | None, ask: Callable[[], Any], draw: Callable[[Any], str]
) -> None:
    in_place = session.output != JSON and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    if in_place:
        click.echo(_CLEAR, nl=False, color=True)
    times = 0
    while True:
        answer = ask()
        if session.output == JSON:
            click.echo(json.dumps(answer, ensure_ascii=False))
        elif in_place:
            head = f"{time.strftime('%H:%M:%S')}  every {every:g} s, Ctrl-C ends"
            click.echo(frame(f"{head}\n\n{draw(answer)}", shutil.get_terminal_size().lines), nl=False, color=True)
        else:
            click.echo(draw(answer) + "\n")
        sys.stdout.flush()
        times += 1
        if times == count:
            return
        time.sleep(every)


def frame(text: str, height: int) -> str:
    """Over what stood there before, without flicker; what does not fit on the screen is counted."""
    lines = text.splitlines()
    if len(lines) > height - 1:
        left_out = len(lines) - (height - 2)
        lines = [*lines[: height - 2], f"… {left_out} more lines"]
    return _HOME + "".join(f"{line}{_LINE_END}\n" for line in lines) + _BELOW


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
