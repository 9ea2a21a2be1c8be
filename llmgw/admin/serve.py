"""The admin app on Hypercorn, hardened: it never faces anybody but operators, and still must not fall over.

Hypercorn 0.18 on Trio lets any exception of one connection end the server, upgrades to HTTP/2 (where several
malformed packets raise, and back-pressure does not work), and shields sends and closes without limit. Here each
connection's failure stays its own, HTTP/1.1 is all that is spoken, and a client that stops reading is cut.
"""

import socket
import ssl
import sys
from typing import Any

import trio
from attrs import define, field
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config as HypercornConfig
from hypercorn.events import Closed, RawData
from hypercorn.logging import Logger
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.lifespan import Lifespan
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from llmgw.admin.services import Report, to_logging

CONNECTIONS_MAX = 256
GRACE_S = 2.0  # for requests under way when the listener ends
WRITE_STALL_S = 10.0  # for PIECE bytes to be taken
PIECE = 64 * 1024
CLOSE_WITHIN_S = 2.0
_USER_TIMEOUT_MS = 30_000  # and the kernel's own word, behind all of these


async def _stay_http1(_protocol: Any, _event: Any) -> None:
    """Instead of H11Protocol._check_protocol: neither an h2c upgrade nor prior knowledge of HTTP/2."""


H11Protocol._check_protocol = _stay_http1  # type: ignore[method-assign,assignment]


def admin_socket(address: str) -> socket.socket:
    """A listening socket on ``host:port``; what it accepts inherits its options. Raises OSError, ValueError."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
        sock.bind((host, int(port)))
        sock.listen(128)
    except BaseException:
        sock.close()
        raise
    return sock


async def serve_admin(
    app: Any,
    sock: socket.socket,
    tls: ssl.SSLContext | None = None,
    report: Report = to_logging,
    task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; then idle connections end at once, and requests under way have ``GRACE_S``."""
    server = _Server(_http1_only(app), limits(report), report)
    async with trio.open_nursery() as nursery:
        listener = _listener(sock, tls)
        async with listener:
            connections = await nursery.start(server.live)
            try:
                await trio.serve_listeners(
                    server.connection, [listener], handler_nursery=connections, task_status=task_status
                )
            finally:
                await server.end()


@define(eq=False)
class _Server:
    """``live`` runs past a cancel from outside, so that the app and its connections end in order."""

    app: Any
    config: "_Limits"
    report: Report
    _context: WorkerContext = field(factory=lambda: WorkerContext(None), init=False)
    _living: trio.CancelScope = field(factory=lambda: trio.CancelScope(shield=True), init=False)
    _ending: trio.Event = field(factory=trio.Event, init=False)
    _state: dict[str, Any] = field(factory=dict, init=False)
    _connections: int = field(default=0, init=False)

    async def live(self, task_status: trio.TaskStatus[trio.Nursery]) -> None:
        lifespan = Lifespan(ASGIWrapper(self.app), self.config, self._state)
        with self._living:
            async with trio.open_nursery() as apps:
                await apps.start(lifespan.handle_lifespan)
                await lifespan.wait_for_startup()
                async with trio.open_nursery() as connections:
                    task_status.started(connections)
                    await self._ending.wait()
                await lifespan.wait_for_shutdown()
                apps.cancel_scope.cancel(reason="the admin listener has ended")

    async def end(self) -> None:
        self._living.deadline = trio.current_time() + GRACE_S
        self.config.closing = True
        self._ending.set()
        await self._context.terminated.set()  # no checkpoint in it

    async def connection(self, stream: Any) -> None:
        if self._connections >= CONNECTIONS_MAX:
            await trio.aclose_forcefully(stream)
            return
        self._connections += 1
        try:
            state = ConnectionState(self._state.copy())
            await SafeConnection(ASGIWrapper(self.app), self.config, self._context, state, stream).run()
        except* Exception as errors:
            self.report("a connection to the admin listener failed", "", errors)
        finally:
            self._connections -= 1


class SafeConnection(TCPServer):
    """One connection whose sends and closes end."""

    async def protocol_send(self, event: Any) -> None:
        if not isinstance(event, RawData):
            await super().protocol_send(event)
            return
        async with self.send_lock:
            try:
                taken = await self._send(memoryview(event.data))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                taken = False
            except trio.Cancelled:
                # Half of it may be on its way: whatever comes next would be read as the rest.
                await trio.aclose_forcefully(self.stream)
                raise
        if not taken:
            await trio.aclose_forcefully(self.stream)
            await self.protocol.handle(Closed())

    async def _send(self, data: memoryview) -> bool:
        for start in range(0, len(data), PIECE):
            with trio.move_on_after(WRITE_STALL_S) as stall:
                await self.stream.send_all(data[start : start + PIECE])
            if stall.cancelled_caught:
                return False
        return True

    async def _close(self) -> None:
        with trio.move_on_after(CLOSE_WITHIN_S):
            await super()._close()

    async def _initiate_server_close(self) -> None:
        with trio.move_on_after(CLOSE_WITHIN_S):  # inside a shield without end
            await super()._initiate_server_close()


class _Limits(HypercornConfig):
    closing = False

    def response_headers(self, protocol: str) -> list[tuple[bytes, bytes]]:
        """With ``Connection: close`` while the listener ends, or a client's next request meets a closed socket."""
        headers = super().response_headers(protocol)
        return [*headers, (b"connection", b"close")] if self.closing else headers


def limits(report: Report = to_logging) -> _Limits:
    """Every limit said out loud."""
    config = _Limits()
    config._log = _Log(report)
    config.accesslog = config.errorlog = None
    config.alpn_protocols = ["http/1.1"]
    config.keep_alive_timeout = 75  # until the head of the next request is there, the first one's included
    config.keep_alive_max_requests = 10_000
    config.graceful_timeout = GRACE_S
    config.startup_timeout = 10
    config.shutdown_timeout = GRACE_S
    config.ssl_handshake_timeout = 10
    config.h11_max_incomplete_size = 32 * 1024
    config.h11_pass_raw_headers = False
    config.read_timeout = None  # it would fire during answers too; the app bounds bodies
    config.max_app_queue_size = 10
    config.max_requests = None
    config.include_date_header = True
    config.include_server_header = False
    config.websocket_max_message_size = 1024
    config.websocket_ping_interval = None
    config.server_names = []  # the app checks Host; this check falls over bytes that are no UTF-8
    return config


class _Log(Logger):
    """No access log, and what goes wrong is reported like everything else."""

    def __init__(self, report: Report) -> None:
        self._report = report

    async def _nothing(self, *_args: Any, **_more: Any) -> None: ...

    async def _told(self, message: str, *_args: Any, **_more: Any) -> None:
        self._report(f"admin listener: {message}", "", sys.exception())

    access = info = debug = _nothing
    warning = error = critical = exception = _told


def _http1_only(app: Any) -> Any:
    """Nothing but plain HTTP/1.x requests reach the app."""

    async def filtered(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        elif scope["type"] == "http" and scope["http_version"] not in ("1.0", "1.1"):
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
