"""A line to type into at the foot: a command, or what a table is filtered by."""

from collections.abc import Callable, Sequence

from textual import events
from textual.widgets import Input

Completions = Callable[[str], Sequence[str]]


class Command(Input):
    """Hidden until ``ask``. Tab completes, again goes on to the next; Enter says it; Escape takes it back."""

    DEFAULT_CSS = """
    Command { display: none; height: 1; border: none; padding: 0; background: $surface; }
    Command:focus { border: none; }
    """

    def __init__(self, id: str) -> None:
        super().__init__(id=id, compact=True, select_on_focus=False)
        self._sign = ""
        self._said: Callable[[str], None] = lambda _: None
        self._typed: Callable[[str], None] = lambda _: None
        self._complete: Completions = lambda _: ()
        self._offered: list[str] = []
        self._had = False  # something was typed

    def ask(
        self,
        sign: str,
        said: Callable[[str], None],
        complete: Completions = lambda _: (),
        typed: Callable[[str], None] = lambda _: None,
        begun: str = "",
    ) -> None:
        """``typed`` is called with every key, ``said`` once; both without the sign."""
        self._sign, self._said, self._complete, self._typed, self._offered = sign, said, complete, typed, []
        self._had = bool(begun)
        self.value = sign + begun
        self.display = True
        self.screen.set_focus(self)  # at once: the next key may be there already
        self.cursor_position = len(self.value)

    def end(self) -> None:
        self.display = False
        self.screen.focus_next()

    @property
    def said(self) -> str:
        return self.value.removeprefix(self._sign)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        if not self.display:
            return
        if self.value.startswith(self._sign):
            self._typed(self.said)
        elif self._had:  # everything was taken away at once: the line stays, and is empty
            self.value = self._sign + ("" if self._sign.startswith(self.value) else self.value)
            self.cursor_position = len(self.value)
        else:
            self.end()
            self._typed("")
        self._had = bool(self.value.removeprefix(self._sign))

    def on_key(self, event: events.Key) -> None:
        if event.key == "enter":  # here, and not once it has come through: what is typed behind it is no part of it
            said = self.said
            self._ends(event)
            self._said(said)
        elif event.key == "escape":
            self._ends(event)
            self._typed("")
        elif event.key in ("tab", "shift+tab"):
            event.stop()
            event.prevent_default()
            self._go_on(1 if event.key == "tab" else -1)
        else:
            self._offered = []

    def _ends(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()
        self.end()

    def _go_on(self, by: int) -> None:
        if not self._offered:
            self._offered = list(self._complete(self.said))
            at = 0 if by > 0 else -1
        else:
            at = (self._offered.index(self.said) + by) % len(self._offered) if self.said in self._offered else 0
        if self._offered:
            self.value = self._sign + self._offered[at]
            self.cursor_position = len(self.value)
