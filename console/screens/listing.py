"""A place with a table: sorted, filtered, marked, and a pane for the row under the cursor."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

from attrs import evolve
from textual.binding import Binding, BindingType
from textual.widget import Widget

from console.acts import Verb
from console.arranged import Sight
from console.feed.api import Away, Refused
from console.model import Picture
from console.screens.place import PlaceScreen
from console.shown import Line, Listing, Place, Tone, line, plain
from console.views.frame import MARKING, Hint
from console.views.view import View
from console.widgets.bar import Bar
from console.widgets.command import Command
from console.widgets.lines import Lines
from console.widgets.table import Table

AGAIN_S = 5.0


class ListingScreen(PlaceScreen):
    DEFAULT_CSS = """
    ListingScreen > #note { display: none; color: $warning; }
    ListingScreen > #note.told { display: block; }
    ListingScreen > #detail { height: 9; border-top: solid $panel; }
    ListingScreen.-wide > #detail { height: 14; }
    ListingScreen.hidden > #detail, ListingScreen.-low > #detail { display: none; }
    """
    VERTICAL_BREAKPOINTS = [(0, "-low"), (14, "-high")]  # rows before the pane
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (120, "-wide")]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", show=False),
        Binding("f", "faults", "Faults only", show=False),
        Binding("d", "detail", "Detail", show=False),
        Binding("p", "placement", "Placement", show=False),
        Binding("tab", "pane", "Pane", show=False),
    ]
    keys: ClassVar[tuple[Hint, ...]] = (
        ("enter", "open"), ("/", "filter"), ("f", "faults"), MARKING, ("esc", "back"), (":", "command"),
    )  # fmt: skip

    def __init__(self, place: Place, view: View) -> None:
        super().__init__(place)
        self.view = view
        self.measures, self.verbs = view.watch, view.acts
        self.asked: dict[str, Any] = {}

    def body(self) -> Iterator[Widget]:
        yield Bar(id="note", folds=True)
        yield Table(Sight(self.view.sort, self.view.falling), self.view.newest_last, bool(self.offers()), id="table")
        yield Lines(id="detail")

    def on_mount(self) -> None:
        super().on_mount()
        self.table.focus()
        self.set_interval(AGAIN_S, self._ask)

    @property
    def table(self) -> Table:
        return self.query_one("#table", Table)

    # -- drawing -----------------------------------------------------------------------------------------

    def draw(self, picture: Picture) -> None:
        listing = self.listing(picture)
        self._note_told(self._note(listing.note))
        self.table.show(listing)
        self._detail(picture)

    def listing(self, picture: Picture) -> Listing:
        return self.view.listing(picture, self.place.subject)

    def _note_told(self, note: Line) -> None:
        bar = self.query_one("#note", Bar)
        bar.set_class(bool(note.cells), "told")
        bar.show(note)

    def _note(self, said: str) -> Line:
        sight = self.table.sight
        told = [said] if said else []
        if self.table.marks:
            told.append(f"{len(self.table.marks)} marked: acts are about these")
        if sight.faults_only:
            told.append("faults only")
        if sight.wanted:
            told.append(f"filter: {sight.wanted}")
        return line(plain("; ".join(told), Tone.WARN)) if told else Line(())

    def _detail(self, picture: Picture) -> None:
        key, subject, width = self.table.key, self.place.subject, self.size.width - 1
        if key is not None:
            lines = self.view.detail(picture, subject, key, self.asked, width)
        else:
            lines = self.view.about(picture, "", subject, {}, width)
        self.query_one("#detail", Lines).show(lines)

    def on_table_moved(self, event: Table.Moved) -> None:
        event.stop()
        self.asked = {}
        self._detail(self.picture)
        self.console.after_rest(self, lambda: self._ask_if(event.row.key if event.row else None))

    def _ask_if(self, key: str | None) -> None:
        if key is not None and key == self.table.key:
            self._ask()

    def _ask(self) -> None:
        if self.is_current and self.table.key is not None:
            self.console.beside(self, partial(self._answers, self.table.key), "asked")

    async def _answers(self, key: str) -> None:
        """What the pane says besides: a refusal is said in its place, and one that is away shows in the banner."""
        for name, question in self.view.asks(self.place.subject, key).items():
            try:
                answer = await self.console.ask("GET", question.path, question.params)
            except (Refused, Away):
                continue
            if key == self.table.key:
                self.asked = {**self.asked, name: answer}
                self._detail(self.picture)

    # -- keys --------------------------------------------------------------------------------------------

    def on_table_chosen(self, event: Table.Chosen) -> None:
        event.stop()
        if event.row.leads_to is not None:
            self.console.go(event.row.leads_to)

    def on_lines_chosen(self, event: Lines.Chosen) -> None:
        event.stop()
        self.console.go(event.place)

    def action_filter(self) -> None:
        self.query_one(Command).ask("/", self._filter, typed=self._filter, begun=self.wanted())

    def wanted(self) -> str:
        return self.table.sight.wanted

    def _filter(self, wanted: str) -> None:
        self.table.look(evolve(self.table.sight, wanted=wanted))
        self.redraw()

    def action_faults(self) -> None:
        self.table.look(evolve(self.table.sight, faults_only=not self.table.sight.faults_only))
        self.redraw()

    def acted(self) -> None:
        self.table.marks.clear()
        self.redraw()

    def action_detail(self) -> None:
        self.toggle_class("hidden")

    def action_pane(self) -> None:
        (self.query_one("#detail", Lines) if self.table.has_focus else self.table).focus()

    def action_placement(self) -> None:
        if self.table.row is not None and self.view.kind in ("models", "replicas", "gpu", "replica"):
            subject = self.place.subject if self.view.kind == "replica" else self.table.row.key
            self.console.go(Place("placement", subject))

    def action_back(self) -> None:
        """What hides rows goes first."""
        if self.wanted() or self.table.sight.faults_only:
            self._filter("")
            self.table.look(evolve(self.table.sight, faults_only=False))
            self.redraw()
        elif self.table.marks:
            self.table.marks.clear()
            self.table.refresh()
        else:
            super().action_back()

    def whom(self, verb: Verb) -> Sequence[str]:
        return tuple(dict.fromkeys(self.view.subject_of(self.place.subject, row.key) for row in self.table.meant))
