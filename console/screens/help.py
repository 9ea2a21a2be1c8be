"""The keys of the place that one is at."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Label

from console.views.help import Keys


class Help(ModalScreen[None]):
    DEFAULT_CSS = """
    Help { align: center middle; }
    Help > VerticalScroll { width: 76; max-width: 95%; height: auto; max-height: 95%; border: heavy $primary;
        padding: 0 1; background: $surface; }
    Help Label { width: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,enter", "dismiss", "Close", show=False),
        Binding("j", "move('scroll_down')", show=False),
        Binding("k", "move('scroll_up')", show=False),
        Binding("g", "move('scroll_home')", show=False),
        Binding("G", "move('scroll_end')", show=False),
    ]

    def __init__(self, keys: Keys) -> None:
        super().__init__()
        self.keys = keys

    def action_move(self, how: str) -> None:
        getattr(self.query_one(VerticalScroll), how)(animate=False)

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            for title, rows in self.keys:
                yield Label(title, markup=False)
                for key, what in rows:
                    yield Label(f"  {key:<14} {what}", markup=False)
