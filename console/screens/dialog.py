"""Before an act: what it would do, why, to whom in full; and nothing without a yes."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.timer import Timer
from textual.widgets import Button, Input, Label, Select

from console.acts import Act, Call, Field, Values, Wrong
from console.feed.api import Away, Refused
from console.shown import Line, Tone, clean, line, plain
from console.views.drains import planned_apart, would_block
from console.views.said import asking, before, dry_run, outcome, unanswered
from console.widgets.lines import Lines
from console.widgets.typed import Typed

if TYPE_CHECKING:
    from console.app import Console


AGAIN_S = 3.0  # between two dry runs


class Dialog(ModalScreen[bool]):
    """Ends only when it is told to: what came of the act stays to be read. Its result: whether all was answered."""

    DEFAULT_CSS = """
    Dialog { align: center middle; }
    Dialog > VerticalScroll { width: 90%; max-width: 110; height: auto; max-height: 95%; border: heavy $warning;
        padding: 0 1; background: $surface; }
    Dialog Label { width: 1fr; }
    Dialog .fields { height: auto; }
    Dialog .title { text-style: bold; }
    Dialog .field { height: 1; margin-top: 0; }
    Dialog .field Label { width: 18; }
    Dialog .field Input { width: 1fr; border: none; height: 1; padding: 0; background: $panel; }
    Dialog .field Select { width: 1fr; height: 1; }
    Dialog Lines { height: auto; max-height: 12; min-height: 1; margin: 1 0; }
    Dialog .buttons { height: 3; align: right middle; }
    Dialog Button { margin-left: 2; min-width: 8; }
    Dialog .one { dock: top; height: auto; max-height: 3; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "no", "No", show=False)]

    def __init__(self, act: Act) -> None:
        super().__init__()
        self.act = act
        self.done = self.over = False  # yes was said; everything is answered
        self._lines: tuple[Line, ...] = ()
        self._looked: Mapping[str, Any] | None = None
        self._asked_of, self._asked_at = "", 0.0
        self._asks: Timer | None = None

    @property
    def console(self) -> "Console":
        return cast("Console", self.app)

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            classes = "title one" if len(self.act.subjects) == 1 else "title"
            yield Label(clean(self.act.title, 2000), classes=classes, markup=False)
            yield Label(self.act.verb.means, markup=False)
            yield Lines(id="preview")
            with Vertical(classes="fields"):
                for one in self.act.verb.fields:
                    yield from self._field(one)
            with Horizontal(classes="buttons"):
                yield Button("No", id="no")
                yield Button(Content(self.act.yes), id="yes", variant="warning")

    def _field(self, one: Field) -> Iterator[Horizontal]:
        with Horizontal(classes="field"):
            yield Label(one.label, markup=False)  # type: ignore[misc] # Textual takes what is yielded within
            if one.choices:
                yield Select(  # type: ignore[misc]
                    [(label, value) for value, label in one.choices],
                    value=one.choices[0][0], allow_blank=False, id=one.name, compact=True,
                )  # fmt: skip
            else:
                begun = self.act.values.get(one.name, "")
                yield Typed(begun, placeholder=one.hint, id=one.name, compact=True)  # type: ignore[misc]

    def on_mount(self) -> None:
        fields = self.act.verb.fields
        empty = next((one for one in fields if not self.act.values.get(one.name)), None)
        self.query_one(f"#{empty.name if empty is not None else 'no'}").focus()
        self.set_interval(1.0, self._draw)
        self.set_interval(AGAIN_S, self._try_again)
        self.console.beside(self, self._look, "look")
        self._try()

    async def _look(self) -> None:
        if self.act.verb.look is not None:
            found = await self._asked(self.act.verb.look)
            self._looked = found if isinstance(found, Mapping) else None
            self._draw()

    @property
    def values(self) -> Values:
        typed = {one.id or "": one.value for one in self.query(Input)}
        return typed | {one.id or "": str(one.value) for one in self.query(Select)}

    # -- what it would do --------------------------------------------------------------------------------

    @on(Input.Changed)
    @on(Select.Changed)
    def _changed(self) -> None:
        if self._asks is not None:
            self._asks.stop()
        self._asks = self.console.after_rest(self, self._try)

    def _try_again(self) -> None:
        """What it would do changes while somebody decides."""
        if self.act.verb.dry is not None and not any(one.group == "dry" and one.is_running for one in self.workers):
            self._try()

    def _try(self) -> None:
        if self.done:
            return
        try:
            calls = self.act.dry_runs(self.values)
        except Wrong as wrong:
            self._show((line(plain(str(wrong), Tone.BAD)),))
            return
        if calls:
            self.console.beside(self, partial(self._dry, calls), "dry")
        else:
            self._show(())

    async def _dry(self, calls: tuple[Call, ...]) -> None:
        lines: list[Line] = []
        planned: list[Mapping[str, Any]] = []
        for subject, call in zip(self.act.subjects, calls, strict=True):
            answer = await self._asked(call)
            lines += dry_run(subject, answer, self._width)
            if isinstance(answer, Mapping):
                planned.append(answer)
            if not self._lines:  # later ones take the place of what is shown, when they are whole
                self._show((*lines, *planned_apart(planned)))
        self._show((*lines, *planned_apart(planned)))
        self.query_one("#yes", Button).variant = "error" if would_block(planned) else "warning"

    async def _asked(self, call: Call) -> Mapping[str, Any] | Refused | Away:
        try:
            return await self.console.ask(call.method, call.path, call.params, call.body)
        except (Refused, Away) as error:
            return error

    def _show(self, lines: tuple[Line, ...]) -> None:
        self._lines = lines
        self._draw()

    def _draw(self) -> None:
        """What is known so far, and what that leaves open."""
        if not self.done:
            silent_s = self.console.model.picture.link.unanswered_s(self.console.clock())
            open_ = (*self._before(), *unanswered(silent_s, self._width))
        elif self.over:
            open_ = ()
        else:
            open_ = asking(self._asked_of, self.console.clock() - self._asked_at, self._width)
        shown = (*self._lines, *open_)
        preview = self.query_one("#preview", Lines)
        preview.show(shown)
        preview.styles.height = max(1, min(12, len(shown)))

    def _before(self) -> Iterator[Line]:
        picture, verb = self.console.model.picture, self.act.verb.name
        for subject in self.act.subjects[:1]:
            yield from before(verb, subject, picture, self.values, self._looked, self._width)

    @property
    def _width(self) -> int:
        """Beside the border, and a scrollbar that may come."""
        return max(28, min(104, self.size.width * 9 // 10 - 7))

    # -- yes and no --------------------------------------------------------------------------------------

    @on(Button.Pressed, "#no")
    def action_no(self) -> None:
        if self.done and not self.over:
            whom = f" for {self._asked_of}" if self._asked_of else ""
            self.console.say(f"{self.act.verb.label} was asked{whom} and not answered: look whether it was done")
        self.dismiss(self.over)

    @on(Button.Pressed, "#yes")
    def _yes(self) -> None:
        try:
            calls = self.act.calls(self.values)
        except Wrong as wrong:
            self._show((line(plain(str(wrong), Tone.BAD)),))
            return
        self.done = True
        self.query_one("#yes", Button).disabled = True
        self.query_one("#no", Button).label = "Stop here"
        self.query_one("#preview").focus()  # one Enter more than was meant stops nothing
        self.console.beside(self, partial(self._do, calls), "do")

    async def _do(self, calls: tuple[Call, ...]) -> None:
        """One after another; one that is refused does not keep the others from it, an address that is away does."""
        self.workers.cancel_group(self, "dry")
        lines: list[Line] = []
        for subject, call in zip(self.act.subjects, calls, strict=True):
            self._asked_of, self._asked_at = subject, self.console.clock()
            self._show(tuple(lines))
            answer = await self._asked(call)
            lines += outcome(self.act.verb.name, subject, answer, self._width)
            if isinstance(answer, Away):
                break
        self.over = True
        self._show(tuple(lines))
        self.query_one("#no", Button).label = "Close"
        self.query_one("#no").focus()
        self.console.model.outdated = True

    @on(Input.Submitted)
    def _next(self) -> None:
        self.focus_next()
