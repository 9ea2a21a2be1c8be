"""Where agents come in: accept, shake hands, bound, and keep each connection's failure to itself."""

import math
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import NoReturn

import trio
from attrs import define, field

from llmgw.nodes.connection import Connection, House
from llmgw.tasks.duplex import GONE
from llmgw.tasks.sockets import split_address

Report = Callable[[str, BaseException], None]
BACKLOG = 512
ACCEPT_PAUSE_S = 0.1
KEEP_IDLE_S, KEEP_EVERY_S, KEEP_TRIES = 30, 10, 3


@define(eq=False)
class Stranger:
    """A connection that has not shown a credential."""

    scope: trio.CancelScope


@define(eq=False)
class AgentListener:
    """``context`` is asked for each connection: a renewed certificate is used by the next handshake."""

    house: House
    context: Callable[[], ssl.SSLContext]
    report: Report
    open: int = field(default=0, init=False)
    _strangers: dict[Stranger, None] = field(factory=dict, init=False)  # the oldest first

    @property
    def counts(self) -> Counter[str]:
        return self.house.registry.counts

    async def serve(self, listener: trio.SocketListener) -> NoReturn:
        """Service: until cancelled, which ends every connection and closes the listener."""
        try:
            async with trio.open_nursery() as connections:
                while True:
                    await self._accept_one(listener, connections)
        finally:
            if trio.current_effective_deadline() == -math.inf:
                await trio.aclose_forcefully(listener)

    async def _accept_one(self, listener: trio.SocketListener, connections: trio.Nursery) -> None:
        try:
            stream = await listener.accept()
        except OSError:  # too few descriptors, or one that left at once: no reason to end anybody else's link
            self.counts["accept_failures"] += 1
            await trio.sleep(ACCEPT_PAUSE_S)
            return
        if self._has_room():
            connections.start_soon(self.serve_one, stream, _address(stream))
        else:
            self.counts["turned_away"] += 1
            await trio.aclose_forcefully(stream)

    async def serve_one(self, stream: trio.abc.Stream, peer: str) -> None:
        """One accepted connection, without TLS yet."""
        self.open += 1
        self.counts["connections"] += 1
        stranger = Stranger(trio.CancelScope())
        self._strangers[stranger] = None
        try:
            with stranger.scope:
                await self._talk(stream, peer, stranger)
        except* Exception as errors:
            self.counts["failed"] += 1
            self.report("a connection of an agent failed", errors)
        finally:
            self.open -= 1
            self._strangers.pop(stranger, None)

    async def _talk(self, stream: trio.abc.Stream, peer: str, stranger: Stranger) -> None:
        deadline = trio.current_time() + self.house.limits.handshake_within
        try:
            tls = await self._shaken(stream, deadline)
            if tls is not None:
                known = Connection(self.house, tls, peer, lambda: self._admitted(stranger))
                await known.run(deadline)
        finally:
            await trio.aclose_forcefully(stream)

    async def _shaken(self, stream: trio.abc.Stream, deadline: float) -> "trio.SSLStream[trio.abc.Stream] | None":
        tls = trio.SSLStream(stream, self.context(), server_side=True, https_compatible=True)
        why = "handshake_slow"
        with trio.move_on_at(deadline):
            try:
                # Explicitly, before anybody else waits in the stream: a failed handshake would hang them.
                await tls.do_handshake()
                why = "" if tls.selected_alpn_protocol() == "h2" else "handshake_not_h2"
            except GONE:
                why = "handshake_failed"
        if why:
            self.counts[why] += 1
        return None if why else tls

    def _admitted(self, stranger: Stranger) -> None:
        self._strangers.pop(stranger, None)

    def _has_room(self) -> bool:
        """Strangers make room, the oldest first, so that nobody keeps agents out by just connecting."""
        if self.open < self.house.limits.connections_max:
            return True
        if not self._strangers:
            return False
        oldest = next(iter(self._strangers))
        del self._strangers[oldest]
        oldest.scope.cancel(reason="another connection takes its place")
        self.counts["evicted"] += 1
        return True


async def listen_for_agents(address: str, held: socket.socket | None = None) -> trio.SocketListener:
    """``held``: a listening socket that is there already, instead of the address. Raises OSError."""
    if held is not None:
        listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(held))]
    else:
        host, port = split_address(address)
        listeners = await trio.open_tcp_listeners(port, host=host, backlog=BACKLOG)
    for one in listeners:
        sock = one.socket
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_IDLE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEP_EVERY_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEP_TRIES)
    for more in listeners[1:]:  # a name with two addresses: the first is what was asked for
        await more.aclose()
    return listeners[0]


def agents_context(chain: str, key: str) -> ssl.SSLContext:
    """TLS 1.3 and HTTP/2 alone: both ends are ours. Raises OSError, ssl.SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(chain, key)
    return context


def _address(stream: trio.SocketStream) -> str:
    try:
        return str(stream.socket.getpeername()[0])
    except OSError:  # it has left already
        return ""
