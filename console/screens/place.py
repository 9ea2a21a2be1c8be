"""A place: the frame around every screen, its command line, and how it is left."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input

from console import commands
from console.acts import Act, Verb, offered
from console.model import Picture
from console.shown import Place
from console.views import frame
from console.widgets.bar import Bar
from console.widgets.command import Command

if TYPE_CHECKING:
    from console.app import Console


class PlaceScreen(Screen[None]):
    """``draw`` is called with every new picture while it is in sight. ``keys``: what its hints tell first."""

    DEFAULT_CSS = """
    PlaceScreen { layers: below above; }
    PlaceScreen > #head { background: $panel; }
    PlaceScreen > #banner { display: none; height: auto; max-height: 2; }
    PlaceScreen > #banner.told { display: block; }
    PlaceScreen > #note, PlaceScreen > #asked { height: auto; max-height: 3; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back", show=False),
        Binding("colon", "command", "Command", show=False),
        Binding("question_mark", "help", "Help", show=False),
        Binding("q", "quit", "Quit", show=False),
    ]
    keys: ClassVar[tuple[frame.Hint, ...]] = ()
    verbs: tuple[str, ...] = ()  # what can be done here
    measures: frozenset[str] = frozenset()  # what is measured only while it is in sight

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place

    @property
    def console(self) -> "Console":
        return cast("Console", self.app)

    @property
    def picture(self) -> Picture:
        return self.console.model.picture

    def compose(self) -> ComposeResult:
        yield Bar(id="head")
        yield Bar(id="crumbs")
        yield Bar(id="banner", folds=True)
        yield from self.body()
        yield Command(id="command")
        yield Bar(id="hints")

    def body(self) -> Iterator[Widget]:
        raise NotImplementedError

    def draw(self, picture: Picture) -> None:
        raise NotImplementedError

    # -- the frame ---------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        self.redraw()

    def on_screen_resume(self) -> None:
        self.redraw()

    def redraw(self) -> None:
        if not self.query("#head"):  # it is about to be composed
            return
        picture, now = self.picture, self.console.clock()
        self._bar("head").show(frame.head(picture, now, self.console.read_only))
        self._bar("crumbs").show(frame.crumbs(self.console.way, self.size.width))
        told = frame.banner(picture, now)
        self._bar("banner").set_class(told is not None, "told")
        if told is not None:
            self._bar("banner").show(told)
        self._bar("hints").show(frame.hints(self.keys, self.offers(), self.size.width))
        self.draw(picture)

    def _bar(self, name: str) -> Bar:
        return self.query_one(f"#{name}", Bar)

    def on_resize(self) -> None:
        self.redraw()

    # -- going and acting --------------------------------------------------------------------------------

    def offers(self) -> tuple[Verb, ...]:
        return offered(self.verbs, self.picture.role, self.console.read_only)

    def whom(self, verb: Verb) -> Sequence[str]:
        """Whom a verb's key means here; nobody: there is nothing to do it to."""
        return ()

    def acted(self) -> None:
        """An act on what is here was answered."""

    def on_key(self, event) -> None:  # type: ignore[no-untyped-def] # textual.events.Key
        """The keys of verbs are those of this operator: for others they are none at all."""
        verb = next((one for one in self.offers() if one.key == event.character), None)
        if verb is None or isinstance(self.focused, Input) or "alt+" in event.key:
            return
        event.stop()
        if whom := tuple(self.whom(verb)):
            self.console.act(Act(verb, whom if verb.many else whom[:1]))

    def action_back(self) -> None:
        self.console.back()

    def action_help(self) -> None:
        self.console.help()

    def action_quit(self) -> None:
        self.console.exit()

    def action_command(self) -> None:
        self.query_one(Command).ask(
            ":", self._meant, lambda line: commands.completions(line, self.picture, self.console.read_only)
        )

    def _meant(self, line: str) -> None:
        match commands.meant(line, self.picture, self.console.read_only):
            case commands.Go(place):
                self.console.go(place)
            case commands.Do(act):
                self.console.act(act)
            case commands.Leave():
                self.console.exit()
            case commands.NotUnderstood(why):
                self.console.say(why)
