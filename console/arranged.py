"""Which rows of a table are shown, in which order, and how wide its columns are."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from attrs import frozen
from rich.cells import cell_len

from console.shown import Cell, Column, Row

GAP, NUMBERS_GAP = 1, 2  # between two columns; between two that are full at the right, where one would read as one
LEAST = 6  # cells that a column keeps when room is short
REST_LEAST = 16
WORD = 10  # a state is read whole
NAME_LEAST = 24  # of what tells rows apart


@frozen
class Sight:
    """How an operator looks at a table. ``sort``: number of a column."""

    sort: int = 0
    falling: bool = False
    wanted: str = ""
    faults_only: bool = False


def arranged(rows: Sequence[Row], sight: Sight, in_order: bool = False) -> Sequence[Row]:
    """``in_order``: as they came, whatever the sight says; such are things that happened, made when they are seen."""
    if in_order and not sight.faults_only and not sight.wanted.strip():
        return rows
    found = [row for row in rows if (row.faulty or not sight.faults_only) and matches(row, sight.wanted)]
    if not in_order:
        found.sort(key=lambda row: (_order(row.cells[sight.sort]), row.key), reverse=sight.falling)
    return tuple(found)


def matches(row: Row, wanted: str) -> bool:
    """Every word of ``wanted`` stands in one of its cells; ``!word``: in none."""
    if not wanted.strip():
        return True
    text = "\n".join(cell.text for cell in row.cells).casefold()
    return all((word[1:] not in text) if word[:1] == "!" and word[1:] else word in text for word in _words(wanted))


def _words(wanted: str) -> list[str]:
    return wanted.casefold().split()


def _order(cell: Cell) -> tuple[int, Any]:
    """Numbers before texts; texts with numbers in them as people count: node-2 before node-10."""
    if cell.order is None:
        return (1, natural(cell.text))
    return (0, cell.order) if isinstance(cell.order, int | float) else (1, natural(str(cell.order)))


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    parts: list[tuple[int, int, str]] = []
    word = ""
    for char in text.casefold():
        if word and char.isdecimal() != word[-1].isdecimal():
            parts.append(_part(word))
            word = ""
        word += char
    return (*parts, _part(word)) if word else tuple(parts)


def _part(word: str) -> tuple[int, int, str]:
    return (0, int(word), word) if word.isdecimal() else (1, 0, word)


def widths(columns: Sequence[Column], rows: Sequence[Row], total: int) -> tuple[int, ...]:
    """In cells of the terminal, the gaps besides; 0: it is left out. The column without a most takes what is left."""
    needs = [_needs(column, number, rows) for number, column in enumerate(columns)]
    rest = next((number for number, column in enumerate(columns) if not column.most), None)
    shown = list(range(len(columns)))

    def room(shown: Sequence[int]) -> int:
        """What is left over beside the least of the column that takes it; below 0: too little."""
        used = sum(min(needs[number], REST_LEAST) if number == rest else needs[number] for number in shown)
        return total - used - sum(_gap(columns[one], columns[after]) for one, after in pairwise(shown))

    for number in reversed([number for number in shown if columns[number].spare]):
        if room(shown) < 0:
            shown.remove(number)
    fixed = [number for number in shown if number != rest]
    while room(shown) < 0 and (cuttable := [number for number in fixed if needs[number] > LEAST]):
        cut = min(cuttable, key=lambda number: (_cut_after(columns[number], needs[number]), -needs[number]))
        needs[cut] -= 1
    if rest is not None:
        needs[rest] = max(0, room(shown) + min(needs[rest], REST_LEAST))
    return tuple(needs[number] if number in shown else 0 for number in range(len(columns)))


def _cut_after(column: Column, width: int) -> int:
    """Which go first: what is wider than its title, then names that are cut in their middle, then titles."""
    if column.identifies:
        return 1 if width > NAME_LEAST else 3
    return 0 if width > max(cell_len(column.title) + 1, WORD) else 2


def gaps(columns: Sequence[Column], widths: Sequence[int]) -> tuple[int, ...]:
    """In cells, after each column; 0: it is left out or the last."""
    shown = [number for number, width in enumerate(widths) if width]
    after = {number: _gap(columns[number], columns[following]) for number, following in pairwise(shown)}
    return tuple(after.get(number, 0) for number in range(len(widths)))


def _gap(before: Column, after: Column) -> int:
    return NUMBERS_GAP if before.right and after.right else GAP


def _needs(column: Column, number: int, rows: Sequence[Row]) -> int:
    widest = max((cell_len(row.cells[number].text) for row in rows), default=0)
    needed = max(cell_len(column.title) + 1, widest)  # 1: the mark of the sorted one
    return min(needed, column.most) if column.most else needed
