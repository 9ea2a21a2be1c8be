"""How answers look: tables for people, JSON for programs."""

import json
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
from attrs import frozen
from rich.console import Console
from rich.table import Table
from rich.text import Text

from llmgw.cli.ctl.session import JSON, Session
from llmgw.cli.failure import Exit, Failure, printable


@frozen
class Column:
    """``key``: where its value stands in a row; dots go deeper."""

    title: str
    key: str
    form: str = ""  # "time", "seconds", "span", "age", "share", "gib"

    def text(self, row: Mapping[str, Any]) -> str:
        value: Any = row
        for step in self.key.split("."):
            value = value.get(step) if isinstance(value, Mapping) else None
        return formed(value, self.form)


def show(session: Session, answer: Any, rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> None:
    """The answer as it came, or its rows as a table."""
    if session.output == JSON:
        print_json(answer)
    else:
        table(rows, columns)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def table(rows: Iterable[Mapping[str, Any]], columns: Sequence[Column]) -> None:
    click.echo(drawn(rows, columns))


def drawn(rows: Iterable[Mapping[str, Any]], columns: Sequence[Column]) -> str:
    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        grid.add_column(column.title, overflow="fold")
    for row in rows:
        # Text, not str: what a client or an engine said is not markup.
        grid.add_row(*(Text(column.text(row)) for column in columns))
    console = _console()
    with console.capture() as captured:
        console.print(grid)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def listed(answer: Any, name: str) -> list[Mapping[str, Any]]:
    """The rows of ``{name: [...]}``."""
    found = answer.get(name) if isinstance(answer, Mapping) else answer
    if not isinstance(found, list):
        raise Failure(f"the answer has no {name} in it", Exit.UNREACHABLE, "is ctl older than the gateway?")
    return found


def formed(value: Any, form: str = "") -> str:
    """One value as text; what can't be printed is left out."""
    if value is None or value in ("", [], {}):
        return "-"
    match form:
        case "time":
            return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(value)))
        case "seconds":
            return f"{value:.3f} s"
        case "age":
            return f"{spanned(float(value))} ago"
        case "span":
            return spanned(float(value))
        case "gib":
            return f"{value / 1024:.1f}"
        case "share":
            return f"{value:.0%}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return printable(", ".join(formed(v) for v in value))
    if isinstance(value, Mapping):
        return printable(", ".join(f"{k}: {formed(v)}" for k, v in value.items()))
    return printable(str(value))


def spanned(seconds: float) -> str:
    """ "12.3 s", "45 min", "7.5 h", "12 d"."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} d"


def lines(text: str) -> str:
    """Many lines that others wrote: tabs and line ends stay, what could move a cursor does not."""
    return "\n".join(printable(line.expandtabs()) for line in text.replace("\r\n", "\n").split("\n"))


def say(text: str) -> None:
    """A line for people beside the answer."""
    click.echo(printable(text), err=True)


def _console() -> Console:
    # Into a pipe a line is as long as it needs to be; on a terminal cells fold.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 10_000
    return Console(width=width, highlight=False, soft_wrap=not sys.stdout.isatty(), emoji=False)
