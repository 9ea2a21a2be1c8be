"""A door that closes: what was under way ends whole, and no connection outlives it."""

import trio
from trio.testing import MockClock

from tests.gateway.engine_bytes import DONE, LAST, SSE_HEAD, chunk, delta
from tests.gateway.world import Caller, Engine, chat, world

PATH = "/v1/chat/completions"


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
