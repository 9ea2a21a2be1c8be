"""A conversation on a stream: who sends and who receives, and how it ends.

One task receives and hands on, one sends what there is to send, so nobody else ever waits in the stream.
A cancelled or stalled send breaks a trio.SSLStream both ways (python-trio/trio#198): the stream is closed then,
and whoever wants to go on makes a new one.
"""

from collections.abc import Callable

import trio
from attrs import define, field

LINGER_S = 1.0  # after our last byte: until the peer has read it and left
GONE = (trio.BrokenResourceError, trio.ClosedResourceError)
PIECE = 64 * 1024


@define(eq=False)
class Duplex:
    """``heard`` gets bytes as they come; ``outgoing`` gives bytes to send, or none for now. Neither may wait.

    ``woken`` says that ``outgoing`` may have something; it is asked after every ``heard`` anyway.
    """

    stream: trio.abc.Stream
    heard: Callable[[bytes], None]
    outgoing: Callable[[], bytes]
    stall_s: float  # our bytes must be taken within
    _woken: trio.Event = field(factory=trio.Event, init=False)
    _finishing: bool = field(default=False, init=False)
    _why: str = field(default="", init=False)
    _scope: trio.CancelScope = field(factory=trio.CancelScope, init=False)

    async def run(self) -> str:
        """Until it is over; then the stream is closed. The reason why, in words."""
        try:
            with self._scope:
                async with trio.open_nursery() as both:
                    both.start_soon(self._send)
                    both.start_soon(self._receive)
        finally:
            await self._close()
        return self._why or "ended"

    def wake(self) -> None:
        self._woken.set()

    def finish(self, why: str) -> None:
        """What is to be sent is still sent, then it is over."""
        if not self._finishing:
            self._finishing = True
            self._say(why)
            self._scope.deadline = trio.current_time() + self.stall_s
            self._woken.set()

    def cut(self, why: str) -> None:
        """Over at once."""
        self._say(why)
        self._scope.cancel(reason=why)

    async def _receive(self) -> None:
        try:
            while data := bytes(await self.stream.receive_some(PIECE)):
                if not self._finishing:
                    self.heard(data)
                    self._woken.set()
        except GONE as error:
            self.cut(f"connection broken: {error.__cause__ or error or 'closed'}")
        else:
            self.cut("the other side closed the connection")

    async def _send(self) -> None:
        while True:
            self._woken = trio.Event()
            if data := self.outgoing():
                await self._send_one(data)
            elif self._finishing:
                # Closing over bytes that nobody read would take back what we sent last.
                self._scope.deadline = min(self._scope.deadline, trio.current_time() + LINGER_S)
                return
            else:
                await self._woken.wait()

    async def _send_one(self, data: bytes) -> None:
        with trio.move_on_after(self.stall_s) as stall:
            try:
                await self.stream.send_all(data)
            except GONE as error:
                self.cut(f"connection broken: {error.__cause__ or error or 'closed'}")
        if stall.cancelled_caught:
            self.cut(f"nothing was taken for {self.stall_s:g} s")

    async def _close(self) -> None:
        if self._finishing and not self._scope.cancel_called:
            with trio.move_on_after(LINGER_S, shield=True):
                await self.stream.aclose()
        await trio.aclose_forcefully(self.stream)

    def _say(self, why: str) -> None:
        self._why = self._why or why
