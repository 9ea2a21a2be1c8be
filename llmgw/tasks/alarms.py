"""Deadlines that cost next to nothing to move: one heap and one task for all of them.

A Trio cancel scope a phase would be a quarter of a request's time. An alarm is set as often as its owner
likes; the heap hears of it only when it moves *earlier*, and when an entry comes up that has moved later it
is put back. Owners that live long (one alarm a connection) leave no litter.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf

import trio
from attrs import define, field


def _nobody() -> None:
    """An alarm nobody waits for."""


class Alarm:
    """``ring`` is called from the alarms' task when ``at`` has passed, once for each time it was set."""

    __slots__ = ("_alarms", "_queued", "at", "ring")

    def __init__(self, alarms: "Alarms", ring: Callable[[], None] = _nobody) -> None:
        self._alarms = alarms
        self.ring = ring
        self.at = inf
        self._queued = inf

    def set(self, at: float) -> None:
        """Trio's clock; ``inf`` switches it off."""
        self.at = at
        if at < self._queued:
            self._queued = at
            self._alarms.put(at, self)

    def came_up(self, queued: float, now: float) -> None:
        if queued != self._queued:
            return  # an earlier entry of this alarm has been dealt with
        self._queued = inf
        if self.at <= now:
            self.at = inf
            self.ring()
        elif self.at < inf:
            self._queued = self.at
            self._alarms.put(self.at, self)


@define(eq=False)
class Alarms:
    _heap: list[tuple[float, int, Alarm]] = field(factory=list, init=False)
    _order: "count[int]" = field(factory=count, init=False)
    _sleeping_until: float = field(default=-inf, init=False)
    _sleeper: trio.CancelScope = field(factory=trio.CancelScope, init=False)

    def new(self, ring: Callable[[], None] = _nobody) -> Alarm:
        return Alarm(self, ring)

    def put(self, at: float, alarm: Alarm) -> None:
        heappush(self._heap, (at, next(self._order), alarm))
        if at < self._sleeping_until:
            self._sleeping_until = at
            self._sleeper.deadline = at

    async def run(self) -> None:
        """Ring what is due; for ever."""
        heap = self._heap
        while True:
            now = trio.current_time()
            while heap and heap[0][0] <= now:
                queued, _, alarm = heappop(heap)
                alarm.came_up(queued, now)
            self._sleeping_until = heap[0][0] if heap else inf
            with trio.CancelScope(deadline=self._sleeping_until) as self._sleeper:
                await trio.sleep_forever()
            self._sleeping_until = -inf

    def __len__(self) -> int:
        return len(self._heap)
