"""The HTTP client for one endpoint: a few idle connections, and calls that own one each.

No pool limit queues a request here (how many may run is admission's business). Idle connections retire
before the engine closes them; a reused one that dies before any response byte is replaced once.
"""

import ssl
from collections import deque
from collections.abc import Callable
from functools import partial
from urllib.parse import urlsplit

import trio
from attrs import define, field

from llmgw.core.fleet import Endpoint
from llmgw.engines.limits import ClientLimits
from llmgw.tasks.streams import Broken, Connect, Stalled, Stream
from llmgw.wire import http1
from llmgw.wire.coding import KNOWN, Corrupt, Decoder, TooLarge


class Unreachable(Exception):
    """No connection could be made."""


class DialTimeout(Exception):
    """The caller interrupted a dial."""


class BrokeOff(Exception):
    """The connection ended before the answer was whole."""


class Stale(Exception):
    """A reused connection had died before any byte of the answer: dial again, once, under the dial's own limit."""


class NotHttp(Exception):
    """The engine's bytes are not an answer."""


@define
class Counts:
    """For metrics; only ever rising."""

    dials: int = 0
    reuses: int = 0
    replays: int = 0
    failures: int = 0
    dial_s: float = 0.0


@define(eq=False)
class _Idle:
    stream: Stream
    since: float


@define(eq=False)
class EngineClient:
    endpoint: Endpoint
    connect: Connect
    limits: ClientLimits = field(factory=ClientLimits)
    counts: Counts = field(factory=Counts)
    _tls: ssl.SSLContext | None = None
    host: str = field(init=False)
    port: int = field(init=False)
    _base: bytes = field(init=False)
    _standing: bytes = field(init=False, repr=False)  # a key among them: header lines every request carries
    _idle: deque[_Idle] = field(factory=deque, init=False)
    _closed: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        url = urlsplit(self.endpoint.url)
        self.host = url.hostname or ""
        self.port = url.port or (443 if url.scheme == "https" else 80)
        self._base = url.path.rstrip("/").encode("ascii")
        if url.scheme == "https" and self._tls is None:
            self._tls = ssl.create_default_context(cafile=self.endpoint.ca)
        headers = [(b"host", url.netloc.encode("ascii")), (b"accept-encoding", b"identity")]
        if self.endpoint.api_key:
            headers.append((b"authorization", b"Bearer " + self.endpoint.api_key.reveal().encode()))
        self._standing = http1.header_lines(headers)

    @property
    def idle_connections(self) -> int:
        return len(self._idle)

    def post(self, path: str, headers: bytes, body: bytes) -> "Call":
        """A call not yet begun; ``headers`` are whole lines."""
        head = b"POST %b%b HTTP/1.1\r\n%b%bcontent-length: %d\r\n\r\n" % (
            self._base, path.encode("ascii"), self._standing, headers, len(body)
        )  # fmt: skip
        return Call(self, head + body)

    def get(self, path: str, headers: bytes = b"") -> "Call":
        return Call(self, b"GET %b%b HTTP/1.1\r\n%b%b\r\n" % (
            self._base, path.encode("ascii"), self._standing, headers
        ))  # fmt: skip

    async def fetch(self, path: str, most: int = 4 * 1024**2) -> tuple[int, bytes]:
        """One small GET, whole: status and body. Raises Unreachable, BrokeOff, NotHttp."""
        call = self.get(path)
        try:
            await self._answered(call)
            return call.response.status, await call.whole(most)
        finally:
            call.close(trio.current_time())

    async def _answered(self, call: "Call") -> None:
        await call.dial(trio.current_time())
        try:
            await call.head()
        except Stale:
            await call.dial(trio.current_time())
            await call.head()

    def take_idle(self, now: float) -> Stream | None:
        while self._idle:
            idle = self._idle.pop()
            idle.stream.on_hangup = None
            if not idle.stream.gone and now - idle.since < self.limits.idle_max:
                self.counts.reuses += 1
                return idle.stream
            idle.stream.close()
        return None

    def give_back(self, stream: Stream, now: float) -> None:
        if self._closed or stream.gone or len(self._idle) >= self.limits.idle_connections_max:
            stream.close()
            return
        idle = _Idle(stream, now)
        stream.on_hangup = partial(self._left, idle)
        self._idle.append(idle)

    async def dial(self) -> Stream:
        """Raises Unreachable."""
        began = trio.current_time()
        self.counts.dials += 1
        try:
            return await self.connect(self.host, self.port, self._tls)
        except (OSError, Broken) as error:
            self.counts.failures += 1
            raise Unreachable(str(error) or type(error).__name__) from error
        finally:
            self.counts.dial_s += trio.current_time() - began

    def retire(self, now: float) -> None:
        """Close what has been idle too long; the oldest stand first."""
        while self._idle and now - self._idle[0].since >= self.limits.idle_max:
            self._idle.popleft().stream.close()

    def close(self) -> None:
        """No more idle connections; calls under way go on."""
        self._closed = True
        while self._idle:
            self._idle.pop().stream.close()

    def _left(self, idle: _Idle) -> None:
        idle.stream.close()
        if idle in self._idle:
            self._idle.remove(idle)


@define(eq=False)
class Call:
    """One request to an engine and its answer. After a cancel of ``head`` or ``pieces`` they may be called again."""

    _client: EngineClient
    _request: bytes
    response: http1.Response = field(init=False)
    dialled: bool = field(default=False, init=False)
    _stream: Stream | None = field(default=None, init=False)
    _reused: bool = field(default=False, init=False)
    _fresh_only: bool = field(default=False, init=False)  # one idle connection was stale: so may the others be
    _coded: bytes = field(default=b"", init=False)
    _decoder: Decoder | None = field(default=None, init=False)
    _dialling: trio.CancelScope | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.response = http1.Response(self._client.limits.head_max)

    async def dial(self, now: float) -> None:
        """Find or make a connection and send the request. Raises Unreachable, BrokeOff, DialTimeout."""
        stream = None if self._fresh_only else self._client.take_idle(now)
        self._reused = stream is not None
        self._stream = stream or await self._dial()
        try:
            await self._stream.send(self._request)
        except Broken as error:
            if not self._reused or isinstance(error, Stalled):
                raise BrokeOff(f"while sending: {error}") from error
            self._drop_stale()
            await self.dial(now)
        self.dialled = True

    async def head(self) -> None:
        """Wait until ``response.head_done``. Raises Stale, BrokeOff, NotHttp."""
        response = self.response
        while not response.head_done:
            data = await self._receive()
            if data:
                self._feed(data)
            elif self._reused and not response.started:
                self._drop_stale()
                raise Stale
            else:
                raise BrokeOff("the engine closed the connection without an answer")
        self._coded = response.header(b"content-encoding").lower()
        if self._coded in KNOWN:
            self._decoder = Decoder(1 << 40)

    @property
    def coding(self) -> bytes:
        """A content coding that reaches the client as it is, because nobody here reads it."""
        return b"" if self._decoder or self._coded == b"identity" else self._coded

    async def pieces(self) -> list[bytes]:
        """Body pieces as they come; ``[]`` once the body is whole. Raises BrokeOff, NotHttp."""
        response = self.response
        while True:
            pieces = response.take()
            if pieces:
                return pieces if self._decoder is None else self._decoded(pieces)
            if response.complete:
                self._end_decoding()
                return []
            data = await self._receive()
            if data:
                self._feed(data)
            elif not response.connection_ended():
                raise BrokeOff("the engine broke off in the middle of its answer")

    async def whole(self, most: int) -> bytes:
        """The whole body. Raises BrokeOff, NotHttp (too large, too)."""
        collected: list[bytes] = []
        size = 0
        while pieces := await self.pieces():
            collected += pieces
            size += sum(map(len, pieces))
            if size > most:
                raise NotHttp(f"an answer of more than {most} bytes")
        return b"".join(collected)

    def interrupt(self) -> None:
        """Whatever waits for the engine raises Interrupted; while dialling, DialTimeout."""
        if self._stream is not None:
            self._stream.interrupt()
        elif self._dialling is not None:
            self._dialling.cancel(reason="the dial took too long")

    def close(self, now: float) -> None:
        """Give the connection back if the answer is whole, else close it: the engine stops working on it."""
        stream, self._stream = self._stream, None
        if stream is None:
            return
        response = self.response
        if response.complete and response.keep_alive and response.framed and not response.overrun:
            self._client.give_back(stream, now)
        else:
            stream.close()

    async def _dial(self) -> Stream:
        with trio.CancelScope() as self._dialling:
            stream = await self._client.dial()
        scope, self._dialling = self._dialling, None
        if scope.cancelled_caught:
            raise DialTimeout
        return stream

    async def _receive(self) -> bytes:
        assert self._stream is not None, "dial first"
        try:
            return await self._stream.receive()
        except Broken as error:
            if self._reused and not self.response.started:
                return b""
            raise BrokeOff(f"the engine broke off: {error}") from error

    def _feed(self, data: bytes) -> None:
        try:
            self.response.feed(data)
        except http1.Malformed as error:
            raise NotHttp(error.why) from None

    def _drop_stale(self) -> None:
        """The engine closed an idle connection as we took it: once more, on a new one."""
        if self._stream is not None:
            self._stream.close()
        self._stream, self.dialled, self._fresh_only = None, False, True
        self._client.counts.replays += 1

    def _end_decoding(self) -> None:
        try:
            if self._decoder is not None:
                self._decoder.end()
        except Corrupt as error:
            raise NotHttp(f"the engine's answer does not decode: {error}") from None

    def _decoded(self, pieces: list[bytes]) -> list[bytes]:
        assert self._decoder is not None
        try:
            return [piece for raw in pieces if (piece := self._decoder.feed(raw))] or [b""]
        except (Corrupt, TooLarge) as error:
            raise NotHttp(f"the engine's answer does not decode: {error}") from None


async def retire_idle(clients: Callable[[], list[EngineClient]], every_s: float = 0.5) -> None:
    """A service: idle connections end before the engines close them."""
    while True:
        await trio.sleep(every_s)
        now = trio.current_time()
        for client in clients():
            client.retire(now)
