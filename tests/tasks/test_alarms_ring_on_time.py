"""Alarms: moved as often as one likes, rung once for each time they were set, leaving no litter."""

from math import inf

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from llmgw.tasks.alarms import Alarms


def run_timeless(play, *args):
    return trio.run(play, *args, clock=MockClock(autojump_threshold=0))


@given(st.lists(st.lists(st.floats(0.1, 50), min_size=1, max_size=6), min_size=1, max_size=8))
def test_each_rings_once_at_the_time_it_was_last_set_to(moves):
    """Whatever an alarm was moved to before, only the last time counts; nothing rings early."""
    rung: dict[int, list[float]] = {number: [] for number in range(len(moves))}

    async def play() -> None:
        alarms = Alarms()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(alarms.run)
            await trio.testing.wait_all_tasks_blocked()
            start = trio.current_time()
            for number, times in enumerate(moves):
                alarm = alarms.new(lambda n=number: rung[n].append(trio.current_time() - start))
                for at in times:
                    alarm.set(start + at)
            await trio.sleep(100)
            nursery.cancel_scope.cancel()
        assert len(alarms) == 0

    run_timeless(play)
    for number, times in enumerate(moves):
        assert len(rung[number]) == 1
        assert abs(rung[number][0] - times[-1]) < 1e-6


async def test_an_alarm_switched_off_does_not_ring(autojump_clock):
    rung = []
    alarms = Alarms()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarms.run)
        alarm = alarms.new(lambda: rung.append(1))
        alarm.set(trio.current_time() + 1)
        alarm.set(inf)
        await trio.sleep(5)
        nursery.cancel_scope.cancel()

    assert not rung


async def test_an_alarm_earlier_than_what_is_slept_for_wakes_the_sleeper(autojump_clock):
    rung = []
    alarms = Alarms()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarms.run)
        alarms.new(lambda: rung.append("late")).set(trio.current_time() + 100)
        await trio.sleep(1)
        alarms.new(lambda: rung.append("soon")).set(trio.current_time() + 1)
        await trio.sleep(2)
        assert rung == ["soon"]
        nursery.cancel_scope.cancel()


async def test_one_alarm_moved_a_thousand_times_leaves_no_litter(autojump_clock):
    """As one connection does: later for every request, earlier for its dial."""
    alarms = Alarms()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarms.run)
        alarm = alarms.new()
        for _ in range(1000):
            alarm.set(trio.current_time() + 75)
            alarm.set(trio.current_time() + 30)
            alarm.set(trio.current_time() + 60)
            await trio.sleep(0.1)
        assert len(alarms) < 10
        nursery.cancel_scope.cancel()


async def test_a_bell_that_sets_its_alarm_again_rings_again(autojump_clock):
    rung = []
    alarms = Alarms()

    def again() -> None:
        rung.append(trio.current_time())
        if len(rung) < 3:
            alarm.set(trio.current_time() + 1)

    alarm = alarms.new(again)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarms.run)
        alarm.set(trio.current_time() + 1)
        await trio.sleep(10)
        nursery.cancel_scope.cancel()

    assert len(rung) == 3
