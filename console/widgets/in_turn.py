"""Keys one after another: each is through, with all that it changed, before the next is looked at.

Textual hands a key to the widget that has the focus when it comes, and obeys its binding only once it has come through
to the app. Of keys that come in one piece, as over a slow link, a later one would overtake an earlier one, and mean the
row that the cursor was on before.
"""

import time
from collections import deque

from textual import events
from textual.app import App
from textual.message import Message
from textual.message_pump import MessagePump

WAITING_MAX = 4096  # keys; what is typed beyond that is lost
LOST_S = 1.0  # a key whose way was lost, with the widget that it went to, is not waited for any longer


class CameThrough(Message):
    """Goes the way of a key, behind it; on the second lap behind what the key has begun: a screen, another focus."""

    def __init__(self, lap: int, turn: int) -> None:
        super().__init__()
        self.lap, self.turn = lap, turn


class InTurn(App[str]):
    """What is typed and pasted, in the order it came."""

    def __init__(self) -> None:
        super().__init__()
        self._typed: deque[events.Key | events.Paste] = deque()
        self._turn = 0
        self._since: float | None = None  # a key is under way

    async def on_event(self, event: events.Event) -> None:
        if not isinstance(event, events.Key | events.Paste) or event.is_forwarded:
            await super().on_event(event)
            return
        if len(self._typed) < WAITING_MAX:
            self._typed.append(event)
        if self._since is None:
            await self._next()

    async def _next(self) -> None:
        """The next key goes to whoever has the focus now."""
        self._since = None
        if not self._typed:
            return
        self._since, self._turn = time.monotonic(), self._turn + 1
        target: MessagePump = self.focused or self.screen
        await super().on_event(self._typed.popleft())
        self._send_behind(target, 1)

    def _send_behind(self, target: MessagePump, lap: int) -> None:
        if not target.post_message(CameThrough(lap, self._turn)):  # it is being closed
            self.post_message(CameThrough(lap, self._turn))

    async def on_came_through(self, message: CameThrough) -> None:
        if message.turn != self._turn:
            return  # it was given up
        if message.lap == 1:
            self._send_behind(self.screen, 2)
        else:
            await self._next()

    @property
    def at_rest(self) -> bool:
        """Everything that was typed has come through."""
        return self._since is None

    async def give_up_what_is_lost(self) -> None:
        """Called every now and then."""
        if self._since is not None and time.monotonic() - self._since > LOST_S:
            await self._next()
