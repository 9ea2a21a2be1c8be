"""Waiting for a condition on real sockets, bounded: the one place where tests poll."""

from collections.abc import Callable

import trio


async def until(condition: Callable[[], object], within_s: float = 5.0) -> None:
    """Raises TooSlowError, which fails the test, when it does not come true in time."""
    with trio.fail_after(within_s):
        while not condition():  # noqa: ASYNC110 - nobody sets an event for us
            await trio.sleep(0.005)
