"""A table of any number of rows, of which only those in sight are drawn; the cursor stays with its row's key."""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from attrs import evolve
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.actions import SkipAction
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from console.arranged import Sight, arranged, gaps, widths
from console.shown import Listing, Row, Tone
from console.views.fitting import padded
from console.widgets.moving import MOVING
from console.widgets.tones import styles_of

MARK, FAULT = "●", "!"
GUTTER = 2
MEASURED = 100  # of rows that are made when they are seen


class Table(ScrollView, can_focus=True):
    """``in_order``: rows stand as they came, the newest last, and the cursor follows the end while it is there."""

    DEFAULT_CSS = """
    Table { height: 1fr; scrollbar-size-horizontal: 0; scrollbar-size-vertical: 1; overflow-x: hidden; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *MOVING,
        Binding("space", "mark", "Mark", show=False),
        Binding("less_than_sign", "sort(-1)", "Sort by the column before", show=False),
        Binding("greater_than_sign", "sort(1)", "Sort by the next column", show=False),
        Binding("exclamation_mark", "turn", "Turn the order", show=False),
    ]

    class Moved(Message):
        """The cursor stands on another row; None: there is none."""

        def __init__(self, row: Row | None) -> None:
            super().__init__()
            self.row = row

    class Chosen(Message):
        def __init__(self, row: Row) -> None:
            super().__init__()
            self.row = row

    def __init__(self, sight: Sight, in_order: bool = False, marked: bool = True, id: str | None = None) -> None:
        """``marked``: rows can be, because something can be done to several."""
        super().__init__(id=id)
        self.sight, self.in_order, self.marked = sight, in_order, marked
        self.listing = Listing(())
        self.rows: Sequence[Row] = ()
        self.marks: set[str] = set()
        self.cursor = 0
        self._widths: tuple[int, ...] = ()
        self._gaps: tuple[int, ...] = ()
        self._told: str | None = None

    # -- what it shows -----------------------------------------------------------------------------------

    def show(self, listing: Listing) -> None:
        key, at_end = self.key, self.cursor >= len(self.rows) - 1
        self.listing = listing
        self.rows = arranged(listing.rows, self.sight, self.in_order)
        if self.marks:
            self.marks &= {row.key for row in listing.rows}
        self._find(key, self.in_order and at_end)
        self._measure()
        self._tell()
        self.refresh()

    def look(self, sight: Sight) -> None:
        self.sight = sight
        self.show(self.listing)

    @property
    def row(self) -> Row | None:
        return self.rows[self.cursor] if self.cursor < len(self.rows) else None

    @property
    def key(self) -> str | None:
        return self.row.key if self.row is not None else None

    @property
    def meant(self) -> tuple[Row, ...]:
        """The rows that are marked, else the one under the cursor."""
        marked = tuple(row for row in self.rows if row.key in self.marks)
        return marked or ((self.row,) if self.row is not None else ())

    def _find(self, key: str | None, at_end: bool) -> None:
        there = len(self.rows) - 1
        if at_end:
            self.cursor = max(0, there)
        else:
            same = next((index for index in self._nearest() if self.rows[index].key == key), None)
            self.cursor = same if same is not None else max(0, min(self.cursor, there))
        self._into_sight()

    def _nearest(self) -> Iterator[int]:
        """Where the row under the cursor mostly is: where it was, or before that, since the oldest go first."""
        there = len(self.rows)
        yield from range(min(self.cursor, there - 1), -1, -1)
        yield from range(self.cursor + 1, there)

    def _measure(self) -> None:
        self.virtual_size = Size(self.size.width, len(self.rows) + 1)
        measured = self.rows[-MEASURED:] if self.in_order else self.rows
        # The scrollbar's room is always kept: it comes only after the rows that need it are drawn.
        room = max(0, self.size.width - self.styles.scrollbar_size_vertical - GUTTER)
        self._widths = widths(self.listing.columns, measured, room)
        self._gaps = gaps(self.listing.columns, self._widths)

    def _tell(self) -> None:
        if self.key != self._told:
            self._told = self.key
            self.post_message(self.Moved(self.row))

    def _into_sight(self) -> None:
        height = max(1, self.size.height - 1)
        top = self.scroll_offset.y
        if self.cursor < top:
            top = self.cursor
        elif self.cursor >= top + height:
            top = self.cursor - height + 1
        self.virtual_size = Size(self.size.width, len(self.rows) + 1)
        self.scroll_to(y=top, animate=False, immediate=True, force=True)

    # -- drawing -----------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        width, under = self.size.width, self.rich_style
        if y == 0:
            return self._head(under).adjust_cell_length(width, under)
        index = self.scroll_offset.y + y - 1
        if not self.rows and y == 1:
            return Strip([Segment(padded("  " + self._nothing(), width), under + self._styles[Tone.DIM])])
        if index >= len(self.rows):
            return Strip.blank(width, under)
        here = index == self.cursor
        style = under + Style(reverse=self.has_focus, bold=True) if here else under
        return self._line(self.rows[index], style, here).adjust_cell_length(width, style)

    def _nothing(self) -> str:
        if self.listing.rows:
            return "no row is like that; esc takes the filter away"
        return self.listing.empty

    def _head(self, under: Style) -> Strip:
        bold, parts = under + Style(bold=True, underline=True), [Segment(" " * GUTTER, under)]
        placed = zip(self.listing.columns, self._widths, self._gaps, strict=False)
        for number, (column, width, gap) in enumerate(placed):
            if not width:
                continue
            mark = "" if number != self.sight.sort or self.in_order else "↓" if self.sight.falling else "↑"
            parts += [Segment(padded(column.title + mark, width, column.right), bold), Segment(" " * gap, under)]
        return Strip(parts)

    def _line(self, row: Row, style: Style, here: bool) -> Strip:
        marked, fault = MARK if row.key in self.marks else "", FAULT if row.faulty else ""
        parts = [
            Segment(marked, style + self._toned(Tone.STRONG, here)),
            Segment(padded(fault, GUTTER - len(marked)), style + self._toned(Tone.BAD, here)),
        ]
        for cell, column, width, gap in zip(row.cells, self.listing.columns, self._widths, self._gaps, strict=False):
            if not width:
                continue
            toned = style + self._toned(cell.tone, here)
            text = padded(cell.text, width, column.right, column.middle or column.identifies)
            parts += [Segment(text, toned), Segment(" " * gap, style)]
        return Strip(parts)

    @property
    def _styles(self) -> Mapping[Tone, Style]:
        return styles_of(self.app.theme)

    def _toned(self, tone: Tone, here: bool) -> Style:
        """Under the cursor colours would fight with its own."""
        return Style() if here and self.has_focus else self._styles[tone]

    # -- keys and mouse ----------------------------------------------------------------------------------

    def on_resize(self) -> None:
        self._measure()
        self._into_sight()

    def action_move(self, by: int) -> None:
        self._go(self.cursor + by)

    def action_page(self, by: int) -> None:
        self._go(self.cursor + by * max(1, self.size.height - 2))

    def action_first(self) -> None:
        self._go(0)

    def action_last(self) -> None:
        self._go(len(self.rows) - 1)

    def _go(self, to: int) -> None:
        self.cursor = max(0, min(to, len(self.rows) - 1))
        self._into_sight()
        self._tell()
        self.refresh()

    def action_choose(self) -> None:
        if self.row is not None:
            self.post_message(self.Chosen(self.row))

    def action_mark(self) -> None:
        if not self.marked:
            raise SkipAction
        if self.key is not None:
            self.marks ^= {self.key}
            self._go(self.cursor + 1)

    def action_sort(self, by: int) -> None:
        self.sort_by((self.sight.sort + by) % max(1, len(self.listing.columns)))

    def action_turn(self) -> None:
        sight = self.sight
        self.look(evolve(sight, falling=not sight.falling))

    def sort_by(self, column: int) -> None:
        """The same column again turns the order."""
        sight = self.sight
        falling = not sight.falling if column == sight.sort else False
        self.look(evolve(sight, sort=column, falling=falling))

    def on_click(self, event: events.Click) -> None:
        if event.y == 0:
            if (column := self._column_at(event.x)) is not None:
                self.sort_by(column)
            return
        index = self.scroll_offset.y + event.y - 1
        if index < len(self.rows):
            again = index == self.cursor
            self._go(index)
            if again or event.chain > 1:
                self.action_choose()

    def _column_at(self, x: int) -> int | None:
        left = GUTTER
        for number, (width, gap) in enumerate(zip(self._widths, self._gaps, strict=True)):
            if left <= x < left + width:
                return number
            left += width + gap
        return None
