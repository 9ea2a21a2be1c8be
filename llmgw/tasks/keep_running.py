"""A service that keeps running: restarted after a pause when it stops or fails, its neighbours untouched."""

from collections.abc import Awaitable, Callable, Iterator

import trio


def doubling(first_s: float = 0.2, most_s: float = 30.0) -> Iterator[float]:
    """Pauses that grow: 0.2, 0.4, … 30 s."""
    pause = first_s
    while True:
        yield pause
        pause = min(pause * 2, most_s)


async def keep_running(
    service: Callable[[], Awaitable[object]],
    report: Callable[[BaseException | None], None],
    delays: Callable[[], Iterator[float]] = doubling,
    steady_after_s: float = 60.0,
) -> None:
    """Run a service for ever. ``report`` hears each end: its errors, or None when it just returned."""
    pauses = delays()
    while True:
        started = trio.current_time()
        try:
            await service()
        except* Exception as errors:  # a Cancelled beside them goes on its way
            report(errors)
        else:
            report(None)
        if trio.current_time() - started >= steady_after_s:
            pauses = delays()
        await trio.sleep(next(pauses))
