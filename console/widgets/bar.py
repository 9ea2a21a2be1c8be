"""One line of the frame."""

from rich.text import Text
from textual.widget import Widget

from console.shown import Line
from console.widgets.tones import styles_of


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
        styles = styles_of(self.app.theme)
        for cell in self.line.cells:
            text.append(cell.text, styles[cell.tone])
        return text
