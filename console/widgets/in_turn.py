"""What is typed, pasted and clicked, one after another: each is through, with all that it changed, before the next.

Textual hands a key to the widget that has the focus when it comes, and obeys its binding only once it has come through
to the app. Of keys that come in one piece, as over a slow link, a later one would overtake an earlier one, and mean the
row that the cursor was on before.
"""

import time
from collections import deque

from textual import events
from textual.app import App
from textual.errors import NoWidget
from textual.message import Message
from textual.message_pump import MessagePump

from console.widgets.escape import as_typed

WAITING_MAX = 4096  # keys and clicks; what comes beyond that is lost
LOST_S = 1.0  # a key whose way was lost, with the widget that it went to, is not waited for any longer
# Behind the key; behind what the widget that had it told; behind what that began: a screen, another focus.
LAPS = 3


class CameThrough(Message):
    """Goes the way of a key, behind it."""

    def __init__(self, lap: int, turn: int, target: MessagePump) -> None:
        super().__init__()
        self.lap, self.turn, self.target = lap, turn, target


class InTurn(App[str]):
    def __init__(self) -> None:
        super().__init__()
        self._came: deque[events.Event] = deque()
        self._turn = 0
        self._since: float | None = None  # one is under way

    async def on_event(self, event: events.Event) -> None:
        if not isinstance(event, events.InputEvent | events.Paste) or event.is_forwarded:
            await super().on_event(event)
            return
        if isinstance(event, events.MouseMove) and self._came and isinstance(self._came[-1], events.MouseMove):
            self._came[-1] = event
        elif len(self._came) < WAITING_MAX:
            self._came.append(as_typed(event))
        if self._since is None:
            await self._next()

    async def _next(self) -> None:
        """The next key goes to whoever has the focus now."""
        self._since = None
        if not self._came:
            return
        self._since, self._turn = time.monotonic(), self._turn + 1
        event = self._came.popleft()
        target = self._goes_to(event)
        await super().on_event(event)
        self._send_behind(target, 1)

    def _goes_to(self, event: events.Event) -> MessagePump:
        if not isinstance(event, events.MouseEvent):
            return self.focused or self.screen
        try:
            return self.mouse_captured or self.get_widget_at(int(event.x), int(event.y))[0]
        except NoWidget:
            return self.screen

    def _send_behind(self, target: MessagePump, lap: int) -> None:
        message = CameThrough(lap, self._turn, target)
        if not target.post_message(message):  # it is being closed
            self.post_message(message)

    async def on_came_through(self, message: CameThrough) -> None:
        if message.turn != self._turn:
            return  # it was given up
        if message.lap == LAPS:
            await self._next()
        else:
            self._send_behind(message.target if message.lap + 1 < LAPS else self.screen, message.lap + 1)

    @property
    def at_rest(self) -> bool:
        """Everything that was typed has come through."""
        return self._since is None

    async def give_up_what_is_lost(self) -> None:
        """Called every now and then."""
        if self._since is not None and time.monotonic() - self._since > LOST_S:
            await self._next()
