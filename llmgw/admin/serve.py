"""The admin app on Hypercorn, hardened: it never faces anybody but operators, and still must not fall over.

Hypercorn 0.18 on Trio lets any exception of one connection end the server, upgrades to HTTP/2 (where several
malformed packets raise, and back-pressure does not work), and shields a send without limit. Here each
connection's failure stays its own, HTTP/1.1 is all that is spoken, and a client that stops reading is cut.
"""

import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config as HypercornConfig
from hypercorn.events import Closed, RawData
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.lifespan import Lifespan
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

CONNECTIONS_MAX = 256
WRITE_STALL_S = 10.0
GRACE_S = 2.0
_USER_TIMEOUT_MS = 30_000


async def _stay_http1(_protocol: Any, _event: Any) -> None:
    """Instead of H11Protocol._check_protocol: neither an h2c upgrade nor prior knowledge of HTTP/2."""


H11Protocol._check_protocol = _stay_http1  # type: ignore[method-assign,assignment]


class SafeConnection(TCPServer):
    """One connection whose failure is nobody else's, and whose sends end."""

    async def run(self) -> None:
        try:
            await super().run()
        except* Exception:
            await trio.aclose_forcefully(self.stream)

    async def protocol_send(self, event: Any) -> None:
        if not isinstance(event, RawData):
            await super().protocol_send(event)
            return
        async with self.send_lock:
            try:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + WRITE_STALL_S) as scope:
                    await self.stream.send_all(event.data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                await self.protocol.handle(Closed())
        if scope.cancelled_caught:
            await trio.aclose_forcefully(self.stream)
            await self.protocol.handle(Closed())


def admin_socket(address: str) -> socket.socket:
    """A listening socket on ``host:port``. Raises OSError, ValueError."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
        sock.bind((host, int(port)))
        sock.listen(128)
    except BaseException:
        sock.close()
        raise
    return sock


def limits() -> HypercornConfig:
    """Every limit said out loud."""
    config = HypercornConfig()
    config.accesslog = config.errorlog = None
    config.alpn_protocols = ["http/1.1"]
    config.keep_alive_timeout = 75
    config.keep_alive_max_requests = 10_000
    config.graceful_timeout = GRACE_S
    config.ssl_handshake_timeout = 10
    config.h11_max_incomplete_size = 32 * 1024
    config.h11_pass_raw_headers = False
    config.read_timeout = None  # it would fire during answers too
    config.max_app_queue_size = 10
    config.include_server_header = False
    config.websocket_max_message_size = 1024
    return config


async def serve_admin(app: Any, sock: socket.socket, tls: ssl.SSLContext | None = None) -> None:
    """Serve until cancelled; then connections have ``GRACE_S`` to end."""
    config = limits()
    state: dict[str, Any] = {}
    wrapped = ASGIWrapper(app)
    context = WorkerContext(None)
    lifespan = Lifespan(wrapped, config, state)
    listener = _listener(sock, tls)
    async with trio.open_nursery() as living:
        await living.start(lifespan.handle_lifespan)
        await lifespan.wait_for_startup()
        try:
            async with trio.open_nursery() as connections:
                count = [0]

                async def connection(stream: Any) -> None:
                    if count[0] >= CONNECTIONS_MAX:
                        await trio.aclose_forcefully(stream)
                        return
                    count[0] += 1
                    try:
                        await SafeConnection(wrapped, config, context, ConnectionState(state.copy()), stream).run()
                    finally:
                        count[0] -= 1

                try:
                    await trio.serve_listeners(connection, [listener], handler_nursery=connections)
                finally:
                    await _within_grace(context.terminated.set)
        finally:
            await _within_grace(lifespan.wait_for_shutdown)
            living.cancel_scope.cancel(reason="the admin listener ends")


def _listener(sock: socket.socket, tls: ssl.SSLContext | None) -> Any:
    plain = trio.SocketListener(trio.socket.from_stdlib_socket(sock))
    return plain if tls is None else trio.SSLListener(plain, tls, https_compatible=True)


async def _within_grace(act: Callable[[], Awaitable[Any]]) -> None:
    with trio.move_on_after(GRACE_S, shield=True):
        await act()
