"""One attempt: a request to one endpoint, and its answer to the client.

An event leaves before the engine sends the next one, in one send. What must stay true: the only thing a
timer can interrupt is waiting for the engine, so no event is ever half sent; and ``reached`` is false for
as long as another endpoint may still be asked.
"""

from math import inf

import trio
from attrs import define, field

from llmgw.core.outcome import Outcome, Refusal
from llmgw.engines.client import BrokeOff, Call, DialTimeout, NotHttp, Stale, Unreachable
from llmgw.gateway import verdicts
from llmgw.gateway.passage import Passage
from llmgw.gateway.timers import TIMED_OUT, Timers
from llmgw.tasks.streams import Interrupted
from llmgw.wire import sse
from llmgw.wire.answers import Kind, NotJson, Reading, usage_in_tail, usage_of_answer
from llmgw.wire.embeddings import floats_to_base64, looks_like_floats
from llmgw.wire.errors import is_noticed, stream_error

SSE_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_KEPT_WHOLE = 256 * 1024  # a plain answer up to this size leaves in one send, so that a broken one may be tried again
_ERROR_MAX = 1024 * 1024
_TAIL = 4096
_OF_WORDS = (b"application/json", b"text/plain", b"text/html")  # a body of these types must be JSON; audio is not
_TAIL_WITHIN_S = 0.05


@define(eq=False)
class Attempt:
    """``run`` returns None when the client has its answer, else why not; the caller may try elsewhere."""

    _passage: Passage
    _call: Call
    early_headers: bool  # the engine sends a stream's head before its first token
    _began: float
    injects_usage: bool = True  # else usage that comes unasked is the client's own business
    _timers: Timers = field(init=False)
    _reading: Reading | None = field(default=None, init=False)
    _framer: sse.Framer | None = field(default=None, init=False)
    _held: list[bytes] = field(factory=list, init=False)
    _failed_inside: Refusal | None = field(default=None, init=False)
    _whole: list[bytes] = field(factory=list, init=False)
    _size: int = field(default=0, init=False)
    _piping: bool = field(default=False, init=False)
    _converts: bool | None = field(default=None, init=False)
    _last_token_at: float = field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        passage = self._passage
        self._timers = Timers(passage.exchange.alarm, passage.total_at)
        if passage.streaming and passage.route.reading is not None:
            self._reading = passage.reading = passage.route.reading()

    async def run(self) -> Refusal | None:
        """Raises Broken when the client can't be written to, and Cancelled when it has left."""
        self._passage.exchange.alarm.ring = self._call.interrupt
        try:
            refusal = await self._run()
            # What the engine said of itself comes before how its connection then went.
            return self._failed_inside or refusal
        finally:
            self._timers.alarm.set(inf)
            self._settle()
            self._passage.ended_at = now = trio.current_time()
            self._call.close(now)

    async def _run(self) -> Refusal | None:
        self._timers.enter("dial", self._passage.limits.dial, self._began)
        try:
            while True:
                try:
                    return await self._go()
                except Stale:
                    self._timers.enter("dial", self._passage.limits.dial, trio.current_time())
                except (Interrupted, DialTimeout):
                    refusal = await self._rung()
                    if refusal is not None:
                        return refusal
        except Unreachable as error:
            return Refusal(Outcome.ENGINE_UNREACHABLE, f"the engine can't be reached: {error}")
        except BrokeOff as error:
            return Refusal(Outcome.ENGINE_BROKE, str(error))
        except (NotHttp, sse.EventTooLarge) as error:
            return Refusal(Outcome.ENGINE_MALFORMED, str(error))

    async def _go(self) -> Refusal | None:
        """The attempt itself; after an alarm it goes on where it was."""
        call = self._call
        if not call.dialled:
            await call.dial(self._began)
            self._sent(trio.current_time())
        response = call.response
        if not response.head_done:
            await call.head()
        if self._passage.headers_at is None:
            self._passage.headers_at = trio.current_time()
        status = response.status
        if not 200 <= status < 300:
            body = await call.whole(_ERROR_MAX)
            return verdicts.of_status(status, body, response.header(b"retry-after"))
        if self._reading is not None:
            return await self._stream(self._reading)
        return await self._plain()

    def _sent(self, now: float) -> None:
        """The request is with the engine: the dial's limit gives way to what follows."""
        limits = self._passage.limits
        self._passage.dial_s = now - self._began
        if self._reading is None:
            self._timers.until("total", self._passage.total_at)
            return
        if limits.keepalive_after:
            self._timers.keepalive_after = limits.keepalive_after
            self._timers.keepalive_at = now + limits.keepalive_after
        if self.early_headers and limits.headers < limits.first_token:
            self._timers.enter("headers", limits.headers, now)
        else:
            self._timers.enter("first_token", limits.first_token, now)

    async def _rung(self) -> Refusal | None:
        """Why the alarm rang: a limit ran out, a comment is due, a held preamble has waited enough."""
        timers, now = self._timers, trio.current_time()
        if self._passage.cancelled is not None:
            return self._passage.cancelled
        limit = timers.expired(now)
        if limit is not None:
            return verdicts.timed_out(limit, getattr(self._passage.limits, limit), TIMED_OUT[limit])
        if now >= timers.hold_at:
            timers.hold_at = inf
            await self._commit([])
        comment_due = now >= timers.keepalive_at
        if comment_due:
            timers.keepalive_at = now + timers.keepalive_after
        timers.alarm.set(timers.next())
        if comment_due:
            if not self._passage.exchange.answered:
                await self._passage.exchange.start(200, SSE_HEADERS)
            await self._passage.exchange.send(sse.KEEP_ALIVE)
        return None

    # -- streams ------------------------------------------------------------------------------------

    async def _stream(self, reading: Reading) -> Refusal | None:
        call, passage = self._call, self._passage
        framer = self._framer = self._framer or sse.Framer(passage.limits.event_max)
        content_type = call.response.header(b"content-type")
        if content_type and not content_type.startswith(b"text/event-stream"):
            await call.whole(_ERROR_MAX)
            return Refusal(Outcome.ENGINE_MALFORMED, "the engine answered a streaming request without a stream")
        if self._timers.phase == "headers":
            self._timers.until("first_token", self._began + passage.dial_s + passage.limits.first_token)
        while True:
            pieces = await call.pieces()
            out: list[bytes] = []
            now = trio.current_time()
            ended = not pieces
            for raw in framer.finish() if ended else _framed(framer, pieces):
                verdict = self._event(reading, raw, out, now)
                if verdict is not None:
                    return await self._last(verdict, out)
            if out:
                await self._commit(out)
                # What the engine says to keep its connection alive is no progress, and time the client took is not its.
                self._timers.progress(trio.current_time())
            if ended:
                return await self._last(
                    Refusal(Outcome.ENGINE_BROKE, "the engine's stream was truncated: it ended without its last event"),
                    [],
                )

    def _event(self, reading: Reading, raw: bytes, out: list[bytes], now: float) -> Refusal | Kind | None:
        """What one event adds to ``out``; a refusal or END when the stream is over."""
        passage = self._passage
        event = sse.read_event(raw, passage.route.named_events)
        if event.data is None:
            return None
        kind = reading.read(event.data, event.name)
        match kind:
            case Kind.TOKEN:
                self._token(now)
            case Kind.PREAMBLE if not passage.exchange.answered and passage.limits.preamble_hold and not out:
                self._hold(event.bytes, now)
                return None
            case Kind.USAGE_ONLY if passage.hide_usage and self.injects_usage:
                return None
            case Kind.SWALLOW:
                return None
            case Kind.MALFORMED:
                return Refusal(Outcome.ENGINE_MALFORMED, "the engine sent an event that is not JSON")
            case Kind.END:
                out.append(sse.DONE_EVENT if event.data.strip() == sse.DONE else event.bytes)
                return self._end(reading)
            case Kind.ERROR:
                return self._error(reading, event, out)
        out.append(event.bytes)
        return None

    def _token(self, now: float) -> None:
        passage = self._passage
        if self._last_token_at:
            passage.gaps.observe(now - self._last_token_at)
        else:
            self._timers.enter("idle", passage.limits.idle, now, slides=True)
            if passage.first_token_at is None:
                passage.first_token_at = now
            if passage.on_first_token is not None:
                passage.on_first_token()
        self._last_token_at = passage.progress_at = now

    def _hold(self, event: bytes, now: float) -> None:
        self._held.append(event)
        if len(self._held) == 1:
            self._timers.hold(self._passage.limits.preamble_hold, now)

    def _end(self, reading: Reading) -> Refusal | Kind:
        if reading.failure and self._failed_inside is None:
            self._failed_inside = Refusal(Outcome.ENGINE_FAILED_INSIDE, reading.failure)
        return Kind.END

    def _error(self, reading: Reading, event: sse.Event, out: list[bytes]) -> Refusal | None:
        """The engine says it failed: nothing sent yet, then elsewhere; else its words go on and the end is awaited."""
        refusal = Refusal(Outcome.ENGINE_FAILED_INSIDE, reading.failure or "the engine reported an error")
        if not self._passage.reached and not out:
            return refusal
        self._failed_inside = self._failed_inside or refusal
        passage = self._passage
        if passage.route.responses:
            out.append(event.bytes)  # its clients wait for response.failed, which follows at the end
        elif not passage.told:
            passage.told = True
            noticed = is_noticed(passage.route.family, event.data or b"", event.name)
            out.append(event.bytes if noticed else self._told(refusal))
        return None

    async def _commit(self, out: list[bytes]) -> None:
        """Headers if they have not left, what was held, and these events: one send."""
        passage = self._passage
        if not passage.exchange.answered:
            await passage.exchange.start(200, SSE_HEADERS)
        if self._held:
            out = self._held + out
            self._held = []
            self._timers.hold_at = inf
        data = out[0] if len(out) == 1 else b"".join(out)
        passage.reached = True
        passage.bytes_out += len(data)
        await passage.exchange.send(data)

    async def _last(self, verdict: Refusal | Kind, out: list[bytes]) -> Refusal | None:
        """The stream is over: whole, or not, in which case the caller decides who hears of it."""
        if isinstance(verdict, Refusal):
            if out:
                await self._commit(out)
            return verdict
        await self._commit(out)
        await self._passage.exchange.end()
        self._timers.alarm.set(inf)  # nothing is due any more: no comment, no limit
        await self._let_the_engine_finish()
        return None

    async def _let_the_engine_finish(self) -> None:
        """The last chunk mostly comes with the last event: then the connection can serve again.

        Shielded: a client that leaves once it has everything has not left early.
        """
        response = self._call.response
        if not response.complete:
            with trio.move_on_after(_TAIL_WITHIN_S, shield=True):
                try:
                    while await self._call.pieces():
                        continue
                except (BrokeOff, NotHttp):
                    return

    def _told(self, refusal: Refusal) -> bytes:
        passage = self._passage
        sequence = getattr(self._reading, "sequence", 0)
        return stream_error(passage.route.family, passage.route.responses, refusal, passage.exchange.id, sequence)

    # -- plain answers ------------------------------------------------------------------------------

    async def _plain(self) -> Refusal | None:
        call, limits = self._call, self._passage.limits
        self._passage.first_token_at = self._passage.first_token_at or self._passage.headers_at
        while pieces := await call.pieces():
            if not call.response.complete:
                self._plain_progress(trio.current_time())
            for piece in pieces:
                self._size += len(piece)
                if self._size > limits.answer_max:
                    return Refusal(Outcome.ENGINE_MALFORMED, f"an answer of more than {limits.answer_max} bytes")
                await self._plain_piece(piece)
        return await self._plain_end()

    def _plain_progress(self, now: float) -> None:
        if self._timers.phase != "idle":
            self._timers.enter("idle", self._passage.limits.idle, now, slides=True)
        self._timers.progress(now)
        self._passage.progress_at = now

    async def _plain_piece(self, piece: bytes) -> None:
        if self._piping:
            self._whole = [(b"".join(self._whole) + piece)[-_TAIL:]]
            await self._pipe(piece)
            return
        self._whole.append(piece)
        if self._size > _KEPT_WHOLE and not self._may_need_conversion():
            whole = b"".join(self._whole)
            self._piping, self._whole = True, [whole[-_TAIL:]]
            length = self._call.response.header(b"content-length")
            exact = int(length) if length.isdigit() and not self._recoded() else None
            await self._passage.exchange.start(self._call.response.status, self._headers(), exact)
            await self._pipe(whole)

    async def _pipe(self, data: bytes) -> None:
        self._passage.reached = True
        self._passage.bytes_out += len(data)
        await self._passage.exchange.send(data)

    async def _plain_end(self) -> Refusal | None:
        passage, exchange, response = self._passage, self._passage.exchange, self._call.response
        whole = b"".join(self._whole)
        if self._piping:
            passage.usage = usage_in_tail(whole)
            await exchange.end()
            return None
        content_type = response.header(b"content-type") or b"application/json"
        try:
            passage.usage = usage_of_answer(whole)
        except NotJson:
            if content_type.startswith(_OF_WORDS) and not self._call.coding:
                return Refusal(Outcome.ENGINE_MALFORMED, "the engine's answer is not JSON")
        if self._may_need_conversion():
            whole = floats_to_base64(whole)
        passage.reached = True
        passage.bytes_out += len(whole)
        coding = self._call.coding
        await exchange.answer(response.status, whole, [(b"content-encoding", coding)] if coding else (), content_type)
        return None

    def _may_need_conversion(self) -> bool:
        """base64 was asked for and floats come: some clients would read garbage (api.md §0.12)."""
        if self._converts is None:  # asked once, when what is kept is whole or long enough to tell
            self._converts = self._passage.wants_base64 and looks_like_floats(b"".join(self._whole))
        return self._converts

    def _recoded(self) -> bool:
        return bool(self._call.response.header(b"content-encoding")) and not self._call.coding

    def _headers(self) -> list[tuple[bytes, bytes]]:
        headers = [(b"content-type", self._call.response.header(b"content-type") or b"application/json")]
        if self._call.coding:
            headers.append((b"content-encoding", self._call.coding))
        return headers

    def _settle(self) -> None:
        """What was seen stays with the passage, whatever happened."""
        reading, passage = self._reading, self._passage
        if reading is not None:
            passage.tokens += reading.tokens
            passage.reading = None
            passage.usage = reading.usage or passage.usage
            passage.sequence = getattr(reading, "sequence", 0)


def _framed(framer: sse.Framer, pieces: list[bytes]) -> list[bytes]:
    if len(pieces) == 1:
        return framer.feed(pieces[0])
    return [event for piece in pieces for event in framer.feed(piece)]
