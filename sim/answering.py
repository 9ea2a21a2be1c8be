"""One generation on its way to the client, with whatever fault befalls it."""

from collections.abc import Callable

import trio
from attrs import define, field

from llmgw.gateway.exchange import Exchange
from sim.asked import Ask
from sim.connecting import reset_connection
from sim.engine_model import Engine, Sequence, State
from sim.faults import NO_FAULT, Fault
from sim.first_tokens import FirstTokens
from sim.openai_forms import Form, compact

EVENT_STREAM = [(b"content-type", b"text/event-stream; charset=utf-8")]
_FAILED = "EngineCore encountered an issue. See stack trace (above) for the root cause."


@define(eq=False)
class Answering:
    engine: Engine
    die: Callable[[], None]
    first_tokens: FirstTokens = field(factory=FirstTokens, init=False)

    async def answer(self, exchange: Exchange, ask: Ask, form: Form, fault: Fault) -> bool:
        """Whether the engine got to the end of it."""
        with self.engine.sequence(ask.prompt, ask.wants, form.id) as sequence:
            try:
                if ask.stream:
                    await exchange.start(200, EVENT_STREAM)
                    await exchange.flush()  # as vLLM does: the head does not wait for a token
                if fault.slow_first_token_s:
                    await trio.sleep(fault.slow_first_token_s)
                if ask.stream:
                    await self._stream(exchange, sequence, form, fault)
                else:
                    await self._plain(exchange, sequence, form, fault)
            finally:
                if sequence.first_at is not None:
                    waited = sequence.first_at - exchange.received_at
                    self.first_tokens.took(max(waited, fault.slow_first_token_s))
            return sequence.state is State.DONE

    async def _stream(self, exchange: Exchange, sequence: Sequence, form: Form, fault: Fault) -> None:
        sent = 0
        while count := await sequence.tokens():
            if not sent:
                await exchange.send(form.opening())
            pieces = form.pieces(sent, count)
            if fault is not NO_FAULT and await self._misbehaves(exchange, form, fault, pieces, sent, sequence.wants):
                return
            sent += count
            await exchange.send(b"".join(pieces))
        await exchange.send(form.closing(sent, sequence.cached_tokens))
        await exchange.end()

    async def _misbehaves(
        self, exchange: Exchange, form: Form, fault: Fault, pieces: list[bytes], sent: int, wants: int
    ) -> bool:
        """Spoil these pieces, or the whole stream: True when it is over."""
        if not sent:
            pieces[:0] = _oddities(form, fault)
        ends_after = _ends_after(fault, wants)
        if ends_after is None or sent + len(pieces) < ends_after:
            return False
        await exchange.send(b"".join(pieces[: max(0, ends_after - sent)]))
        if fault.die_after_events is not None:
            self.die()
        if fault.role_then_error or fault.error_event_after is not None:
            await exchange.send(form.failure(_FAILED))
        await self._ends_badly(exchange, fault)
        return True

    async def _ends_badly(self, exchange: Exchange, fault: Fault) -> None:
        if fault.reset_after_events is not None:
            # A step later, so that what was sent has been read: a reset takes the rest with it.
            await trio.sleep(self.engine.shape.step)
            reset_connection()
        if _cuts(fault):
            exchange.cut()
        else:
            await exchange.end()

    async def _plain(self, exchange: Exchange, sequence: Sequence, form: Form, fault: Fault) -> None:
        made = await sequence.all_tokens()
        await self.say(exchange, form.whole(made, sequence.cached_tokens), fault)

    async def say(self, exchange: Exchange, body: bytes, fault: Fault) -> None:
        """A plain answer, or what a fault makes of it."""
        if fault.die_after_events is not None:
            self.die()
        if fault.reset_after_events is not None:
            reset_connection()
        if _cuts(fault):
            exchange.cut()
        elif fault.role_then_error or fault.error_event_after is not None:
            failed = {"message": _FAILED, "type": "InternalServerError", "param": None, "code": 500}
            await exchange.answer(500, compact({"error": failed}))
        elif fault.truncated:
            await exchange.start(200, [(b"content-type", b"application/json")], length=len(body))
            await exchange.send(body[: len(body) // 2])
            exchange.cut()
        else:
            await exchange.answer(200, _spoiled(body, fault))


def _oddities(form: Form, fault: Fault) -> list[bytes]:
    odd = []
    if fault.malformed:
        odd.append(b'data: {"id":"chatcmpl-broken","choices":[{"delta":{"content":\n\n')
    if fault.huge_line:
        odd.append(b'data: {"choices":[],"padding":"' + b"x" * fault.huge_line + b'"}\n\n')
    return odd


def _ends_after(fault: Fault, wants: int) -> int | None:
    """After how many events the stream ends badly; None when it does not."""
    if fault.role_then_error:
        return 0
    ways = (fault.die_after_events, fault.reset_after_events, fault.cut_after_events, fault.error_event_after)
    for events in ways:
        if events is not None:
            return events
    return max(1, wants // 2) if fault.truncated else None


def _cuts(fault: Fault) -> bool:
    """Whether the connection goes before the answer is whole."""
    return (fault.die_after_events, fault.reset_after_events, fault.cut_after_events) != (None, None, None)


def _spoiled(body: bytes, fault: Fault) -> bytes:
    if fault.malformed:
        return body[: len(body) * 2 // 3]
    if fault.huge_line:
        return b'{"padding":"' + b"x" * fault.huge_line + b'",' + body[1:]
    return body
