"""What one decision of admission costs, in microseconds of CPU: part of ``make bench``.

Three engines with fresh samples. Uncontended: nobody waits and there is room. Contended: 5,000 wait, of 500
tenants in four bands, and the pool is full; a newcomer takes its seat and is held, another leaves, and a slot that
ends is granted to whoever is next.
"""

import time
from collections.abc import Callable
from math import inf
from typing import Any

import trio

from llmgw.core.bands import CEILINGS, AdmissionLimits
from llmgw.core.breaker import BreakerLimits
from llmgw.core.fleet import Endpoint, Engine, Model, fleet_of
from llmgw.core.identity import Band
from llmgw.core.saturation import Sample
from llmgw.core.seats import Seat
from llmgw.engines.client import EngineClient
from llmgw.engines.live import LiveFleet
from llmgw.gateway.admission import Admission
from llmgw.tasks.alarms import Alarms
from llmgw.tasks.waiting_room import Waiter

WAITING = 5000
TENANTS = 500
TIMES = 20_000
ROUNDS = 7
MODEL = "m"


def measured(rounds: int = ROUNDS, times: int = TIMES) -> dict[str, float]:
    """Name -> microseconds, the least of the rounds."""
    return trio.run(_measured, rounds, times)


async def _measured(rounds: int, times: int) -> dict[str, float]:
    admission, live = _admission()
    found = {"uncontended": _least(rounds, times, lambda: admission.at_once(MODEL, Band.GOLD, 0.0))}
    for endpoint in live:
        endpoint.in_flight = 32
    here = admission.pools()[0]
    for number in range(WAITING):
        _seat(admission, here.line, number)

    def comes_and_goes() -> None:
        assert not admission.at_once(MODEL, Band.GOLD, 0.0)
        seat = _seat(admission, here.line, 7)
        admission.turn(MODEL, 0.0)
        admission.queues.leave(seat)

    def granted() -> None:
        endpoint = next(iter(live))
        endpoint.in_flight -= 1
        admission.turn(MODEL, 0.0)
        endpoint.in_flight += 1
        endpoint.granted = 0
        _seat(admission, here.line, 11)

    found[f"a newcomer is held, {WAITING} waiting"] = _least(rounds, times // 4, comes_and_goes)
    found[f"a slot is granted, {WAITING} waiting"] = _least(rounds, times // 4, granted)
    return found


def _seat(admission: Admission, line: Any, number: int) -> Seat:
    seat = Seat(f"tenant {number % TENANTS}", list(Band)[number % 3 + 1], 1000, float(number), owner=Waiter[Any]())
    had = admission.queues.seat(line, seat, 0.0)
    assert had is None, had
    return seat


def _admission() -> tuple[Admission, LiveFleet]:
    async def nobody(*_: object) -> Any:
        raise OSError

    live = LiveFleet(lambda endpoint: EngineClient(endpoint, nobody), BreakerLimits())
    endpoints = tuple(Endpoint(f"e{n}", MODEL, f"http://127.0.0.1:{n + 1}", Engine.VLLM, capacity=32) for n in range(3))
    live.apply(fleet_of((Model(MODEL, (), (), endpoints),)), 0.0)
    for endpoint in live:
        endpoint.sample = Sample(0.0, running=20, waiting=0, kv=0.3, ours=20)
        endpoint.in_flight = 20
    limits = AdmissionLimits(queue_seats_max=2 * WAITING, queue_bytes_max=10**12, ceilings=dict.fromkeys(CEILINGS, 1.0))
    return Admission(live, limits, Alarms()), live


def _least(rounds: int, times: int, act: Callable[[], object]) -> float:
    least = inf
    for _ in range(rounds):
        began = time.process_time()
        for _ in range(times):
            act()
        least = min(least, (time.process_time() - began) / times * 1e6)
    return least


if __name__ == "__main__":
    for name, cost_us in measured().items():
        print(f"admission: {name}: {cost_us:.1f} us a decision")
