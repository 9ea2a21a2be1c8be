"""The console: a model that follows a cluster, and a way of places through it.

Nothing is drawn while nothing changes, and a flood of changes is drawn at most ``DRAWN_S`` apart.
"""

import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, ClassVar, cast

from textual.binding import Binding, BindingType
from textual.dom import DOMNode
from textual.message_pump import MessagePump
from textual.timer import Timer
from textual.worker import WorkerFailed

from console.acts import Act, may_act
from console.feed.api import AdminApi, Where
from console.feed.following import Following, Over
from console.model import Model
from console.places import screen_of, understood
from console.screens.dialog import Dialog
from console.screens.help import Help
from console.screens.place import PlaceScreen
from console.shown import Place
from console.views.help import keys
from console.widgets.escape import take_apart
from console.widgets.in_turn import InTurn
from console.widgets.tones import HIGH_CONTRAST, THEMES

DRAWN_S = 0.25
RESTS_S = 0.3  # a cursor that only passes by, and a word that is not finished, ask nothing
DEPTH_MAX = 20  # places that esc goes back through
START = Place("overview")
USUAL_THEME = "dark"
Ask = Callable[..., Awaitable[Mapping[str, Any]]]  # method, path, params, body; raises Refused, Away


class Console(InTurn):
    """Its result is why it ended: empty where the operator left."""

    ENABLE_COMMAND_PALETTE = False
    TITLE = "llmgw"
    CSS = "ToastRack { margin-bottom: 2; }"  # what is typed stays in sight
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c,ctrl+q", "quit", "Quit", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", "Suspend", show=False, priority=True),
    ]

    def __init__(
        self,
        model: Model,
        ask: Ask,
        follow: Callable[[], Awaitable[None]],
        measured: set[str],
        read_only: bool = False,
        theme: str = USUAL_THEME,
        clock: Callable[[], float] = time.monotonic,
        rests_s: float = RESTS_S,
    ) -> None:
        """``follow`` keeps ``model`` true until it is cancelled; ``measured``: what it measures besides.

        ``theme``: one of THEMES.
        """
        super().__init__()
        self.animation_level = "none"  # over SSH each frame of one is a delay
        self.model, self.ask, self.read_only, self.clock = model, ask, read_only, clock
        self._follow, self._measured, self._wanted_theme = follow, measured, theme
        self._drawn, self._rests_s = -1, rests_s

    def on_mount(self) -> None:
        self.register_theme(HIGH_CONTRAST)
        self.theme = THEMES[self._wanted_theme]
        self.push_screen(screen_of(START))
        self.beside(self, self._until_over, "following")
        self.set_interval(DRAWN_S, self._draw)
        self.set_interval(1.0, self.give_up_what_is_lost)

    async def _until_over(self) -> None:
        try:
            await self._follow()
        except Over as over:
            self.exit(str(over), return_code=1)

    def _draw(self) -> None:
        """The place in sight, also behind a dialog: what it says must not grow old while somebody decides."""
        places = [screen for screen in self.screen_stack if isinstance(screen, PlaceScreen)]
        if places and self._stale():
            self._drawn = self.model.version
            places[-1].redraw()

    def _stale(self) -> bool:
        """Also while nobody answers: how long it has been is told."""
        picture = self.model.picture
        waits = not picture.known or picture.link.unanswered_s(self.clock()) is not None
        return waits or self._drawn != self.model.version

    def beside(self, of: DOMNode, work: Callable[[], Coroutine[Any, Any, None]], group: str) -> None:
        """Begins ``work`` while ``of`` is there; what it does already in that group ends."""
        of.run_worker(cast(Any, work), exclusive=True, group=group)

    def after_rest(self, of: MessagePump, what: Callable[[], None]) -> Timer | None:
        """``what``, unless it is stopped before the operator has rested for a moment."""
        if self._rests_s:
            return of.set_timer(self._rests_s, what)
        what()
        return None

    def _fatal_error(self) -> None:
        """One line instead of Textual's report, which shows every value there was; LLMGW_DEBUG=1 shows it."""
        if os.environ.get("LLMGW_DEBUG"):
            super()._fatal_error()
            return
        failed = self._exception
        error = failed.error if isinstance(failed, WorkerFailed) else failed  # what failed, not where
        self.exit(f"the console failed: {type(error).__name__}: {error}; LLMGW_DEBUG=1 shows where", return_code=1)

    # -- the way -----------------------------------------------------------------------------------------

    @property
    def way(self) -> Sequence[Place]:
        return [screen.place for screen in self.screen_stack if isinstance(screen, PlaceScreen)]

    def go(self, place: Place) -> None:
        """To where one came from before on this way, else one step further."""
        place = understood(place, self.model.picture)
        if place == START:
            self._back_to(1)
        elif place.kind == "help":
            self.help()
        elif place in self.way:
            self._back_to(list(self.way).index(place) + 1)
        else:
            if len(self.way) >= DEPTH_MAX:
                self._back_to(1)
            self.push_screen(screen_of(place))
        self._watch()

    def replace(self, place: Place) -> None:
        """Another look at the same thing: esc goes back to where one came from."""
        self.switch_screen(screen_of(place))
        self._watch()

    def _back_to(self, depth: int) -> None:
        while len(self.way) > depth:
            self.pop_screen()

    def back(self) -> None:
        if len(self.way) > 1:
            self.pop_screen()
            self._watch()

    def _watch(self) -> None:
        """Only what is in sight is measured."""
        top = self._top()
        self._measured.clear()
        self._measured.update(top.measures if top is not None else ())

    def _top(self) -> PlaceScreen | None:
        found = [screen for screen in self.screen_stack if isinstance(screen, PlaceScreen)]
        return found[-1] if found else None

    # -- what is said and done ---------------------------------------------------------------------------

    def act(self, act: Act) -> None:
        self.push_screen(Dialog(act), self._acted)

    def _acted(self, over: bool | None) -> None:
        """What was marked for it has had it; a mark that stays would be meant by the next act too."""
        top = self._top()
        if over and top is not None:
            top.acted()

    def help(self) -> None:
        top = self._top()
        if top is not None and not isinstance(self.screen, Help):
            acts = may_act(self.model.picture.role, self.read_only)
            self.push_screen(Help(keys(top.place.kind, bool(top.query("#table")), top.offers(), acts)))

    def say(self, what: str) -> None:
        self.notify(what, severity="warning", markup=False)


def run(where: Where, read_only: bool = False, theme: str = USUAL_THEME) -> str:
    """Until the operator leaves; what it returns is why it ended by itself, if it did."""
    take_apart()
    api, model = AdminApi(where.urls, where.token, where.ca, where.also_ca), Model()
    following = Following(api, model, _nobody, time.monotonic)
    return Console(model, api.ask, following.run, following.watching, read_only, theme).run() or ""


def _nobody() -> None:
    """Whom news is told to: it is drawn with the next beat, a thousand events as one picture."""
