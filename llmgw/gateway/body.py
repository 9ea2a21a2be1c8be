"""Reading one request's body: framing, content coding, the caps and the least rate."""

import trio
from attrs import define, field

from llmgw.core.outcome import Outcome, Refusal
from llmgw.gateway.exchange import Refused
from llmgw.gateway.limits import DoorLimits
from llmgw.tasks.streams import Broken, Stream
from llmgw.wire import http1
from llmgw.wire.coding import KNOWN, Corrupt, Decoder, TooLarge


@define(eq=False)
class Bodies:
    """What all bodies in memory may take together."""

    most: int
    held: int = 0

    def take(self, size: int) -> None:
        if self.held + size > self.most:
            raise Refused(
                Refusal(Outcome.BODIES_FULL, "the gateway holds as many request bodies as it may", retry_after_s=2)
            )
        self.held += size


@define(eq=False)
class BodyReader:
    _head: http1.Head
    _stream: Stream
    rest: bytes  # bytes behind the head that are not of this body (or not yet read)
    _limits: DoorLimits
    _bodies: Bodies
    size: int = field(default=0, init=False)  # decoded
    complete: bool = field(init=False)
    _left: int = field(init=False)  # of Content-Length
    _chunks: http1.ChunkedBody | None = field(default=None, init=False)
    _decoder: Decoder | None = field(default=None, init=False)
    _whole: bytes | None = field(default=None, init=False)
    _continued: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._left = self._head.length or 0
        self.complete = not self._head.has_body

    async def whole(self) -> bytes:
        """The decoded body. Raises Refused or Broken."""
        if self._whole is None:
            self._refuse_early()
            if self._head.chunked or len(self.rest) < self._left:
                self._whole = await self._read()
            else:  # all of it came with the head: the common case
                self._whole = self._decoded(self._take_length(self.rest))
                self._end_decoding()
        return self._whole

    def absorb(self) -> bool:
        """Take an unread body that has already arrived, so that an early answer need not close."""
        if self._head.expects_continue and not self._continued and not self.rest:
            # The client holds its body back and will drop it: but it may also have begun. Close.
            return False
        if self._whole is not None or self._head.chunked or len(self.rest) < self._left:
            return False
        self.rest, self._left, self.complete = self.rest[self._left :], 0, True
        return True

    def release(self) -> None:
        self._bodies.held -= self.size
        self.size = 0

    def _refuse_early(self) -> None:
        most = self._limits.body_max
        if self._left > most:
            raise Refused(Refusal(Outcome.BODY_TOO_LARGE, f"the body is larger than {most} bytes"))
        coding = self._head.coding
        if coding and coding != b"identity":
            if coding not in KNOWN:
                known = "gzip, deflate"
                shown = coding.decode("ascii", "backslashreplace")[:64]
                raise Refused(
                    Refusal(Outcome.UNSUPPORTED_ENCODING, f"content encoding {shown!r} is not read here; use {known}")
                )
            self._decoder = Decoder(most)

    async def _read(self) -> bytes:
        if self._head.expects_continue and not self._continued:
            self._continued = True
            await self._stream.send(http1.CONTINUE)
        if self._head.chunked:
            self._chunks = http1.ChunkedBody()
        return await self._collect()

    async def _collect(self) -> bytes:
        limits, pieces = self._limits, []
        began = trio.current_time()
        with trio.CancelScope(deadline=began + limits.body_within) as scope:
            data, self.rest = self.rest, b""
            while True:
                if data:
                    pieces.append(self._decoded(self._unframed(data)))
                    scope.deadline = began + limits.body_within + self.size / limits.body_rate_min
                if self.complete:
                    break
                data = await self._stream.receive()
                if not data:
                    raise Broken("the client left in the middle of its body")
        if scope.cancelled_caught:
            raise Refused(
                Refusal(
                    Outcome.BODY_TOO_SLOW,
                    f"the body came too slowly: {limits.body_within:g} s + {limits.body_rate_min} bytes/s are given",
                )
            )
        self._end_decoding()
        return b"".join(pieces)

    def _unframed(self, data: bytes) -> bytes:
        if self._chunks is None:
            return self._take_length(data)
        try:
            body = self._chunks.feed(data)
        except http1.Malformed as error:
            raise Refused(Refusal(Outcome.BAD_REQUEST, error.why)) from None
        self.complete = self._chunks.complete
        if self._chunks.overrun:
            self._head.keep_alive = False
        return body

    def _take_length(self, data: bytes) -> bytes:
        mine, self.rest = data[: self._left], data[self._left :]
        self._left -= len(mine)
        self.complete = self._left == 0
        return mine

    def _decoded(self, data: bytes) -> bytes:
        body = data if self._decoder is None else self._through(self._decoder, data)
        if self.size + len(body) > self._limits.body_max:
            raise self._too_large()
        self._bodies.take(len(body))
        self.size += len(body)
        return body

    def _through(self, decoder: Decoder, data: bytes) -> bytes:
        try:
            return decoder.feed(data)
        except Corrupt as error:
            raise Refused(Refusal(Outcome.BAD_REQUEST, f"the body does not decode: {error}")) from None
        except TooLarge:
            raise self._too_large() from None

    def _too_large(self) -> Refused:
        return Refused(Refusal(Outcome.BODY_TOO_LARGE, f"the body is larger than {self._limits.body_max} bytes"))

    def _end_decoding(self) -> None:
        try:
            if self._decoder:
                self._decoder.end()
        except Corrupt as error:
            raise Refused(Refusal(Outcome.BAD_REQUEST, f"the body does not decode: {error}")) from None
