"""Nothing granted is ever lost, whatever arrives, is granted, loses patience and is cancelled in the same tick."""

from collections import deque

import pytest
import trio
import trio.testing
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from llmgw.tasks.waiting_room import Waiter


def unexpected() -> None:
    raise AssertionError("nobody was cancelled")


async def test_a_word_reaches_who_waits(autojump_clock: MockClock) -> None:
    waiter = Waiter[str]()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def waits() -> None:
            assert await waiter.wait(unexpected) == "go"
            assert trio.current_time() == began + 1

        began = trio.current_time()
        await trio.sleep(1)
        waiter.tell("go")


async def test_a_word_said_before_anybody_waits_is_kept() -> None:
    waiter = Waiter[int]()
    waiter.tell(7)

    assert waiter.told
    assert await waiter.wait(unexpected) == 7


async def test_a_word_is_said_once() -> None:
    waiter = Waiter[int]()
    waiter.tell(7)

    with pytest.raises(AssertionError, match="once"):
        waiter.tell(8)


@pytest.mark.parametrize("word_first", [True, False])
async def test_a_word_and_a_cancel_in_one_tick_lose_nothing(word_first: bool) -> None:
    waiter, left, had = Waiter[str](), [], []
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def waits() -> None:
            had.append(await waiter.wait(lambda: left.append(True)))

        await trio.testing.wait_all_tasks_blocked()
        if word_first:
            waiter.tell("go")
            nursery.cancel_scope.cancel()
        else:
            nursery.cancel_scope.cancel()
            if not left:
                waiter.tell("go")
    assert (had, left) in [(["go"], []), ([], [True])]
    assert (had == ["go"]) or not word_first


async def test_who_is_cancelled_leaves_at_that_instant() -> None:
    waiter, left = Waiter[str](), []
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def waits() -> None:
                await waiter.wait(lambda: left.append(True))

            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            assert left == [True], "not a tick later"


@define
class Slots:
    """What a waiting room is for: a few slots, and those who wait for one."""

    free: int
    line: deque[Waiter[str]] = field(factory=deque)
    held: int = 0

    async def use(self, seconds: float) -> None:
        if self.free and not self.line:
            self.free -= 1
        else:
            waiter = Waiter[str]()
            self.line.append(waiter)
            if await waiter.wait(lambda: self.line.remove(waiter)) == "too late":
                return
        self.held += 1
        try:
            await trio.sleep(seconds)
        finally:
            self.held -= 1
            self.free += 1
            self.grant()

    def grant(self) -> None:
        while self.free and self.line:
            self.free -= 1
            self.line.popleft().tell("go")

    def expire(self) -> None:
        if self.line:
            self.line.pop().tell("too late")


ticks = st.integers(0, 3)  # few, so that many things fall into one tick
users = st.lists(
    st.tuples(ticks, ticks, st.none() | ticks),  # comes at, uses for, is cancelled at
    min_size=1,
    max_size=25,
)


@given(st.integers(1, 3), users, st.lists(ticks, max_size=5))
def test_every_slot_comes_home(slots: int, users: list[tuple[int, int, int | None]], expiries: list[int]) -> None:
    room = Slots(slots)

    async def user(comes: int, uses: int, cancelled: int | None) -> None:
        deadline = trio.current_time() + cancelled if cancelled is not None else float("inf")
        with trio.CancelScope(deadline=deadline):
            await trio.sleep(comes)
            await room.use(uses)

    async def expires(at: int) -> None:
        await trio.sleep(at)
        room.expire()

    async def story() -> None:
        async with trio.open_nursery() as nursery:
            for one in users:
                nursery.start_soon(user, *one)
            for at in expiries:
                nursery.start_soon(expires, at)
            for _ in range(4):
                await trio.sleep(0.5)
                await trio.testing.wait_all_tasks_blocked()
                assert room.held + room.free == slots, "a slot is nowhere"
                assert not (room.free and room.line), "somebody waits for a free slot"

    trio.run(story, clock=MockClock(autojump_threshold=0))
    assert (room.free, room.held, list(room.line)) == (slots, 0, [])
