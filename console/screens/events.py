"""What happens, as it happens; held still while it is read."""

from typing import ClassVar

from textual.binding import Binding, BindingType

from console.model import Picture
from console.screens.listing import ListingScreen
from console.shown import Line, Listing, Tone, line, plain
from console.views import events
from console.views.frame import Hint


class EventsScreen(ListingScreen):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("space,p", "hold", "Hold still", show=False)]
    keys: ClassVar[tuple[Hint, ...]] = (
        ("enter", "go to"), ("space", "hold still"), ("/", "filter"), ("f", "faults"), ("esc", "back"),
    )  # fmt: skip

    needle = ""

    def listing(self, picture: Picture) -> Listing:
        return events.listing(picture, self.needle)

    def _filter(self, wanted: str) -> None:
        """Over what is known, not over its rows: of thousands a screen makes some forty."""
        self.needle, self.held = wanted, False
        self.redraw()

    def wanted(self) -> str:
        return self.needle

    def action_hold(self) -> None:
        self.held = not self.held
        self.redraw()

    def _note(self, said: str) -> Line:
        if not self.held:
            told = [one for one in (said, f"filter: {self.needle}" if self.needle else "") if one]
            return super()._note("; ".join(told))
        more = len(self.picture.events) - len(self.table.listing.rows)
        news = f", {more} more since" if more > 0 else ""
        return line(plain(f"held still{news}; space goes on", Tone.WARN))
