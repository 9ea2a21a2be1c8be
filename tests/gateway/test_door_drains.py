"""A door that closes: what was under way ends whole, and no connection outlives it."""

import trio
from trio.testing import MockClock

from tests.gateway.engine_bytes import ANSWER, DONE, LAST, SSE_HEAD, chunk, delta, says
from tests.gateway.world import Caller, Engine, chat, world

PATH = "/v1/chat/completions"
ANSWERS = says(ANSWER)


async def test_a_connection_whose_stream_began_before_ends_with_it(autojump_clock: MockClock) -> None:
    goes_on = trio.Event()

    async def half(caller: Caller) -> None:
        await caller.request()
        await caller.send(SSE_HEAD + chunk(delta("Hel")))
        await goes_on.wait()
        await caller.send(chunk(delta("lo")) + chunk(DONE) + LAST)

    async with world(Engine(half)) as w:
        client = w.client()
        await client.post(PATH, chat(stream=True))
        await client.until(b"Hel")
        w.door.drain()  # its head has gone out, and said nothing of an end
        goes_on.set()
        answer = await client.answer()
        assert answer.whole
        await w.settled()
        began = trio.current_time()
        while w.door.connections:  # noqa: ASYNC110 - virtual time
            await trio.sleep(0.01)
        assert trio.current_time() - began < 1, "it stays open until it has been idle for long"


async def test_who_was_let_in_just_before_is_answered(autojump_clock: MockClock) -> None:
    async with world(Engine(ANSWERS)) as w:
        client = w.client()
        await trio.testing.wait_all_tasks_blocked()
        w.door.drain()
        await client.post(PATH, chat(stream=False))
        answer = await client.answer()
        assert answer.status == 200
        assert answer.header(b"connection") == [b"close"]


async def test_who_is_let_in_while_it_closes_is_answered(autojump_clock: MockClock) -> None:
    async with world(Engine(ANSWERS)) as w:
        w.door.drain()
        client = w.client()
        await trio.testing.wait_all_tasks_blocked()
        await client.post(PATH, chat(stream=False))
        assert (await client.answer()).status == 200


async def test_half_a_head_is_waited_for(autojump_clock: MockClock) -> None:
    async with world(Engine(ANSWERS)) as w:
        client = w.client()
        await client.post(PATH, chat(stream=False))
        await client.answer()
        await client.stream.send(b"GET /health HT")
        await trio.testing.wait_all_tasks_blocked()
        w.door.drain()
        await trio.sleep(2)
        await client.stream.send(b"TP/1.1\r\nhost: gateway\r\n\r\n")
        assert (await client.answer()).status == 200


async def test_who_never_asks_holds_nothing_up(autojump_clock: MockClock) -> None:
    async with world(Engine(ANSWERS)) as w:
        before, asked = w.client(), w.client()
        await asked.post(PATH, chat(stream=False))
        await asked.answer()
        await w.settled()
        w.door.drain()
        await trio.testing.wait_all_tasks_blocked()
        assert len(w.door.connections) == 1, "an idle connection that had its answer stays"
        late = w.client()
        await trio.sleep(1.1)
        assert not w.door.connections
        assert not (await before.answer()).whole
        assert not (await late.answer()).whole
