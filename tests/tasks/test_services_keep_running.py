"""A service that fails is started again after a growing pause, and its neighbours do not notice."""

from itertools import islice, pairwise

import trio

from llmgw.tasks.keep_running import doubling, keep_running


async def test_a_failing_service_starts_again_with_growing_pauses(autojump_clock):
    started, heard = [], []

    async def fails() -> None:
        started.append(trio.current_time())
        raise ValueError(len(started))

    with trio.move_on_after(10):
        await keep_running(fails, heard.append)

    pauses = [round(b - a, 3) for a, b in pairwise(started)]
    assert pauses[:4] == [0.2, 0.4, 0.8, 1.6]
    assert all(isinstance(error, ExceptionGroup) for error in heard)


async def test_a_steady_spell_makes_the_pauses_short_again(autojump_clock):
    started = []

    async def lasts() -> None:
        started.append(trio.current_time())
        await trio.sleep(100 if len(started) == 4 else 0)

    with trio.move_on_after(200):
        await keep_running(lasts, lambda _: None)

    assert round(started[4] - started[3] - 100, 3) == 0.2


async def test_a_cancel_ends_it(autojump_clock):
    with trio.move_on_after(1) as scope:
        await keep_running(trio.sleep_forever, lambda _: None)

    assert scope.cancelled_caught


def test_pauses_have_a_bound():
    assert list(islice(doubling(1, 5), 5)) == [1, 2, 4, 5, 5]
