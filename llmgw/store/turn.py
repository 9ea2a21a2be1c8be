"""Where blocking work runs: on Trio threads of its own, or inline under a mock clock."""

from collections.abc import Callable
from typing import Protocol, TypeVar

import trio

T = TypeVar("T")
THREADS = 4  # of one line to PostgreSQL: one at work, the others left behind by callers that went


class RunBlocking(Protocol):
    """Run blocking work and give its result."""

    async def __call__(self, work: Callable[[], T], /) -> T: ...


def one_thread() -> RunBlocking:
    """Trio threads, one at a time: the turn is what makes one connection safe on several threads.

    Work that has begun is finished, cancelled or not.
    """
    turn = trio.CapacityLimiter(1)

    async def run(work: Callable[[], T], /) -> T:
        return await trio.to_thread.run_sync(work, limiter=turn, abandon_on_cancel=False)

    return run


def leaving_threads() -> RunBlocking:
    """Threads that a cancelled caller leaves behind; whoever leaves one sees to it that it ends."""
    most = trio.CapacityLimiter(THREADS)

    async def run(work: Callable[[], T], /) -> T:
        return await trio.to_thread.run_sync(work, limiter=most, abandon_on_cancel=True)

    return run


async def inline(work: Callable[[], T], /) -> T:
    """For tests and simulation: a mock clock would jump while a thread works."""
    await trio.lowlevel.checkpoint_if_cancelled()
    result = work()
    await trio.lowlevel.cancel_shielded_checkpoint()
    return result
