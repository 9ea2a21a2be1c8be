"""Lines of text, some of which lead somewhere: the cursor stands on those."""

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from console.shown import Line, Place
from console.views.fitting import folded
from console.widgets.moving import MOVING
from console.widgets.tones import segments, styles_of


class Lines(ScrollView, can_focus=True):
    DEFAULT_CSS = """
    Lines { height: 1fr; scrollbar-size-horizontal: 0; scrollbar-size-vertical: 1; overflow-x: hidden; }
    """
    BINDINGS: ClassVar[list[BindingType]] = MOVING

    class Chosen(Message):
        def __init__(self, place: Place) -> None:
            super().__init__()
            self.place = place

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.said: tuple[Line, ...] = ()
        self.lines: tuple[Line, ...] = ()  # the same, folded to the width
        self.cursor: int | None = None  # of a line that leads somewhere

    def show(self, lines: Sequence[Line]) -> None:
        """The cursor stays with the place that its line leads to."""
        self.said = tuple(lines)
        self._fold()

    def _fold(self) -> None:
        place, width = self.place, max(1, self.size.width - 1)
        self.lines = tuple(part for line in self.said for part in folded(line, width)) if self.size.width else self.said
        leading = self._leading()
        same = [index for index in leading if self.lines[index].leads_to == place]
        was = self.cursor or 0  # two lines may lead to one place
        self.cursor = min(same or leading[:1], key=lambda index: abs(index - was), default=None)
        self.virtual_size = Size(self.size.width, len(self.lines))
        self.refresh()

    @property
    def place(self) -> Place | None:
        return self.lines[self.cursor].leads_to if self.cursor is not None and self.cursor < len(self.lines) else None

    def _leading(self) -> list[int]:
        return [index for index, line in enumerate(self.lines) if line.leads_to is not None]

    def render_line(self, y: int) -> Strip:
        width, under, index = self.size.width, self.rich_style, self.scroll_offset.y + y
        if index >= len(self.lines):
            return Strip.blank(width, under)
        here = index == self.cursor and self.has_focus
        if here:
            text = [Segment(str(self.lines[index]), under + Style(reverse=True, bold=True))]
        else:
            text = segments(self.lines[index].cells, styles_of(self.app.theme), under)
        return Strip(text).crop(0, width).extend_cell_length(width, under)

    def on_resize(self) -> None:
        self._fold()

    def action_move(self, by: int) -> None:
        """To the next line that leads somewhere; without one on that side the text moves."""
        ahead = [index for index in self._leading() if self.cursor is not None and (index - self.cursor) * by > 0]
        if not ahead:
            self.scroll_relative(y=by, animate=False)
            return
        self._go(ahead[0] if by > 0 else ahead[-1])

    def action_page(self, by: int) -> None:
        self.scroll_relative(y=by * max(1, self.size.height - 1), animate=False)

    def action_first(self) -> None:
        self._end(0)

    def action_last(self) -> None:
        self._end(-1)

    def _end(self, which: int) -> None:
        leading = self._leading()
        if leading:
            self._go(leading[which])
        self.scroll_to(y=0 if which == 0 else self.max_scroll_y, animate=False)

    def _go(self, to: int) -> None:
        self.cursor = to
        top = self.scroll_offset.y
        if not top <= to < top + self.size.height:
            self.scroll_to(y=max(0, to - self.size.height // 2), animate=False)
        self.refresh()

    def action_choose(self) -> None:
        if self.place is not None:
            self.post_message(self.Chosen(self.place))

    def on_click(self, event: events.Click) -> None:
        index = self.scroll_offset.y + event.y
        if index < len(self.lines) and self.lines[index].leads_to is not None:
            self._go(index)
            self.action_choose()
