"""One line of the frame."""

from rich.text import Text
from textual.widget import Widget

from console.shown import Line
from console.widgets.tones import STYLES


class Bar(Widget):
    DEFAULT_CSS = """
    Bar { height: 1; width: 1fr; }
    """

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self.line = Line(())

    def show(self, line: Line) -> None:
        if line != self.line:
            self.line = line
            self.refresh()

    def render(self) -> Text:
        text = Text(no_wrap=True, overflow="ellipsis")
        for cell in self.line.cells:
            text.append(cell.text, STYLES[cell.tone])
        return text
