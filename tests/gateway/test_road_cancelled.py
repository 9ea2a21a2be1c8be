"""Requests that run now are shown without what they say, and an operator may end one in any phase."""

import trio
import trio.testing
from trio.testing import MockClock

from llmgw.gateway.running import cancel, running
from tests.gateway.engine_bytes import SSE_HEAD, chunk, delta
from tests.gateway.test_road_admission import RING, Slow, ask, slots, until_idle
from tests.gateway.world import Caller, Engine, chat, world

PATH = "/v1/chat/completions"


async def half_a_stream(caller: Caller) -> None:
    await caller.request()
    await caller.send(SSE_HEAD + chunk(delta("Hel")))
    await trio.sleep_forever()


async def silent(caller: Caller) -> None:
    await caller.request()
    await trio.sleep_forever()


async def test_what_runs_is_shown_by_phase_and_never_by_content(autojump_clock: MockClock) -> None:
    slow = Slow()
    async with world(slots(slow), ring=RING) as w:
        await ask(w, "a secret")
        await ask(w, "another secret")
        await trio.sleep(2)
        first, second = running(w.gate, trio.current_time())
        assert (first["phase"], first["endpoint"], first["tenant"], first["age_s"]) == ("sent", "a", "a", 2.0)
        assert (second["phase"], second["endpoint"]) == ("queued", "")
        assert "secret" not in str([first, second])
        assert running(w.gate, trio.current_time(), endpoint="b") == []
        await until_idle(slow)


async def test_a_stream_is_ended_with_an_error_event_and_its_engine_is_left(autojump_clock: MockClock) -> None:
    engine = Engine(half_a_stream)
    async with world(engine) as w:
        client = w.client()
        await client.post(PATH, chat(stream=True))
        await client.until(b"Hel")
        (one,) = running(w.gate, trio.current_time())
        assert (one["phase"], one["tokens"]) == ("streaming", 1)
        assert cancel(w.gate, one["id"])
        answer = await client.answer()
        await w.settled()
        assert b"an operator ended this request" in answer.body
        assert b"[DONE]" not in answer.body
        assert w.record.outcome == "cancelled"
        assert engine.open_callers == 0


async def test_a_request_without_a_word_yet_is_a_503_that_is_not_tried_elsewhere(autojump_clock: MockClock) -> None:
    async with world(Engine(silent, "a"), Engine(silent, "b")) as w:
        client = w.client()
        await client.post(PATH, chat(stream=False))
        await trio.testing.wait_all_tasks_blocked()
        (one,) = running(w.gate, trio.current_time())
        cancel(w.gate, one["id"])
        answer = await client.answer()
        await w.settled()
        assert (answer.status, answer.error["code"]) == (503, "request_cancelled")
        assert answer.header(b"x-should-retry") == [b"false"]
        assert len(w.record.tries) == 1


async def test_one_that_waits_in_a_queue_leaves_its_place(autojump_clock: MockClock) -> None:
    slow = Slow()
    async with world(slots(slow), ring=RING) as w:
        await ask(w)
        waits = await ask(w, "late")
        queued = running(w.gate, trio.current_time())[1]
        cancel(w.gate, queued["id"])
        answer = await waits.answer()
        assert (answer.status, answer.error["code"]) == (503, "request_cancelled")
        assert w.gate.admission.waiting == 0
        await until_idle(slow)
        assert slow.order == ["x"]


async def test_a_request_that_is_over_can_not_be_ended(autojump_clock: MockClock) -> None:
    async with world(Engine(silent)) as w:
        assert not cancel(w.gate, "req-nobody")
