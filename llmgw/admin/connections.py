"""One connection of Hypercorn's, made safe, and its limits said out loud.

Hypercorn 0.18 upgrades to HTTP/2 (where several malformed packets raise, and back-pressure does not work), and
shields sends and closes without limit. Here HTTP/1.1 is all that is spoken, and a client that stops reading is cut.
"""

import sys
from contextlib import suppress
from dataclasses import replace
from typing import Any

import h11
import trio
from hypercorn.config import Config as HypercornConfig
from hypercorn.events import Closed, RawData
from hypercorn.logging import Logger
from hypercorn.protocol.events import Response
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import TCPServer

from llmgw.admin.services import Report, to_logging

GRACE_S = 2.0  # for requests under way when the listener ends
WRITE_STALL_S = 10.0  # for PIECE bytes to be taken
PIECE = 64 * 1024
CLOSE_WITHIN_S = 1.0
HANDSHAKE_WITHIN_S = 10.0  # TLS; from the accepted connection to the end of the handshake
_OVER = (trio.BrokenResourceError, trio.ClosedResourceError)


async def stay_http1(_protocol: Any, request: Any) -> None:
    """Instead of H11Protocol._check_protocol: no upgrade, to h2c or to websockets, and no HTTP/2 assumed.

    What an upgrade asks for may be ignored. A refused websocket followed by bytes of its own raises.
    """
    kept = [(name, value) for name, value in request.headers if name != b"upgrade"]
    object.__setattr__(request, "headers", kept)  # h11 froze it


H11Protocol._check_protocol = stay_http1  # type: ignore[method-assign,assignment]
_send = H11Protocol.stream_send


async def say_that_it_closes(protocol: H11Protocol, event: Any) -> None:
    """Instead of H11Protocol.stream_send: an answer that is quicker than its question's body ends the connection, as
    its rest can't be told from the next question. A client that is told so asks that one on another connection.
    """
    if isinstance(event, Response) and protocol.connection.their_state is h11.SEND_BODY:
        event = replace(event, headers=[*event.headers, (b"connection", b"close")])
    await _send(protocol, event)


H11Protocol.stream_send = say_that_it_closes  # type: ignore[method-assign,assignment]


class SafeConnection(TCPServer):
    """One connection whose sends and closes end."""

    def __init__(self, *of: Any) -> None:
        super().__init__(*of)
        self._nothing_more = trio.Event()

    async def protocol_send(self, event: Any) -> None:
        if not isinstance(event, RawData):
            await super().protocol_send(event)
            return
        async with self.send_lock:
            try:
                taken = await self._send(memoryview(event.data))
            except (*_OVER, trio.BusyResourceError):  # busy: it is being closed
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
        """Our half first, then what the client still sends: closing over unread bytes would take back the answer.

        Shielded, as after an answer with ``Connection: close`` it is Quart's task that closes, and Quart cancels
        that task as soon as it hears of the end, which is just before; the socket would stay open.
        """
        with trio.move_on_after(CLOSE_WITHIN_S, shield=True):
            with suppress(*_OVER, trio.BusyResourceError, AttributeError):  # TLS has no halves
                await self.stream.send_eof()
            if self._in_the_middle():
                await self._read_the_rest()
        with trio.move_on_after(CLOSE_WITHIN_S, shield=True):  # TLS says goodbye, to a peer that may not read
            await self.stream.aclose()

    def _in_the_middle(self) -> bool:
        """Whether the client may still be sending what nobody asked for."""
        spoken = getattr(self, "protocol", None)  # none before TLS has shaken hands
        connection = getattr(spoken and spoken.protocol, "connection", None)
        return connection is not None and connection.their_state in (h11.SEND_BODY, h11.ERROR)

    async def _read_the_rest(self) -> None:
        with suppress(*_OVER):
            try:
                while await self.stream.receive_some(PIECE):
                    pass
            except trio.BusyResourceError:
                await self._nothing_more.wait()

    async def _read_data(self) -> None:
        try:
            with suppress(trio.BusyResourceError):  # what is left is being read by who closes
                await super()._read_data()
        finally:
            self._nothing_more.set()

    async def _initiate_server_close(self) -> None:
        with trio.move_on_after(CLOSE_WITHIN_S):  # inside a shield without end
            await super()._initiate_server_close()


class Limits(HypercornConfig):
    closing = False

    def response_headers(self, protocol: str) -> list[tuple[bytes, bytes]]:
        """With ``Connection: close`` while the listener ends, or a client's next request meets a closed socket."""
        headers = super().response_headers(protocol)
        return [*headers, (b"connection", b"close")] if self.closing else headers


def limits(report: Report = to_logging) -> Limits:
    """Every limit said out loud."""
    config = Limits()
    config._log = _Log(report)
    config.accesslog = config.errorlog = None
    config.alpn_protocols = ["http/1.1"]
    config.keep_alive_timeout = 75  # until the head of the next request is there, the first one's included
    config.keep_alive_max_requests = 10_000
    config.graceful_timeout = GRACE_S
    config.startup_timeout = 10
    config.shutdown_timeout = GRACE_S
    config.ssl_handshake_timeout = HANDSHAKE_WITHIN_S  # a byte now and then does not prolong it
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
