"""A place that is read: the overview, who leads, and other things said in lines."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from textual.widget import Widget

from console.acts import Verb
from console.feed.api import Away, Refused
from console.model import Picture
from console.screens.place import PlaceScreen
from console.shown import Line, Place, Tone, line, plain
from console.views.frame import Hint
from console.views.view import Question
from console.widgets.lines import Lines

AGAIN_S = 3.0
Lined = Callable[[Picture, float, int, Mapping[str, Any]], tuple[Line, ...]]


class ReadingScreen(PlaceScreen):
    """``lines``: of the picture, the console's clock, the width and what ``asks`` brought."""

    keys: ClassVar[tuple[Hint, ...]] = (("enter", "open"), ("esc", "back"), (":", "command"))

    def __init__(
        self, place: Place, lines: Lined, asks: Mapping[str, Question] | None = None, verbs: Sequence[str] = ()
    ) -> None:
        super().__init__(place)
        self.lines, self.asks, self.asked = lines, asks or {}, dict[str, Any]()
        self.verbs = tuple(verbs)

    def body(self) -> Iterator[Widget]:
        yield Lines(id="lines")

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one(Lines).focus()
        if self.asks:
            self._ask()
            self.set_interval(AGAIN_S, self._ask)

    def draw(self, picture: Picture) -> None:
        shown = self.lines(picture, self.console.clock(), max(20, self.size.width - 1), self.asked)
        self.query_one(Lines).show(shown)

    def _ask(self) -> None:
        if self.is_current:
            self.console.beside(self, self._answers, "asked")

    async def _answers(self) -> None:
        for name, question in self.asks.items():
            try:
                self.asked[name] = await self.console.ask("GET", question.path, question.params)
            except (Refused, Away) as error:
                self.asked.setdefault(name, {"verdict": str(error)})
        self.redraw()

    def whom(self, verb: Verb) -> Sequence[str]:
        return (self.place.subject,)

    def on_lines_chosen(self, event: Lines.Chosen) -> None:
        event.stop()
        self.console.go(event.place)


def nothing_yet() -> Line:
    return line(plain("asking …", Tone.BUSY))
