"""What happens, as it happens; held still while it is read."""

from typing import ClassVar

from textual.binding import Binding, BindingType

from console.model import Picture
from console.screens.listing import ListingScreen
from console.shown import Line, Listing
from console.views import events
from console.views.frame import Hint


class EventsScreen(ListingScreen):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("space,p", "hold", "Hold still", show=False)]
    keys: ClassVar[tuple[Hint, ...]] = (
        ("enter", "go to"), ("space", "hold still"), ("/", "filter"), ("f", "faults"), ("esc", "back"),
    )  # fmt: skip

    needle = ""
    still: Picture | None = None  # what is looked at while it is held

    def draw(self, picture: Picture) -> None:
        super().draw(self.still or picture)

    def listing(self, picture: Picture) -> Listing:
        return events.listing(picture, self.needle)

    def _filter(self, wanted: str) -> None:
        """Over what is known, not over its rows: of thousands a screen makes some forty."""
        self.needle = wanted
        self.redraw()

    def wanted(self) -> str:
        return self.needle

    def action_hold(self) -> None:
        self.still = self.picture if self.still is None else None
        self.redraw()

    def _note(self, said: str) -> Line:
        told = [one for one in (said, f"filter: {self.needle}" if self.needle else "") if one]
        if self.still is not None:
            more = len(self.picture.events) - len(self.still.events)
            told.insert(0, "held still" + (f", {more} more since" if more > 0 else "") + "; space goes on")
        return super()._note("; ".join(told))
