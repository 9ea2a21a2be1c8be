"""One client connection: its requests one after another, in one cancel scope.

Whether the client has left is known in every phase from the stream's hang-up, without a task of its own.
"""

from collections.abc import Callable, Iterable
from functools import partial
from math import inf

import trio
from attrs import define, field

from llmgw.core.outcome import Outcome, Refusal
from llmgw.gateway.body import Bodies, BodyReader
from llmgw.gateway.exchange import Handler, Headers, Refused
from llmgw.gateway.limits import DoorLimits
from llmgw.gateway.refusing import refuse
from llmgw.tasks.alarms import Alarm, Alarms
from llmgw.tasks.streams import Broken, Interrupted, Stalled, Stream
from llmgw.wire import http1
from llmgw.wire.errors import Family, error_body

_BY_STATUS = {
    405: Outcome.METHOD_NOT_ALLOWED,
    408: Outcome.HEAD_TOO_SLOW,
    413: Outcome.BODY_TOO_LARGE,
    415: Outcome.UNSUPPORTED_ENCODING,
    501: Outcome.NOT_SUPPORTED,
}
_COMES_STILL_S = 1.0  # at a door that closes: how long a connection that has not asked yet may take to begin
_EXPOSED = b"x-request-id, request-id, retry-after, retry-after-ms, openai-processing-ms"


@define(eq=False)
class Common:
    """What all connections of a door share."""

    handler: Handler
    limits: DoorLimits
    new_id: Callable[[], str]
    bodies: Bodies
    alarms: Alarms
    common_headers: Callable[[], bytes]  # Server and Date, as header lines
    report: Callable[[str, str, BaseException | None], None]  # what, request id, error
    refused: Callable[[Refusal, str, str], None]  # by the door itself: refusal, request id, peer
    cors_origins: frozenset[str] = frozenset({"*"})
    draining: bool = False


@define(eq=False)
class HttpExchange:
    """See exchange.Exchange; the answer's bytes are written straight to the stream."""

    id: str
    method: str
    path: str
    query: str
    headers: Headers
    peer: str
    received_at: float
    alarm: Alarm
    _head: http1.Head
    _stream: Stream
    _common: Common
    _reader: BodyReader
    gone_at: float | None = field(default=None, init=False)
    _first: dict[bytes, bytes] | None = field(default=None, init=False)  # each header's first value
    answered: bool = field(default=False, init=False)
    done: bool = field(default=False, init=False)
    keep: bool = field(default=True, init=False)
    _chunked: bool = field(default=False, init=False)
    _held: bytes = field(default=b"", init=False)  # the head, until the first piece leaves with it

    @property
    def first(self) -> dict[bytes, bytes]:
        if self._first is None:
            self._first = dict(reversed(self.headers))
        return self._first

    def header(self, name: bytes) -> bytes | None:
        return self.first.get(name)

    @property
    def client_gone(self) -> bool:
        return self._stream.gone

    @property
    def body_unread(self) -> bool:
        return not self._reader.complete

    async def body(self) -> bytes:
        return await self._reader.whole()

    async def answer(
        self,
        status: int,
        body: bytes,
        headers: Iterable[tuple[bytes, bytes]] = (),
        content_type: bytes = b"application/json",
    ) -> None:
        framing = b"content-type: %b\r\ncontent-length: %d\r\n" % (content_type, len(body))
        if status == 204:
            framing, body = b"", b""
        head = self._head_bytes(status, framing, headers)
        self.answered = self.done = True
        await self._stream.send(head if self.method == "HEAD" else head + body)

    async def start(self, status: int, headers: Iterable[tuple[bytes, bytes]] = (), length: int | None = None) -> None:
        self.answered = True
        if length is not None:
            framing = b"content-length: %d\r\n" % length
        elif self._head.minor == 1:
            framing, self._chunked = b"transfer-encoding: chunked\r\n", True
        else:
            framing, self.keep = b"", False
        self._held = self._head_bytes(status, framing, headers)

    async def flush(self) -> None:
        if self._held:
            held, self._held = self._held, b""
            await self._stream.send(held)

    async def send(self, data: bytes) -> None:
        if self.method == "HEAD" or not data:
            return
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._held:
            data, self._held = self._held + data, b""
        await self._stream.send(data)

    async def end(self) -> None:
        self.done = True
        last = http1.LAST_CHUNK if self._chunked and self.method != "HEAD" else b""
        if self._held or last:
            held, self._held = self._held, b""
            await self._stream.send(held + last)

    def cut(self) -> None:
        self.done, self.keep = True, False

    def _head_bytes(self, status: int, framing: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        if not self._head.keep_alive or self._common.draining or (self.body_unread and not self._reader.absorb()):
            self.keep = False
        # OpenAI's clients read x-request-id, Anthropic's request-id (its models routes are shared with OpenAI's).
        id, took_ms = self.id.encode("ascii"), (trio.current_time() - self.received_at) * 1000
        return b"%b%bx-request-id: %b\r\nrequest-id: %b\r\nopenai-processing-ms: %d\r\n%b%b%b%b\r\n" % (
            http1.status_line(status),
            self._common.common_headers(),
            id,
            id,
            took_ms,
            framing,
            http1.header_lines(headers) if headers else b"",
            self._cors(),
            b"" if self.keep else b"connection: close\r\n",
        )

    def _cors(self) -> bytes:
        origin = self.first.get(b"origin")
        if origin is None:
            return b""
        allowed = self._common.cors_origins
        if "*" not in allowed and origin.decode("latin-1") not in allowed:
            return b"vary: Origin\r\n"
        lines = [
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", _EXPOSED),
            (b"vary", b"Origin"),
        ]
        return http1.header_lines(lines)


@define(eq=False)
class Connection:
    stream: Stream
    common: Common
    peer: str
    idle_since: float | None = field(default=None, init=False)  # waiting for the next request
    _asked: bool = field(default=False, init=False)  # a request has come on it
    _buffer: bytes = field(default=b"", init=False)
    _alarm: Alarm = field(init=False)
    _exchange: HttpExchange | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._alarm = self.common.alarms.new()

    async def run(self) -> None:
        """Serve until either side is through. Never raises anything but Cancelled from outside.

        One scope for the whole connection: once the client has left, nothing on it is worth doing.
        """
        try:
            with trio.CancelScope() as scope:
                self.stream.on_hangup = partial(self._left, scope)
                if self.stream.gone:
                    scope.cancel(reason="the client left")
                await self._serve_all()
        except Broken:
            return  # the client left: nobody to tell
        except http1.Malformed as error:
            await self._refuse_unread(error)
        finally:
            self._alarm.set(inf)
            self.stream.close()

    def close_if_idle(self) -> None:
        """For a door that closes. Who was let in and has not asked yet is owed an answer: it gets a moment to ask."""
        if self.idle_since is None or self._buffer:  # half a head is no idleness; head_within bounds it
            return
        if self._asked:
            self.stream.close()
        else:
            self._alarm.set(trio.current_time() + _COMES_STILL_S)

    def _left(self, scope: trio.CancelScope) -> None:
        if self._exchange is not None:
            self._exchange.gone_at = trio.current_time()
        scope.cancel(reason="the client left")

    async def _serve_all(self) -> None:
        while True:
            head = await self._next_head()
            if head is None or not await self._serve(head):
                return

    async def _next_head(self) -> http1.Head | None:
        """The next request's head; None when the connection may end in peace. Raises Broken, Malformed."""
        limits, alarm = self.common.limits, self._alarm
        now = trio.current_time()
        started, patience = bool(self._buffer), limits.head_within
        if not started:
            if self.common.draining and self._asked:  # an answer that had begun before that did not say so
                return None
            self.idle_since = now
            patience = _COMES_STILL_S if self.common.draining else limits.idle_keepalive
        alarm.ring = self.stream.interrupt
        alarm.set(now + patience)
        while True:
            if self._buffer:
                self._skip_empty_lines()
                end = self._buffer.find(http1.END_OF_HEAD)
                if end >= 0:
                    break
                http1.too_early_to_tell(self._buffer, limits.head_max)
            try:
                data = await self.stream.receive()
            except Interrupted:
                if self._buffer:
                    late = f"the request head did not come within {limits.head_within:g} s"
                    raise http1.Malformed(408, late) from None
                return None
            if not data:
                return None
            self._buffer += data
            if not started:
                started = True
                alarm.set(trio.current_time() + limits.head_within)
        self.idle_since, self._asked = None, True
        alarm.set(inf)
        return self._take_head(end + len(http1.END_OF_HEAD))

    def _skip_empty_lines(self) -> None:
        """Clients may send an empty line before a request (RFC 9112 §2.2)."""
        while self._buffer.startswith(b"\r\n"):
            self._buffer = self._buffer[2:]

    def _take_head(self, size: int) -> http1.Head:
        limits = self.common.limits
        if size > limits.head_max:
            raise http1.Malformed(431, f"the request head is longer than {limits.head_max} bytes")
        head, self._buffer = self._buffer[:size], self._buffer[size:]
        return http1.parse_head(head, limits.target_max, limits.headers_max)

    async def _serve(self, head: http1.Head) -> bool:
        """One request; whether the connection may serve another."""
        common = self.common
        reader = BodyReader(head, self.stream, self._buffer, common.limits, common.bodies)
        exchange = self._exchange = HttpExchange(
            common.new_id(), head.method, head.path, head.query, head.headers, self.peer, trio.current_time(),
            self._alarm, head, self.stream, common, reader,
        )  # fmt: skip
        try:
            await self._handled(exchange)
        finally:
            reader.release()
            self._exchange = None
        if exchange.keep:
            self._buffer = reader.rest
        elif exchange.body_unread and exchange.answered:
            await self._drain()
        return exchange.keep

    async def _handled(self, exchange: HttpExchange) -> None:
        try:
            await self.common.handler(exchange)
            if not exchange.done:
                raise AssertionError("the handler left without a whole answer")
        except Broken as error:
            exchange.cut()
            if isinstance(error, Stalled):
                self.common.report("client stalled", exchange.id, error)
        except Refused as refused:
            await refuse(exchange, Family.OPENAI, refused.refusal)
        except Exception as error:
            self.common.report("request failed", exchange.id, error)
            refusal = Refusal(Outcome.INTERNAL, "something went wrong inside the gateway")
            await refuse(exchange, Family.OPENAI, refusal)

    async def _refuse_unread(self, error: http1.Malformed) -> None:
        """Say what is wrong with bytes that never became a request."""
        request_id = self.common.new_id()
        refusal = Refusal(_BY_STATUS.get(error.status, Outcome.BAD_REQUEST), error.why)
        self.common.refused(refusal, request_id, self.peer)
        body = error_body(Family.OPENAI, refusal, request_id)
        headers = [
            (b"x-request-id", request_id.encode("ascii")),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        if error.status == 405:
            headers.append((b"allow", b"GET, POST, HEAD, OPTIONS"))
        head = http1.status_line(error.status) + self.common.common_headers() + http1.header_lines(headers) + b"\r\n"
        try:
            await self.stream.send(head + body)
            await self._drain()
        except Broken:
            return

    async def _drain(self) -> None:
        """Read on a little, so that a client still sending sees the answer rather than a reset."""
        limits = self.common.limits
        self.stream.finish_sending()
        left = limits.drain_max
        with trio.move_on_after(limits.drain_within):
            try:
                while left > 0 and (data := await self.stream.receive()):
                    left -= len(data)
            except Broken:
                return
