"""A client that leaves, in every phase: the engine hears of it within a second, and every count returns to 0.

The world's own end asserts the counts; these tests assert the moment.
"""

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from llmgw.core.breaker import State
from llmgw.core.fleet import Engine as Kind
from tests.gateway.engine_bytes import ANSWER, DONE, LAST, ROLE, SSE_HEAD, chunk, delta, says, silent, stream
from tests.gateway.world import Caller, Engine, World, chat, fleet_with, world

HALF_A_BODY = ANSWER[:-10]
HUNDRED = [act for number in range(100) for act in (chunk(delta(f"<{number}>")), 0.1)]
PHASES = [
    ("waiting for headers", True, [600.0]),
    ("waiting for the first token", True, [SSE_HEAD, 600.0]),
    ("a role is held", True, [SSE_HEAD, chunk(ROLE), 600.0]),
    ("between tokens", True, [SSE_HEAD, chunk(delta("a")), 600.0]),
    ("in the middle of an event", True, [SSE_HEAD, chunk(b"data: {"), 600.0]),
    ("tokens come fast", True, [SSE_HEAD, *HUNDRED]),
    ("a plain answer", False, [600.0]),
    ("in the middle of a plain answer", False, [HALF_A_BODY, 600.0]),
]
ROUTES = ["chat/completions", "completions", "embeddings", "rerank", "score", "tokenize", "detokenize", "responses",
          "messages", "messages/count_tokens"]  # fmt: skip


@pytest.mark.parametrize(("streaming", "acts"), [row[1:] for row in PHASES], ids=[row[0] for row in PHASES])
async def test_the_engine_hears_within_a_second_that_the_client_left(
    autojump_clock: MockClock, streaming: bool, acts: list
) -> None:
    """G17, G18, G19"""
    engine = Engine(says(*acts))
    async with world(engine) as w:
        client = w.client()
        await client.post("/v1/chat/completions", chat(streaming))
        await trio.sleep(0.35)
        left_at = trio.current_time()
        client.leave()
        with trio.fail_after(1):
            await engine.callers[0].left.wait()
            await w.settled()

        assert engine.callers[0].left_at == pytest.approx(left_at, abs=0.01)
        assert w.endpoint().in_flight == 0
        assert (w.record.outcome, w.record.status) == ("client_gone", 499)
        assert w.record.total_s == pytest.approx(0.35, abs=0.01)
        assert w.breaker() is State.CLOSED
        assert w.endpoint().breaker.failures == 0
        assert len(w.rows) == 1
        assert w.gate.metrics.cancellation.count == 1


async def test_three_of_a_hundred_events_are_charged_as_what_was_generated(autojump_clock: MockClock) -> None:
    """G17"""
    engine = Engine(says(SSE_HEAD, *HUNDRED, chunk(DONE), LAST))
    async with world(engine) as w:
        client = w.client()
        await client.post("/v1/chat/completions", chat())
        await client.until(b"<2>")
        client.leave()
        await engine.callers[0].left.wait()
        await w.settled()

        assert (w.record.completion_tokens, w.record.estimated) == (3, True)
        assert w.rows[0][10:14] == (0, 3, 0, True)


async def test_a_client_that_leaves_while_dialling_ends_the_dial(autojump_clock: MockClock) -> None:
    """G18"""
    engine = Engine(silent, picks_up=trio.Event())
    async with world(engine) as w:
        client = w.client()
        await client.post("/v1/chat/completions", chat())
        await engine.dialled.wait()
        await trio.sleep(0.5)
        client.leave()
        await w.settled()

        assert trio.current_time() == pytest.approx(0.5, abs=0.05)
        assert w.record.outcome == "client_gone"
        assert engine.callers == []
        assert w.breaker() is State.CLOSED


async def test_a_client_that_leaves_in_the_middle_of_its_body_meets_no_engine(autojump_clock: MockClock) -> None:
    engine = Engine(silent)
    async with world(engine) as w:
        client = w.client()
        await client.stream.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer sk-a-key-brought-along\r\n"
            b'content-length: 100\r\n\r\n{"model":'
        )
        await trio.sleep(0.5)
        client.leave()
        await w.settled()

        assert (w.record.outcome, w.record.status) == ("client_gone", 499)
        assert not engine.dialled.is_set()
        assert w.rows == []


async def test_a_client_that_leaves_while_its_body_goes_to_a_busy_engine_is_noticed(autojump_clock: MockClock) -> None:
    """The engine takes no byte of a large body."""

    async def takes_nothing(caller: Caller) -> None:
        await caller.left.wait()
        caller.stream.close()

    engine = Engine(takes_nothing, room=1000)
    async with world(engine) as w:
        client = w.client()
        await client.post("/v1/chat/completions", chat(padding="x" * 200_000))
        await trio.sleep(0.5)
        client.leave()
        with trio.fail_after(1):
            await engine.callers[0].left.wait()
            await w.settled()

        assert w.record.outcome == "client_gone"


async def test_a_client_that_leaves_while_it_does_not_read_is_noticed(autojump_clock: MockClock) -> None:
    """Backpressure holds the engine's events back, and the hang-up is seen all the same."""
    big = chunk(delta("x" * 5000))
    engine = Engine(says(SSE_HEAD, *[big] * 1000, chunk(DONE), LAST), room=4096)
    async with world(engine) as w:
        client = w.client(room=4096)
        await client.post("/v1/chat/completions", chat())
        await trio.sleep(5.0)
        assert w.endpoint().in_flight == 1
        client.leave()
        with trio.fail_after(1):
            await engine.callers[0].left.wait()
            await w.settled()

        assert w.record.outcome == "client_gone"


async def test_a_client_that_takes_nothing_for_too_long_is_cut_off_and_named(autojump_clock: MockClock) -> None:
    engine = Engine(says(SSE_HEAD, *[chunk(delta("x" * 5000))] * 1000, chunk(DONE), LAST), room=4096)
    async with world(engine) as w:
        client = w.client(room=4096)
        await client.post("/v1/chat/completions", chat())
        await client.head()
        with trio.fail_after(40):
            await engine.callers[0].left.wait()
            await w.settled()

        assert w.record.outcome == "client_stalled"
        assert w.breaker() is State.CLOSED
        assert [what for what, _ in w.reports] == ["client stalled"]
        w.reports.clear()


async def test_a_slow_client_is_not_the_engines_silence(autojump_clock: MockClock) -> None:
    """It takes a little every 25 s: no limit on the engine runs meanwhile."""
    events = [chunk(delta("x" * 5000))] * 20
    engine = Engine(says(SSE_HEAD, *events, chunk(DONE), LAST), room=2048)
    async with world(engine) as w:
        client = w.client(room=2048)
        await client.post("/v1/chat/completions", chat())
        for _ in range(30):
            await trio.sleep(25.0)
            await client.stream.receive(2048)
        client.leave()
        await w.settled()

        assert w.record.outcome == "client_gone"


@pytest.mark.parametrize("route", ROUTES)
async def test_every_route_is_counted_by_the_same_guard(autojump_clock: MockClock, route: str) -> None:
    """G25"""
    engine = Engine(silent)
    async with world(engine) as w:
        client = w.client()
        await client.post(f"/v1/{route}", {"model": "m"})
        await trio.sleep(0.1)
        assert (w.endpoint().in_flight, w.gate.metrics.in_flight) == (1, 1)
        client.leave()
        with trio.fail_after(1):
            await engine.callers[0].left.wait()

        assert w.endpoint().in_flight == 0


async def test_a_hundred_that_leave_before_headers_leave_no_load(autojump_clock: MockClock) -> None:
    """G24"""
    async with world(Engine(silent)) as w:
        clients = [w.client() for _ in range(100)]
        for client in clients:
            await client.post("/v1/chat/completions", chat())
        await trio.testing.wait_all_tasks_blocked()
        assert w.endpoint().in_flight == 100
        for client in clients:
            client.leave()
        await w.settled()

        assert w.endpoint().in_flight == 0
        assert w.endpoint().saturation(trio.current_time()) == 0
        assert len(w.closed) == 100


async def test_streams_cut_half_way_leave_room_for_the_next(autojump_clock: MockClock) -> None:
    """G20"""
    engine = Engine(says(SSE_HEAD, chunk(delta("a")), 1.0, chunk(DONE), LAST), options={"capacity": 4})
    async with world(engine) as w:
        clients = [w.client() for _ in range(4)]
        for client in clients:
            await client.post("/v1/chat/completions", chat())
            await client.until(delta("a"))
        assert w.endpoint().saturation(trio.current_time()) == 1
        for client in clients:
            client.leave()
        await w.settled()
        assert w.endpoint().saturation(trio.current_time()) == 0

        assert (await w.chat()).events == [delta("a"), DONE]


async def test_a_connection_whose_client_left_serves_nobody_else(autojump_clock: MockClock) -> None:
    engine = Engine(says(SSE_HEAD, chunk(delta("a")), 5.0, chunk(DONE), LAST))
    async with world(engine) as w:
        client = w.client()
        await client.post("/v1/chat/completions", chat())
        await client.until(delta("a"))
        client.leave()
        await w.settled()
        assert w.endpoint().client.idle_connections == 0
        assert (await w.chat()).events == [delta("a"), DONE]


def moved(w: World, *engines: Engine) -> None:
    w.engines.update({engine.name: engine for engine in engines})
    w.live.apply(fleet_with(engines), trio.current_time())


async def test_requests_end_on_the_counter_they_began_on(autojump_clock: MockClock) -> None:
    """G23: five in flight on an endpoint that goes and comes back under its name."""
    end = trio.Event()
    engine = Engine(says(SSE_HEAD, chunk(delta("a")), end, chunk(DONE), LAST))
    async with world(engine) as w:
        clients = [w.client() for _ in range(5)]
        for client in clients:
            await client.post("/v1/chat/completions", chat())
            await client.until(delta("a"))
        old = w.endpoint()
        moved(w)
        stranger = w.client()
        await stranger.post("/v1/chat/completions", chat())
        assert (await stranger.answer()).status == 404
        moved(w, Engine(engine.script, options={"capacity": 7}, callers=engine.callers, got=engine.got))
        new = w.endpoint()
        assert (old.in_flight, new.in_flight, old is new) == (5, 0, False)
        end.set()
        for client in clients:
            assert (await client.answer()).whole
        await w.settled()

        assert (old.in_flight, new.in_flight) == (0, 0)
        assert w.live.leaving() == []
        assert [record.outcome for record in w.closed].count("ok") == 5


async def test_an_error_while_the_request_is_built_gives_its_place_back(autojump_clock: MockClock) -> None:
    """G27: the member's name is written with an escape, so it can't be replaced in place."""
    async with world(Engine(says(stream(DONE)), options={"served_as": "other"})) as w:
        answer = await w.post("/v1/chat/completions", b'{"mod\\u0065l":"m","stream":true}')

        assert (answer.status, answer.error["param"]) == (400, "model")
        assert w.endpoint().in_flight == 0
        assert w.endpoint().breaker.failures == 0


async def test_a_fault_of_ours_is_said_to_be_one(autojump_clock: MockClock) -> None:
    """An exception inside the road: 500, counted as internal, nothing left behind."""
    async with world(Engine(silent), Engine(silent, "b")) as w:
        w.gate.draw = lambda: 1 / 0
        answer = await w.chat()

        assert (answer.status, answer.error["code"]) == (500, "internal_error")
        assert (w.record.outcome, w.record.status) == ("internal", 500)
        assert [what for what, _ in w.reports] == ["request failed"]
        w.reports.clear()


async def test_the_engine_is_left_at_once_where_its_head_comes_late(autojump_clock: MockClock) -> None:
    engine = Engine(silent, kind=Kind.LLAMACPP)
    async with world(engine) as w:
        client = w.client()
        await client.post("/v1/chat/completions", chat())
        await trio.sleep(40.0)  # comments have left by now
        client.leave()
        with trio.fail_after(1):
            await engine.callers[0].left.wait()
        await w.settled()

        assert w.record.outcome == "client_gone"


async def test_a_client_that_leaves_once_it_has_everything_has_not_left_early(autojump_clock: MockClock) -> None:
    """The engine's last chunk comes a little behind its last event."""
    async with world(Engine(says(SSE_HEAD, chunk(delta("a")), chunk(DONE), 0.03, LAST))) as w:
        client = w.client()
        await client.post("/v1/chat/completions", chat())
        assert (await client.answer()).events == [delta("a"), DONE]
        client.leave()
        await w.settled()

        assert (w.record.outcome, w.record.status) == ("ok", 200)


async def test_an_engine_that_takes_no_byte_of_the_request_is_given_up(autojump_clock: MockClock) -> None:
    async def takes_nothing(caller: Caller) -> None:
        await caller.left.wait()
        caller.stream.close()

    engines = Engine(takes_nothing, room=1000), Engine(says(stream(delta("b"), DONE)), "b")
    async with world(*engines) as w:
        answer = await w.chat(padding="x" * 200_000)

        assert answer.events == [delta("b"), DONE]
        assert [what for _, what, _, _ in w.record.tries] == ["engine_broke", "ok"]
        assert trio.current_time() < 31
