"""How text is made to fit: cells of the terminal, not characters, are what a line has few of."""

import re
from collections.abc import Iterable, Iterator

from rich.cells import cell_len, chop_cells, set_cell_size

from console.shown import Cell, Line, Tone, clean, plain

_SPACED = re.compile(r"\s*\S+|\s+$")
MIDDLE_LEAST = 3
WRAPPED_MAX = 2_000  # characters of one text that is wrapped


def cut(text: str, width: int) -> str:
    """At most ``width`` cells of it; what is left out is told by an ellipsis."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + "…" if width > 0 else ""


def cut_in_the_middle(text: str, width: int) -> str:
    """As ``cut``, but its end stays: of names that begin alike that tells which it is."""
    if cell_len(text) <= width or width < MIDDLE_LEAST:
        return cut(text, width)
    end = (width - 1) // 2
    tail = text[-end:]
    while cell_len(tail) > end:
        tail = tail[1:]
    return set_cell_size(text, width - 1 - cell_len(tail)).rstrip() + "…" + tail


def padded(text: str, width: int, right: bool = False, middle: bool = False) -> str:
    """Exactly ``width`` cells."""
    fits = cut_in_the_middle(text, width) if middle else cut(text, width)
    space = " " * (width - cell_len(fits))
    return space + fits if right else fits + space


def fitted(line: Line, width: int) -> Line:
    left, cells = width, list[Cell]()
    for cell in line.cells:
        fits = cut(cell.text, left)
        if fits:
            cells.append(cell if fits == cell.text else Cell(fits, cell.tone, cell.order))
        left -= cell_len(fits)
        if fits != cell.text:
            break
    return Line(tuple(cells), line.leads_to)


def wrapped(text: str, width: int) -> Iterator[str]:
    """In lines of at most ``width`` cells, broken between words where that is possible. At least one line."""
    so_far = ""
    for word in _pieces(clean(text, WRAPPED_MAX).split(), max(2, width)):
        longer = f"{so_far} {word}" if so_far else word
        if cell_len(longer) > width and so_far:
            yield so_far
            so_far = word
        else:
            so_far = longer
    yield so_far


def hanging(first: Cell, text: str, width: int, tone: Tone = Tone.PLAIN) -> tuple[Line, ...]:
    """``text`` beside ``first``, and what it does not hold below the text."""
    indent = cell_len(first.text)
    lines = list(wrapped(text, width - indent))
    told = [Line((first, plain(lines[0], tone)))]
    told += [Line((Cell(" " * indent), plain(more, tone))) for more in lines[1:]]
    return tuple(fitted(one, width) for one in told)


def folded(line: Line, width: int, indent: int = 2) -> tuple[Line, ...]:
    """The line in as many as it needs, broken between words where that is possible; all lead where it does."""
    if width <= indent or cell_len(str(line)) <= width:
        return (line,)
    lines, cells, left = list[Line](), list[Cell](), width
    for cell in line.cells:
        for word in _words(cell.text, width - indent):
            if cell_len(word) > left and cells:
                lines.append(Line(tuple(cells), line.leads_to))
                cells, left, word = [Cell(" " * indent)], width - indent, word.lstrip()
            cells.append(Cell(word, cell.tone))
            left -= cell_len(word)
    return (*lines, Line(tuple(cells), line.leads_to))


def _words(text: str, width: int) -> Iterator[str]:
    """Words with the spaces before them; their sum is the text."""
    for piece in _SPACED.findall(text):
        yield from chop_cells(piece, width) if cell_len(piece) > width else (piece,)


def joined(cells: Iterable[Cell], between: str = "  ") -> tuple[Cell, ...]:
    found: list[Cell] = []
    for cell in cells:
        found += [Cell(between), cell] if found else [cell]
    return tuple(found)


def _pieces(words: Iterable[str], width: int) -> Iterator[str]:
    """A word that is longer than a line has no better place to break."""
    for word in words:
        if cell_len(word) <= width:
            yield word
        else:
            yield from chop_cells(word, width)
