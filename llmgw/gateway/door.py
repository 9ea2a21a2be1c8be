"""The client listener: who may connect, how many, and how it closes.

One task a connection. A connection's failure stays its own; closing the door ends the idle ones at once
and lets the others finish with ``Connection: close``.
"""

import errno
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterable
from email.utils import formatdate
from typing import Protocol

import trio
from attrs import define, field

from llmgw.core.outcome import Refusal
from llmgw.gateway.body import Bodies
from llmgw.gateway.connection import Common, Connection
from llmgw.gateway.exchange import Handler
from llmgw.gateway.limits import DoorLimits
from llmgw.tasks.alarms import Alarms
from llmgw.tasks.sockets import SocketStream
from llmgw.tasks.streams import Broken, Stream
from llmgw.tasks.tls import server_tls

_NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_BREATH_S = 0.1


class Listener(Protocol):
    async def accept(self) -> Stream: ...

    def close(self) -> None: ...


def request_ids(boot: bytes) -> Callable[[], str]:
    """Ids that never repeat: this process's random name and a count."""
    prefix, count = f"req_{boot.hex()}", 0

    def new_id() -> str:
        nonlocal count
        count += 1
        return f"{prefix}{count:08x}"

    return new_id


@define(eq=False)
class _Clock:
    """``Server`` and ``Date``, made once a second."""

    _wall: Callable[[], float]
    _second: int = 0
    _lines: bytes = b""

    def lines(self) -> bytes:
        now = int(self._wall())
        if now != self._second:
            self._second = now
            self._lines = f"server: llmgw\r\ndate: {formatdate(now, usegmt=True)}\r\n".encode("ascii")
        return self._lines


def _quiet(_what: str, _request_id: str, _error: BaseException | None) -> None:
    """For those who need no word of failures (the simulated engine)."""


def _unseen(_refusal: Refusal, _request_id: str, _peer: str) -> None:
    """For those who count no refusals."""


@define(eq=False)
class Door:
    handler: Handler
    alarms: Alarms
    limits: DoorLimits = field(factory=DoorLimits)
    new_id: Callable[[], str] = field(factory=lambda: request_ids(b"\0\0\0\0"))
    tls: ssl.SSLContext | None = None
    cors_origins: frozenset[str] = frozenset({"*"})
    report: Callable[[str, str, BaseException | None], None] = _quiet
    refused: Callable[[Refusal, str, str], None] = _unseen
    wall: Callable[[], float] = time.time
    connections: dict[Connection, None] = field(factory=dict, init=False)  # in the order they came
    accept_failures: int = field(default=0, init=False)
    turned_away: int = field(default=0, init=False)
    bodies: Bodies = field(init=False)
    _common: Common = field(init=False)
    _per_ip: Counter[str] = field(factory=Counter, init=False)

    def __attrs_post_init__(self) -> None:
        self.bodies = Bodies(self.limits.bodies_total_max)
        clock = _Clock(self.wall)
        self._common = Common(
            handler=self.handler,
            limits=self.limits,
            new_id=self.new_id,
            bodies=self.bodies,
            alarms=self.alarms,
            common_headers=clock.lines,
            report=self.report,
            refused=self.refused,
            cors_origins=self.cors_origins,
        )

    async def serve(self, listeners: Iterable[Listener], connections: trio.Nursery) -> None:
        """Accept until cancelled; each connection is a task of ``connections``, which outlives the door."""
        try:
            async with trio.open_nursery() as accepting:
                for listener in listeners:
                    accepting.start_soon(self._accept, listener, connections)
        finally:
            self.drain()

    def limits_changed(self, limits: DoorLimits) -> None:
        self.limits = self._common.limits = limits
        self.bodies.most = limits.bodies_total_max

    def drain(self) -> None:
        """From now on every answer says ``Connection: close``, and idle connections end."""
        self._common.draining = True
        for connection in list(self.connections):
            connection.close_if_idle()

    def close_all(self) -> None:
        for connection in list(self.connections):
            connection.stream.close()

    async def _accept(self, listener: Listener, connections: trio.Nursery) -> None:
        try:
            while True:
                try:
                    stream = await listener.accept()
                except OSError as error:
                    if error.errno not in _NO_ROOM:
                        raise
                    self.accept_failures += 1
                    self._make_room()
                    await trio.sleep(_BREATH_S)
                    continue
                if self._admit(stream):
                    connections.start_soon(self._connection, stream)
        finally:
            listener.close()

    def _admit(self, stream: Stream) -> bool:
        limits = self.limits
        if len(self.connections) >= limits.connections_max:
            self._make_room()
        crowded = len(self.connections) >= limits.connections_max
        greedy = limits.per_ip_max and self._per_ip[stream.peer] >= limits.per_ip_max
        if crowded or greedy:
            self.turned_away += 1
            stream.close()
        return not (crowded or greedy)

    def _make_room(self) -> None:
        """The connection that has been idle longest gives way."""
        idle = [c for c in self.connections if c.idle_since is not None]
        if idle:
            oldest = min(idle, key=lambda c: c.idle_since or 0.0)
            self.connections.pop(oldest, None)
            oldest.stream.close()

    async def _connection(self, stream: Stream) -> None:
        peer = stream.peer
        self._per_ip[peer] += 1
        connection: Connection | None = None
        try:
            if self.tls is not None:
                stream = await self._shaken(stream, self.tls)
            connection = Connection(stream, self._common, peer)
            self.connections[connection] = None
            await connection.run()
        except Broken:
            return  # a failed handshake: nobody to tell
        except Exception as error:
            self._common.report("connection failed", "", error)
        finally:
            stream.close()
            if connection is not None:
                self.connections.pop(connection, None)
            self._per_ip[peer] -= 1
            if not self._per_ip[peer]:
                del self._per_ip[peer]

    async def _shaken(self, stream: Stream, context: ssl.SSLContext) -> Stream:
        assert isinstance(stream, SocketStream), "TLS is for sockets"
        with trio.move_on_after(self.limits.head_within):
            return await server_tls(stream, context)
        raise Broken("the TLS handshake took too long")
