"""The pool of connections to one engine: kept, retired, replaced when stale; never a limit."""

import pytest
import trio
from trio.testing import MockClock

from llmgw.core.bands import AdmissionLimits
from llmgw.core.breaker import State
from llmgw.gateway.limits import RelayLimits
from tests.gateway.engine_bytes import ANSWER, CLOSE, DONE, LAST, SSE_HEAD, chunk, delta, in_turn, says, silent, stream
from tests.gateway.world import Caller, Engine, chat, world


async def test_a_connection_serves_one_request_after_another(autojump_clock: MockClock) -> None:
    engine = Engine(says(stream(delta("a"), DONE)))
    async with world(engine) as w:
        for _ in range(5):
            assert (await w.chat()).whole

        assert len(engine.callers) == 1
        assert w.endpoint().client.counts.reuses == 4


async def test_an_idle_connection_is_retired_before_the_engine_closes_it(autojump_clock: MockClock) -> None:
    """G29: vLLM closes after 5 s; at 5.0 s nobody walks into it."""
    engine = Engine(says(ANSWER))
    async with world(engine) as w:
        await w.chat(stream=False)
        await trio.sleep(5.0)
        answer = await w.chat(stream=False)

        assert answer.status == 200
        assert len(engine.callers) == 2
        assert w.endpoint().client.counts.replays == 0


async def closes_when_asked_again(caller: Caller) -> None:
    """The race itself: the second request meets the engine's close."""
    await caller.request()
    await caller.send(ANSWER)
    await caller.request()
    caller.stream.close()


async def resets_when_asked_again(caller: Caller) -> None:
    await caller.request()
    await caller.send(ANSWER)
    await caller.request()
    caller.stream.reset()


@pytest.mark.parametrize("stale", [closes_when_asked_again, resets_when_asked_again])
async def test_a_reused_connection_that_dies_before_any_byte_is_replaced_once(
    autojump_clock: MockClock, stale: object
) -> None:
    """G29: no 502, no mark against the engine, and the attempt stays one."""
    engine = Engine(in_turn(stale, says(ANSWER)))  # type: ignore[arg-type]
    async with world(engine) as w:
        first = await w.chat(stream=False)
        second = await w.chat(stream=False)

        assert (first.status, second.status) == (200, 200)
        assert w.endpoint().client.counts.replays == 1
        assert len(w.record.tries) == 1
        assert w.endpoint().breaker.failures == 0
        assert engine.got[1].body == engine.got[2].body


async def test_a_connection_that_dies_on_the_replay_too_is_the_engines_failure(autojump_clock: MockClock) -> None:
    async def drops(caller: Caller) -> None:
        await caller.request()
        caller.stream.close()

    engine = Engine(in_turn(closes_when_asked_again, drops))
    async with world(engine) as w:
        await w.chat(stream=False)
        answer = await w.chat(stream=False)

        assert answer.status == 502
        assert len(engine.callers) == 2
        assert w.record.outcome == "engine_broke"


@pytest.mark.parametrize("streaming", [True, False])
async def test_the_dial_of_a_replay_has_the_dials_deadline(autojump_clock: MockClock, streaming: bool) -> None:
    """G29 with G52: the engine drops the idle connection and then picks up no more."""
    engine = Engine(closes_when_asked_again)
    async with world(engine) as w:
        await w.chat(stream=False)
        engine.picks_up = trio.Event()
        began = trio.current_time()
        answer = await w.chat(stream=streaming)

        assert answer.status == 504
        assert w.record.outcome == "dial_timeout"
        assert "dial deadline" in answer.error["message"]
        assert trio.current_time() - began == pytest.approx(2.0, abs=0.2)


async def test_a_replay_goes_on_being_watched_by_the_usual_limits(autojump_clock: MockClock) -> None:
    engine = Engine(in_turn(closes_when_asked_again, silent))
    async with world(engine) as w:
        await w.chat(stream=False)
        answer = await w.chat()

        assert w.record.outcome == "headers_timeout"
        assert answer.whole


async def test_a_comment_that_falls_due_while_a_replay_dials_harms_nothing(autojump_clock: MockClock) -> None:
    async def closes_late(caller: Caller) -> None:
        await caller.request()
        await caller.send(ANSWER)
        await caller.request()
        await trio.sleep(14.0)
        caller.stream.close()

    engine = Engine(in_turn(closes_late, says(stream(delta("a"), DONE))))
    async with world(engine) as w:
        await w.chat(stream=False)
        engine.picks_up = trio.Event()
        client = w.client()
        await client.post("/v1/chat/completions", chat())
        await trio.sleep(15.5)
        engine.picks_up.set()
        answer = await client.answer()

        assert [event for event in answer.events if not event.startswith(b":")] == [delta("a"), DONE]
        await w.settled()
        assert w.record.outcome == "ok"


async def test_an_engine_that_hangs_up_on_an_idle_connection_is_not_asked_through_it(
    autojump_clock: MockClock,
) -> None:
    engine = Engine(says(ANSWER, CLOSE))
    async with world(engine) as w:
        for _ in range(3):
            assert (await w.chat(stream=False)).status == 200
            assert w.endpoint().client.idle_connections == 0

        assert w.endpoint().client.counts.replays == 0


LEFT_OVER = [
    ("it says close", b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}"),
    ("HTTP/1.0", b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}"),
    ("bytes behind the end", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\n"),
]


@pytest.mark.parametrize("sent", [row[1] for row in LEFT_OVER], ids=[row[0] for row in LEFT_OVER])
async def test_a_connection_that_can_not_be_trusted_is_not_kept(autojump_clock: MockClock, sent: bytes) -> None:
    engine = Engine(says(sent))
    async with world(engine) as w:
        for _ in range(2):
            answer = await w.chat(stream=False)
            assert (answer.status, answer.body) == (200, b"{}")

        assert len(engine.callers) == 2


async def test_an_answer_without_framing_ends_with_the_connection(autojump_clock: MockClock) -> None:
    async with world(Engine(says(b"HTTP/1.1 200 OK\r\ncontent-type: text/x\r\n\r\n", b"all", b" of it", CLOSE))) as w:
        answer = await w.chat(stream=False)

        assert answer.body == b"all of it"
        assert answer.header(b"content-length") == [b"9"]


async def test_three_hundred_requests_at_once_are_at_the_engine_at_once(autojump_clock: MockClock) -> None:
    """G38: no hidden limit queues them."""
    everybody = trio.Event()
    engine = Engine(says(SSE_HEAD, chunk(delta("a")), everybody, chunk(DONE), LAST))
    async with world(engine, admission=AdmissionLimits(mode="off")) as w:
        clients = [w.client() for _ in range(300)]
        for client in clients:
            await client.post("/v1/chat/completions", chat())
        for client in clients:
            await client.until(delta("a"))
        assert len(engine.got) == 300
        assert w.endpoint().in_flight == 300
        everybody.set()
        for client in clients:
            assert (await client.answer()).whole

        await w.settled()
        assert w.endpoint().client.counts.dials == 300
        assert w.endpoint().client.counts.dial_s < 0.01
        assert w.breaker() is State.CLOSED


async def test_an_alarm_that_rang_when_nobody_waited_is_not_left_to_the_next_request(
    autojump_clock: MockClock,
) -> None:
    """The keep-alive falls due in the moment between the last event and the last chunk."""
    engine = Engine(says(SSE_HEAD, 14.98, chunk(delta("a")), chunk(DONE), 0.04, LAST))
    async with world(engine, limits=RelayLimits(keepalive_after=15)) as w:
        client = w.client()
        for _ in range(2):
            await client.post("/v1/chat/completions", chat())
            answer = await client.answer()
            assert answer.events == [delta("a"), DONE]
            await w.settled()
            assert w.record.outcome == "ok"
