"""The admin app on Hypercorn, hardened: it never faces anybody but operators, and still must not fall over.

Hypercorn on Trio lets any exception of one connection end the server. Here each connection's failure stays its
own, their number is bounded, and what is under way may end when the listener does.
"""

import socket
import ssl
from typing import Any

import trio
from attrs import define, field
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.trio.lifespan import Lifespan
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from llmgw.admin.connections import Limits, SafeConnection, limits
from llmgw.admin.services import Report, to_logging

CONNECTIONS_MAX = 256
_USER_TIMEOUT_MS = 30_000  # the kernel's own word on a silent peer, behind every limit of ours


def admin_socket(address: str) -> socket.socket:
    """A listening socket on ``host:port``; what it accepts inherits its options. Raises OSError, ValueError."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        as_admin_socket(sock)
        try:
            sock.bind((host, int(port)))
            sock.listen(128)
        except OSError as error:
            raise OSError(error.errno, f"{address}: {error.strerror}") from error
    except BaseException:
        sock.close()
        raise
    return sock


def as_admin_socket(sock: socket.socket) -> socket.socket:
    """With the options that its connections inherit, whoever opened it."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
    return sock


async def serve_admin(
    app: Any,
    sock: socket.socket,
    tls: ssl.SSLContext | None = None,
    report: Report = to_logging,
    task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; then idle connections end at once, and requests under way have their grace."""
    server = _Server(_http1_only(app), limits(report), report)
    async with trio.open_nursery() as nursery:
        listener = _listener(sock, tls)
        async with listener:
            nursery.start_soon(server.live)
            try:
                await server.open.wait()
                await trio.serve_listeners(
                    server.connection, [listener], handler_nursery=server.connections, task_status=task_status
                )
            finally:
                await server.end()


@define(eq=False)
class _Server:
    """``live`` runs past a cancel from outside until ``end``, so that connections and app end in order."""

    app: Any
    config: Limits
    report: Report
    open: trio.Event = field(factory=trio.Event, init=False)
    connections: trio.Nursery = field(init=False)
    _context: WorkerContext = field(factory=lambda: WorkerContext(None), init=False)
    _living: trio.CancelScope = field(factory=lambda: trio.CancelScope(shield=True), init=False)
    _ending: trio.Event = field(factory=trio.Event, init=False)
    _state: dict[str, Any] = field(factory=dict, init=False)
    _number: int = field(default=0, init=False)

    async def live(self) -> None:
        lifespan = Lifespan(ASGIWrapper(self.app), self.config, self._state)
        with self._living:
            async with trio.open_nursery() as apps:
                await apps.start(lifespan.handle_lifespan)
                await lifespan.wait_for_startup()
                async with trio.open_nursery() as self.connections:
                    self.open.set()
                    await self._ending.wait()
                await lifespan.wait_for_shutdown()
                apps.cancel_scope.cancel(reason="the admin listener has ended")

    async def end(self) -> None:
        self._living.deadline = trio.current_time() + self.config.graceful_timeout
        self.config.closing = True
        self._ending.set()
        await self._context.terminated.set()  # no checkpoint in it

    async def connection(self, stream: Any) -> None:
        if self._number >= CONNECTIONS_MAX:
            await trio.aclose_forcefully(stream)
            return
        self._number += 1
        try:
            state = ConnectionState(self._state.copy())
            await SafeConnection(ASGIWrapper(self.app), self.config, self._context, state, stream).run()
        except* Exception as errors:
            self.report("a connection to the admin listener failed", "", errors)
        finally:
            self._number -= 1


def _http1_only(app: Any) -> Any:
    """Nothing but plain HTTP/1.x requests reach the app."""

    async def filtered(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["http_version"] not in ("1.0", "1.1"):
            await send({"type": "http.response.start", "status": 505, "headers": [(b"connection", b"close")]})
            await send({"type": "http.response.body", "body": b""})
        else:
            await app(scope, receive, send)

    return filtered


def _listener(sock: socket.socket, tls: ssl.SSLContext | None) -> Any:
    plain = trio.SocketListener(trio.socket.from_stdlib_socket(sock))
    if tls is None:
        return plain
    tls.set_alpn_protocols(["http/1.1"])
    return trio.SSLListener(plain, tls, https_compatible=True)
