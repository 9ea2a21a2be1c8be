"""Requests: those that run, and with a key those that were slow or failed, and all that have ended."""

from typing import ClassVar

from textual.binding import Binding, BindingType

from console.screens.listing import ListingScreen
from console.shown import Place
from console.views.frame import Hint

NEXT = {"requests": "recent", "recent": "latest", "latest": "requests"}


class RequestsScreen(ListingScreen):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("r", "others", "The others", show=False)]
    keys: ClassVar[tuple[Hint, ...]] = (
        ("r", "running, failed, all"), ("/", "filter"), ("space", "mark"), ("tab", "pane"), ("esc", "back"),
    )  # fmt: skip

    def action_others(self) -> None:
        self.console.replace(Place(NEXT[self.place.kind], self.place.subject))
