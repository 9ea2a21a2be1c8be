"""Probes on a clock of their own: what takes an endpoint out, what brings it back, what a sample is worth."""

from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any, cast

import pytest
import trio
from attrs import define, evolve, field
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from llmgw.core.breaker import Breaker, State
from llmgw.core.fleet import Endpoint, Engine
from llmgw.engines.client import BrokeOff, EngineClient, NotHttp, Unreachable
from llmgw.engines.limits import ProbeLimits
from llmgw.engines.live import LiveEndpoint
from llmgw.engines.probe import Probing, probe

LIMITS = ProbeLimits(metrics=0.5, health=2.0, timeout=2.0, failures=2, successes=2)
Answer = tuple[int, bytes] | Exception | None  # None: never
OK: Answer = (200, b"")
LOADING = b'{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}'


def load(running: int, start: float | None = None, kv: float | None = None) -> Answer:
    text = f"vllm:num_requests_running {running}\n"
    text += "" if start is None else f"process_start_time_seconds {start}\n"
    text += "" if kv is None else f"vllm:kv_cache_usage_perc {kv}\n"
    return 200, text.encode()


@define
class ScriptedEngine:
    """Speaks ``fetch``; each route gives its answers in turn, the last one for ever."""

    health: list[Answer] = field(factory=lambda: [OK])
    metrics: list[Answer] = field(factory=lambda: [load(0)])
    asked: list[tuple[float, str]] = field(factory=list)
    on_fetch: Callable[[str], None] = lambda path: None

    async def fetch(self, path: str, most: int) -> tuple[int, bytes]:
        self.asked.append((trio.current_time(), path))
        self.on_fetch(path)
        answers = {"/health": self.health, "/metrics": self.metrics}[path]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer is None:
            await trio.sleep_forever()
        if isinstance(answer, Exception):
            raise answer
        await trio.lowlevel.checkpoint()
        return cast("tuple[int, bytes]", answer)

    def times(self, path: str) -> list[float]:
        return [at for at, asked in self.asked if asked == path]


def live_endpoint(engine: Any, kind: Engine = Engine.VLLM) -> LiveEndpoint:
    endpoint = Endpoint("a", "m", "http://127.0.0.1:1", kind)
    return LiveEndpoint(endpoint, cast(EngineClient, engine), Breaker(), 0.0)


@define
class Watched:
    live: LiveEndpoint
    limits: ProbeLimits = LIMITS
    changes: list[tuple[float, bool | None]] = field(factory=list)

    async def run(self, draw: Callable[[], float] = lambda: 0.5) -> None:
        await probe(self.live, lambda: self.limits, draw, self.changed)

    def changed(self, live: LiveEndpoint) -> None:
        self.changes.append((trio.current_time(), live.healthy))


async def watch(watched: Watched, seconds: float) -> None:
    with trio.move_on_after(seconds):
        await watched.run()


async def test_each_route_is_asked_at_its_period(autojump_clock: MockClock) -> None:
    engine = ScriptedEngine()
    began = trio.current_time()
    await watch(Watched(live_endpoint(engine)), 4.1)
    assert [at - began for at in engine.times("/health")] == pytest.approx([0, 2, 4])
    assert [at - began for at in engine.times("/metrics")] == pytest.approx([0.5 * n for n in range(9)])


async def test_periods_are_a_little_shorter_or_longer_by_the_draw(autojump_clock: MockClock) -> None:
    engine = ScriptedEngine()
    draws = iter([0.0, 1.0] * 20)
    began = trio.current_time()
    with trio.move_on_after(2.0):
        await Watched(live_endpoint(engine), evolve(LIMITS, health=100.0)).run(lambda: next(draws))
    gaps = [b - a for a, b in pairwise(engine.times("/metrics"))]
    assert began == engine.times("/metrics")[0]
    assert {round(gap, 3) for gap in gaps} <= {0.45, 0.55}
    assert len({round(gap, 3) for gap in gaps}) == 2


async def test_a_changed_period_counts_from_the_next_probe(autojump_clock: MockClock) -> None:
    engine = ScriptedEngine()
    watched = Watched(live_endpoint(engine))
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watched.run)
        await trio.sleep(0.6)
        watched.limits = evolve(LIMITS, metrics=10.0)
        await trio.sleep(9)
        nursery.cancel_scope.cancel()
    assert [at - began for at in engine.times("/metrics")] == pytest.approx([0, 0.5, 1.0])


async def test_one_good_answer_makes_an_unknown_endpoint_healthy(autojump_clock: MockClock) -> None:
    watched = Watched(live_endpoint(ScriptedEngine()))
    await watch(watched, 1)
    assert watched.live.healthy is True
    assert watched.live.health_why == "answers"
    assert [healthy for _, healthy in watched.changes] == [True]


async def test_failures_in_a_row_take_it_out_and_successes_bring_it_back(
    autojump_clock: MockClock,
) -> None:
    down = Unreachable("connection refused")
    engine = ScriptedEngine(health=[OK, down, OK, down, down, OK, down, OK, OK])
    watched = Watched(live_endpoint(engine))
    began = trio.current_time()
    await watch(watched, 17)
    assert [(round(at - began), healthy) for at, healthy in watched.changes] == [(0, True), (8, False), (16, True)]


async def test_a_dead_endpoint_is_known_soon_after_the_start_yet_not_by_one_failure(
    autojump_clock: MockClock,
) -> None:
    engine = ScriptedEngine(health=[Unreachable("connection refused")])
    watched = Watched(live_endpoint(engine))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watched.run)
        await trio.sleep(0.05)
        assert watched.live.healthy is None
        await trio.sleep(0.15)
        assert watched.live.healthy is False
        nursery.cancel_scope.cancel()
    assert watched.live.unusable(trio.current_time()) == "unhealthy: connection refused"


async def test_a_dead_endpoint_is_not_asked_more_often_once_it_is_known(autojump_clock: MockClock) -> None:
    engine = ScriptedEngine(health=[Unreachable("connection refused")])
    await watch(Watched(live_endpoint(engine)), 20)
    assert 10 <= len(engine.times("/health")) <= 12


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((503, LOADING), "/health answered 503: Loading model"),
        ((500, b"<html>oops</html>"), "/health answered 500"),
        ((302, b""), "/health answered 302"),
        (BrokeOff("the engine broke off"), "the engine broke off"),
        (NotHttp("no status line"), "no status line"),
        (None, "no answer within 2 s"),
        ((503, b'{"message": "%b"}' % (b"x" * 5000)), "/health answered 503: " + "x" * 200),
    ],
)
async def test_an_unhealthy_answer_says_why(autojump_clock: MockClock, answer: Answer, why: str) -> None:
    watched = Watched(live_endpoint(ScriptedEngine(health=[answer]), Engine.LLAMACPP))
    await watch(watched, 10)
    assert watched.live.healthy is False
    assert watched.live.health_why == why
    assert watched.live.health_at is not None


async def test_a_hosted_api_is_not_probed_and_its_health_stays_unknown(
    autojump_clock: MockClock,
) -> None:
    engine = ScriptedEngine()
    watched = Watched(live_endpoint(engine, Engine.OPENAI))
    await watched.run()
    assert (engine.asked, watched.live.healthy, watched.live.sample) == ([], None, None)
    assert watched.live.unusable(0.0) is None


async def test_a_sample_knows_when_it_was_taken_and_what_was_ours_then(autojump_clock: MockClock) -> None:
    engine = ScriptedEngine(metrics=[load(9)])
    live = live_endpoint(engine)
    live.in_flight = 4
    began = trio.current_time()
    await watch(Watched(live), 0.7)
    assert live.sample is not None
    assert (live.sample.running, live.sample.ours, live.sample.at - began) == (9, 4, pytest.approx(0.5))
    assert live.sample_why == ""


async def test_a_metric_that_vanishes_is_unknown_at_once(autojump_clock: MockClock) -> None:
    live = live_endpoint(ScriptedEngine(metrics=[load(9, kv=0.9), load(9)]))
    await watch(Watched(live), 0.7)
    assert live.sample is not None
    assert live.sample.kv is None


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Unreachable("connection refused"), "connection refused"),
        (None, "the scrape under way does not end"),
        ((500, b""), "/metrics answered 500"),
        ((200, b"vllm:num_requests_running many\n"), "the metrics have no number"),
    ],
)
async def test_a_sample_that_is_stale_is_no_sample(autojump_clock: MockClock, answer: Answer, why: str) -> None:
    engine = ScriptedEngine(metrics=[load(9), answer])
    live = live_endpoint(engine)
    watched = Watched(live)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watched.run)
        await trio.sleep(1.99)
        assert live.sample is not None
        await trio.sleep(0.02)
        assert live.sample is None
        assert why in live.sample_why
        await trio.sleep(5)
        nursery.cancel_scope.cancel()
    assert live.sample is None
    assert live.sample_why
    assert live.healthy is True
    assert [healthy for _, healthy in watched.changes] == [True]


async def test_how_old_a_sample_may_be_is_the_configs(autojump_clock: MockClock) -> None:
    live = live_endpoint(ScriptedEngine(metrics=[load(9), Unreachable("connection refused")]))
    live.limits_changed(5.0, 0.8, sample_stale=7.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Watched(live).run)
        await trio.sleep(6.99)
        assert live.sample is not None
        await trio.sleep(0.02)
        assert live.sample is None
        nursery.cancel_scope.cancel()


async def test_samples_come_back_when_scrapes_do(autojump_clock: MockClock) -> None:
    down: list[Answer] = [Unreachable("connection refused")] * 10
    live = live_endpoint(ScriptedEngine(metrics=[load(9), *down, load(3)]))
    await watch(Watched(live), 6)
    assert live.sample is not None
    assert (live.sample.running, live.sample_why) == (3, "")


@pytest.mark.parametrize("status", [401, 403, 404, 501])
async def test_refused_metrics_are_no_outage_and_no_sample(autojump_clock: MockClock, status: int) -> None:
    live = live_endpoint(ScriptedEngine(metrics=[load(9), (status, b'{"detail":"no"}')]))
    await watch(Watched(live), 0.7)
    assert (live.sample, live.healthy) == (None, True)
    assert live.sample_why == f"/metrics answered {status}: no"


async def test_a_web_page_in_place_of_metrics_is_said(autojump_clock: MockClock) -> None:
    live = live_endpoint(ScriptedEngine(metrics=[(200, b"<html>welcome</html>")]))
    await watch(Watched(live), 0.7)
    assert live.sample_why == "/metrics answers, but says nothing of the load"
    assert live.saturation(trio.current_time()) == 0.0


@pytest.mark.parametrize("answer", [Unreachable("connection refused"), None, (500, b"")])
async def test_an_endpoint_whose_metrics_stop_coming_counts_as_full(autojump_clock: MockClock, answer: Answer) -> None:
    live = live_endpoint(ScriptedEngine(metrics=[load(9), answer, answer, answer, answer, answer, answer, load(3)]))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Watched(live).run)
        await trio.sleep(1.5)
        assert live.saturation(trio.current_time()) < 1
        await trio.sleep(1)
        assert live.saturation(trio.current_time()) == 1
        assert live.usable(trio.current_time())
        await trio.sleep(20)
        assert live.saturation(trio.current_time()) < 1
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("answer", [Unreachable("connection refused"), (404, b""), (200, b"<html>welcome</html>")])
async def test_an_endpoint_that_never_had_metrics_is_unknown_and_not_full(
    autojump_clock: MockClock, answer: Answer
) -> None:
    live = live_endpoint(ScriptedEngine(metrics=[answer, answer, Unreachable("connection refused")]))
    await watch(Watched(live), 60)
    assert live.saturation(trio.current_time()) == 0


async def test_a_sample_that_aged_while_we_slept_is_unknown_and_not_full(autojump_clock: MockClock) -> None:
    live = live_endpoint(ScriptedEngine(metrics=[load(9)]))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Watched(live).run)
        await trio.sleep(0.7)
        autojump_clock.jump(30)
        # Whatever order the probes wake in, none of them blames the endpoint.
        for _ in range(10):
            await trio.lowlevel.checkpoint()
            assert not live.silent
            assert live.healthy is True
        await trio.sleep(1)
        assert live.sample is not None
        nursery.cancel_scope.cancel()


async def test_probes_that_got_no_answer_while_we_slept_say_nothing(autojump_clock: MockClock) -> None:
    engine = ScriptedEngine(health=[OK, None, None, None, None, OK])
    watched = Watched(live_endpoint(engine))

    def doze(path: str) -> None:
        if path == "/health" and 2 <= len(engine.times("/health")) <= 5:
            autojump_clock.jump(10)

    engine.on_fetch = doze
    await watch(watched, 60)
    assert len(engine.times("/health")) > 6
    assert [healthy for _, healthy in watched.changes] == [True]


def opened(live: LiveEndpoint, now: float) -> None:
    for _ in range(live.breaker.limits.failures):
        live.breaker.bad(now, "502")
    assert live.breaker.state(now) is State.OPEN


def with_open_breaker(*metrics: Answer) -> LiveEndpoint:
    live = live_endpoint(ScriptedEngine(metrics=list(metrics)))
    live.breaker = Breaker(evolve(live.breaker.limits, open_for=1000.0))
    opened(live, trio.current_time())
    return live


@pytest.mark.parametrize("failed", [0, 20], ids=["at once", "after an outage longer than a sample's life"])
async def test_a_new_engine_process_resets_the_breaker(autojump_clock: MockClock, failed: int) -> None:
    down: list[Answer] = [Unreachable("connection refused")] * failed
    live = with_open_breaker(load(9, start=100.0), *down, load(0, start=200.0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Watched(live).run)
        await trio.sleep(0.5 * failed + 0.2)
        assert live.breaker.state(trio.current_time()) is State.OPEN
        await trio.sleep(0.5)
        assert live.breaker.state(trio.current_time()) is State.CLOSED
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("later", [load(0, start=100.0), load(0)], ids=["the same", "not said any more"])
async def test_the_breaker_stays_open_while_the_process_is_not_known_to_have_changed(
    autojump_clock: MockClock, later: Answer
) -> None:
    live = with_open_breaker(load(9, start=100.0), later)
    await watch(Watched(live), 12)
    assert live.breaker.state(trio.current_time()) is State.OPEN


async def test_a_probe_ends_when_its_endpoint_leaves(autojump_clock: MockClock) -> None:
    watched = Watched(live_endpoint(ScriptedEngine()))
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watched.run)
        await trio.sleep(3)
        watched.live.leaving = True
    assert trio.current_time() - began <= 3 + LIMITS.health


async def test_the_last_answer_of_one_that_left_changes_nothing(autojump_clock: MockClock) -> None:
    engine = ScriptedEngine(health=[OK, Unreachable("closed")])
    watched = Watched(live_endpoint(engine), evolve(LIMITS, failures=1))

    def leave_at_the_second(path: str) -> None:
        watched.live.leaving = len(engine.times("/health")) == 2

    engine.on_fetch = leave_at_the_second
    await watched.run()
    assert watched.live.healthy is True
    assert len(watched.changes) == 1


async def test_what_breaks_one_probe_leaves_its_neighbour_alone(autojump_clock: MockClock) -> None:
    broken = Watched(live_endpoint(ScriptedEngine(health=[OK, RuntimeError("a bug")])))
    sound = Watched(live_endpoint(ScriptedEngine(metrics=[load(3)])))
    ended: list[BaseException] = []

    async def guarded(run: Callable[[], Awaitable[None]]) -> None:
        try:
            await run()
        except* RuntimeError as errors:
            ended.append(errors)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(guarded, broken.run)
        nursery.start_soon(guarded, sound.run)
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert len(ended) == 1
    assert sound.live.sample is not None
    assert trio.current_time() - sound.live.sample.at < 1


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 5), st.integers(1, 5))
def test_health_follows_the_last_answers_alone(answers: list[bool], failures: int, successes: int) -> None:
    """It is out exactly when ``failures`` bad ones in a row came and since then never ``successes`` good ones."""

    async def judge() -> None:
        live = live_endpoint(ScriptedEngine())
        limits = evolve(LIMITS, failures=failures, successes=successes)
        seen: list[bool | None] = []
        probing = Probing(live, lambda: limits, lambda: 0.5, lambda e: seen.append(e.healthy))
        expected: bool | None = None
        for n, ok in enumerate(answers, 1):
            probing._judged(ok, "why")
            if n >= failures and not any(answers[n - failures : n]):
                expected = False
            elif ok and (expected is not False or (n >= successes and all(answers[n - successes : n]))):
                expected = True
            assert live.healthy is expected
        assert all(a is not b for a, b in pairwise(seen))

    trio.run(judge)
