"""An in-memory connection with the narrow face of a socket, for tests and simulation.

Both ends live in one Trio loop; a bounded buffer each way gives backpressure, closing one end is a
hang-up at the other.
"""

from collections.abc import Callable

import trio
from attrs import define, field

from llmgw.tasks.streams import Broken, Interrupted, Stalled


@define(eq=False)
class _Pipe:
    """One direction."""

    room: int
    data: bytearray = field(factory=bytearray)
    ended: bool = False  # the writer has finished: end-of-file behind the data
    broken: bool = False  # either end has closed: writing fails
    changed: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot)

    def wake(self) -> None:
        self.changed.unpark_all()


@define(eq=False)
class MemoryStream:
    _in: _Pipe = field(alias="inward")  # "in" is no name for an argument
    _out: _Pipe
    peer: str = "memory"
    write_stall: float = 30.0
    shielded: bool = True  # as a socket's: off where a cancel ends the connection anyway
    on_hangup: Callable[[], None] | None = None
    gone: bool = False
    closed: bool = False
    _other: "MemoryStream | None" = None
    _interrupted: bool = False

    async def receive(self, most: int = 65536) -> bytes:
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._in.data:
            if self.closed:
                raise Broken("closed")
            if self._in.broken and not self._in.ended:
                raise Broken("reset")
            if self._in.ended:
                return b""
            if self._interrupted:
                self._interrupted = False
                raise Interrupted
            await self._in.changed.park()
        data = bytes(self._in.data[:most])
        del self._in.data[:most]
        self._in.wake()
        await trio.lowlevel.cancel_shielded_checkpoint()
        return data

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            if self._out.broken or self.closed:
                raise Broken("the peer left")
            room = self._out.room - len(self._out.data)
            if room > 0:
                self._out.data += rest[:room]
                rest = rest[room:]
                self._out.wake()
                continue
            with trio.CancelScope(shield=self.shielded, deadline=trio.current_time() + self.write_stall) as scope:
                await self._out.changed.park()
            if scope.cancelled_caught:
                raise Stalled(f"no byte taken for {self.write_stall:g} s")
        await trio.lowlevel.cancel_shielded_checkpoint()

    def interrupt(self) -> None:
        self._interrupted = True
        self._in.wake()

    def finish_sending(self) -> None:
        self._out.ended = True
        self._out.wake()
        self._tell_other()

    def reset(self) -> None:
        """As a TCP reset: what was sent and not read is lost."""
        self._out.broken = True
        self._out.data.clear()
        self._close()

    def close(self) -> None:
        if not self.closed:
            self._out.ended = True
            self._close()

    def _close(self) -> None:
        self.closed = self.gone = True
        self._in.broken = self._out.broken = True
        self._in.wake()
        self._out.wake()
        self._tell_other()

    def _tell_other(self) -> None:
        other = self._other
        if other is not None and not other.gone:
            other.gone = True
            if other.on_hangup is not None:
                other.on_hangup()


def memory_pair(room: int = 65536) -> tuple[MemoryStream, MemoryStream]:
    """Two ends of one connection; ``room`` bytes fit each way before a sender waits."""
    up, down = _Pipe(room), _Pipe(room)
    one, other = MemoryStream(up, down), MemoryStream(down, up)
    one._other, other._other = other, one
    return one, other


@define(eq=False)
class MemoryListener:
    """A network of one host: what connects to it is accepted here."""

    address: str = "memory:1"
    _waiting: list[MemoryStream] = field(factory=list)
    _arrived: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot)

    def connect(self, room: int = 65536) -> MemoryStream:
        here, there = memory_pair(room)
        self._waiting.append(there)
        self._arrived.unpark()
        return here

    async def accept(self) -> MemoryStream:
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._waiting:
            await self._arrived.park()
        return self._waiting.pop(0)

    def close(self) -> None:
        for stream in self._waiting:
            stream.close()
