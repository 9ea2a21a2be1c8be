"""One line of the frame; one that folds may take more."""

from rich.text import Text
from textual.widget import Widget

from console.shown import Line
from console.widgets.tones import styles_of


class Bar(Widget):
    DEFAULT_CSS = """
    Bar { height: 1; width: 1fr; }
    """

    def __init__(self, id: str, folds: bool = False) -> None:
        super().__init__(id=id)
        self._folds = folds
        self.line = Line(())

    def show(self, line: Line) -> None:
        if line != self.line:
            self.line = line
            self.refresh(layout=self._folds)

    def render(self) -> Text:
        text = Text(no_wrap=not self._folds, overflow="ellipsis")
        styles = styles_of(self.app.theme)
        for cell in self.line.cells:
            text.append(cell.text, styles[cell.tone])
        return text
