"""How one attempt is counted against its endpoint, and what its end says of it."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from llmgw.core.breaker import Breaker, BreakerLimits, State
from llmgw.core.fleet import Endpoint
from llmgw.core.outcome import Outcome, Refusal
from llmgw.engines.live import LiveEndpoint
from llmgw.gateway.gate import Gate
from llmgw.gateway.record import Try
from llmgw.telemetry.metrics import Metrics

LIMITS = BreakerLimits(failures=3, open_for=5.0)
NOBODY: Any = None  # parts of the gate that counting doesn't touch


def gate() -> Gate:
    metrics = Metrics("0")
    return Gate(NOBODY, NOBODY, NOBODY, NOBODY, NOBODY, metrics, NOBODY, NOBODY, NOBODY, NOBODY, NOBODY, NOBODY, NOBODY)


def endpoint() -> LiveEndpoint:
    return LiveEndpoint(Endpoint("a", "m", "http://h"), NOBODY, Breaker(LIMITS), 0.0)


def passage() -> Any:
    return SimpleNamespace(on_first_token=None, dial_s=0.0, ended_at=0.0, beside=None)


def attempt(live: LiveEndpoint, outcome: Outcome | None) -> None:
    """One whole attempt; None: it was cancelled and has no outcome."""
    counting, entry = gate(), Try("a", trio.current_time())
    with counting.counted(live, passage(), entry) as ticket:
        assert live.in_flight == 1
        if outcome is not None:
            entry.outcome = outcome
            counting.verdict(live, None if outcome.ok else Refusal(outcome, "why", retry_after_s=2.0), ticket)
    assert live.in_flight == 0


async def half_open(live: LiveEndpoint) -> None:
    for _ in range(3):
        attempt(live, Outcome.ENGINE_UNREACHABLE)
    assert live.breaker.state(trio.current_time()) is State.OPEN
    await trio.sleep(LIMITS.open_for)
    assert live.breaker.state(trio.current_time()) is State.HALF_OPEN


async def test_a_hundred_aborted_while_waiting_for_the_engine_leave_no_load(autojump_clock: MockClock) -> None:
    live, counting = endpoint(), gate()

    async def waits() -> None:
        with counting.counted(live, passage(), Try("a", trio.current_time())):
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(waits)
        await trio.testing.wait_all_tasks_blocked()
        assert live.in_flight == 100
        nursery.cancel_scope.cancel()

    assert (live.in_flight, live.served) == (0, 100)
    assert live.breaker.state(trio.current_time()) is State.CLOSED


async def test_a_failure_while_the_request_is_being_built_gives_its_place_back() -> None:
    live = endpoint()
    with pytest.raises(ZeroDivisionError), gate().counted(live, passage(), Try("a", trio.current_time())):
        raise ZeroDivisionError
    assert live.in_flight == 0


async def test_ten_refusals_of_clients_and_ten_busy_answers_open_nothing() -> None:
    live = endpoint()
    for _ in range(10):
        attempt(live, Outcome.ENGINE_REFUSED)
        attempt(live, Outcome.ENGINE_BUSY)
    assert live.breaker.state(trio.current_time()) is State.CLOSED


async def test_a_busy_answer_makes_its_endpoint_full_for_as_long_as_it_says(autojump_clock: MockClock) -> None:
    live = endpoint()
    attempt(live, Outcome.ENGINE_BUSY)
    assert live.saturation(trio.current_time()) == 1.0
    await trio.sleep(2.0)
    assert live.saturation(trio.current_time()) == 0.0


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.ENGINE_REFUSED])
async def test_a_half_open_endpoint_that_answers_is_back(autojump_clock: MockClock, outcome: Outcome) -> None:
    live = endpoint()
    await half_open(live)
    attempt(live, outcome)
    assert live.breaker.state(trio.current_time()) is State.CLOSED


@pytest.mark.parametrize("outcome", [None, Outcome.ENGINE_BUSY, Outcome.TOTAL_TIMEOUT, Outcome.ENGINE_FAILED_INSIDE])
async def test_what_is_no_verdict_gives_the_half_open_permit_back(
    autojump_clock: MockClock, outcome: Outcome | None
) -> None:
    live = endpoint()
    await half_open(live)
    attempt(live, outcome)
    assert live.breaker.state(trio.current_time()) is State.HALF_OPEN
    assert live.breaker.may_try(trio.current_time())


async def test_the_first_token_of_a_long_stream_brings_a_half_open_endpoint_back(autojump_clock: MockClock) -> None:
    live, counting, under_way = endpoint(), gate(), passage()
    await half_open(live)
    with counting.counted(live, under_way, Try("a", trio.current_time())):
        assert not live.breaker.may_try(trio.current_time())
        under_way.on_first_token()
        assert live.breaker.state(trio.current_time()) is State.CLOSED
    assert live.breaker.state(trio.current_time()) is State.CLOSED


async def test_nobody_waits_for_the_first_token_of_a_healthy_endpoint() -> None:
    live, under_way = endpoint(), passage()
    with gate().counted(live, under_way, Try("a", trio.current_time())):
        assert under_way.on_first_token is None
