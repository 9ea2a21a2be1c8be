"""What a screen draws: lines and tables of cells in tones. Values that know no terminal."""

import unicodedata
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from attrs import field, frozen

SPARKS = "▁▂▃▄▅▆▇█"
MASKED = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
SELECTORS = dict.fromkeys(range(0xFE00, 0xFE10))  # of a sign's variant; terminals do not agree on how wide that is


class Tone(StrEnum):
    """What a cell means; a theme says how that looks, and one without colours too."""

    PLAIN = "plain"
    DIM = "dim"
    STRONG = "strong"
    GOOD = "good"
    BUSY = "busy"  # on its way
    WARN = "warn"
    BAD = "bad"


@frozen
class Place:
    """Where an operator can be: a kind of screen, and whose. ``Place("replicas", "node-3")``."""

    kind: str
    subject: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.subject}".rstrip()


@frozen
class Cell:
    """``order``: what a table is sorted by; None: the text."""

    text: str
    tone: Tone = Tone.PLAIN
    order: Any = None


@frozen
class Line:
    """Cells side by side; ``leads_to``: where Enter goes."""

    cells: tuple[Cell, ...]
    leads_to: Place | None = None

    def __str__(self) -> str:
        return "".join(cell.text for cell in self.cells)


@frozen
class Column:
    """``most``: cells of the terminal that it takes at most; 0: what is left over. The latter is the last to be cut.

    ``spare``: it is left out where the others would have no room. ``identifies``: it tells the rows apart, and is
    cut after all others. ``middle``: where it is cut its end stays, since beginnings are alike.
    """

    title: str
    right: bool = False
    most: int = 24
    spare: bool = False
    identifies: bool = False
    middle: bool = False


@frozen
class Row:
    """``key``: the same thing's in the next picture; ``faulty``: shown with `faults only`."""

    key: str
    cells: tuple[Cell, ...]
    faulty: bool = False
    leads_to: Place | None = None


@frozen
class Listing:
    """``empty``: what is said instead of no rows, and what to do about it."""

    columns: tuple[Column, ...]
    rows: Sequence[Row] = ()
    empty: str = ""
    note: str = field(default="")  # above the table


def clean(value: Any, most: int = 500) -> str:
    """Anybody's text in one line, without what could move a cursor, turn the direction of writing or hide."""
    text = str(value)
    cut = text if len(text) <= most else text[: most - 1] + "…"
    if cut.isascii() and cut.isprintable():
        return cut
    return "".join(" " if unicodedata.category(char) in MASKED else char for char in cut.translate(SELECTORS))


def plain(text: Any, tone: Tone = Tone.PLAIN, order: Any = None) -> Cell:
    return Cell(clean(text), tone, order)


def line(*cells: Cell | str, leads_to: Place | None = None) -> Line:
    return Line(tuple(plain(cell) if isinstance(cell, str) else cell for cell in cells), leads_to)


def number(value: float | None, form: str = "g", tone: Tone = Tone.PLAIN) -> Cell:
    """A number that sorts as one; None: not known, and last."""
    return Cell("-", Tone.DIM, float("-inf")) if value is None else Cell(f"{value:{form}}", tone, value)


def span(seconds: float | None, tone: Tone = Tone.PLAIN) -> Cell:
    return Cell("-", Tone.DIM, float("-inf")) if seconds is None else Cell(spanned(seconds), tone, seconds)


def spanned(seconds: float) -> str:
    """ "820 ms", "12 s", "45 min", "7.5 h", "12 d"."""
    if seconds < 1:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} d"


def gib(mib: float | None) -> str:
    return "-" if mib is None else f"{mib / 1024:.1f}"


def counted(number: int, what: str) -> str:
    if number == 1:
        return f"1 {what}"
    return f"{number:,} {what}{'es' if what.endswith('s') else 's'}"


def bar(share: float, width: int, marks: Sequence[float] = (), full: float = 1.0) -> str:
    """``share`` of ``full`` as a bar of ``width`` cells; ``marks`` are shown as ticks in it."""
    filled = min(width, max(0, round(share / full * width)))
    cells = ["█"] * filled + ["░"] * (width - filled)
    for mark in marks:
        at = round(mark / full * width) - 1
        if 0 <= at < width:
            cells[at] = "┃" if at >= filled else "╂"
    return "".join(cells)


def sparks(values: Sequence[float], width: int, full: float = 1.0) -> str:
    """The latest ``width`` values, the newest at the right."""
    latest = list(values)[-width:]
    drawn = "".join(SPARKS[min(len(SPARKS) - 1, max(0, int(value / full * len(SPARKS))))] for value in latest)
    return drawn.rjust(width)
