"""Requests: those that run, and with a key those that were slow or failed."""

from typing import ClassVar

from textual.binding import Binding, BindingType

from console.screens.listing import ListingScreen
from console.shown import Place
from console.views.frame import Hint


class RequestsScreen(ListingScreen):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("r", "others", "The others", show=False)]
    keys: ClassVar[tuple[Hint, ...]] = (
        ("r", "recent or running"), ("/", "filter"), ("space", "mark"), ("tab", "pane"), ("esc", "back"),
    )  # fmt: skip

    def action_others(self) -> None:
        kind = "recent" if self.place.kind == "requests" else "requests"
        self.console.replace(Place(kind, self.place.subject))
