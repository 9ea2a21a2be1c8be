"""When does an engine that can run so many requests at once begin and end each of them?

Discrete events instead of a clock: a heap of what happens next, so that hours pass in seconds. An engine here is
slots, memory for the KV cache, and one queue, first come, first served; its rates do not depend on how many it
runs. ``sim.engine_model`` is the same engine under Trio, with tokens and blocks.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum
from heapq import heappop, heappush
from math import inf
from typing import Any

from attrs import define, field

from llmgw.core.identity import Band


@define(eq=False, repr=False)
class Agenda:
    """What happens, in order; what is due at the same time happens in the order it was put down."""

    now: float = 0.0
    _heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = field(factory=list, init=False)
    _count: int = field(default=0, init=False)

    def after(self, seconds: float, act: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heappush(self._heap, (self.now + seconds, self._count, act, args))

    def run(self, until: float) -> None:
        """Everything up to ``until``; may be called again with a later one."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, act, args = heappop(heap)
            act(*args)
        self.now = until


class Fate(Enum):
    """Where a request is, or how it ended."""

    LINED = "in the gateway's line"
    SENT = "on an engine"
    DONE = "done"
    FULL = "503"  # refused: no seat, or it gave way
    TOO_LATE = "504"  # its time to live passed in the line
    LEFT = "left"  # its client did
    LOST = "lost"  # its engine ended


@define(eq=False)
class Work:
    """One request, with how long it will take once it runs. Seconds of the agenda."""

    band: Band
    tenant: str
    first_s: float  # from when it has a slot to its first token
    decode_s: float
    arrived: float
    kv: int = 0  # tokens it holds while it runs
    patience_s: float = inf  # after which its client leaves, whatever it has by then
    over: Callable[["Work"], None] | None = None  # told once, whatever became of it
    fate: Fate = Fate.LINED
    sent_at: float = 0.0
    began_at: float | None = None
    first_at: float | None = None
    ended_at: float = 0.0
    retry_after_s: float = 0.0  # as it was refused with

    @property
    def wait_s(self) -> float:
        return self.sent_at - self.arrived

    @property
    def ttft_s(self) -> float:
        return (self.first_at if self.first_at is not None else self.ended_at) - self.arrived

    @property
    def total_s(self) -> float:
        return self.ended_at - self.arrived


@define(eq=False, repr=False)
class Engine:
    """``started`` names the process; work of one that ended never comes back."""

    agenda: Agenda
    slots: int
    kv_tokens: int = 0  # 0: memory never binds
    on_end: Callable[[Work], None] = lambda _: None
    started: float = field(default=1.0, init=False)
    running: dict[Work, None] = field(factory=dict, init=False)
    waiting: deque[Work] = field(factory=deque, init=False)
    kv_used: int = field(default=0, init=False)
    most_waiting: int = field(default=0, init=False)
    _unqueued_at: float = field(default=0.0, init=False)

    @property
    def kv(self) -> float:
        return self.kv_used / self.kv_tokens if self.kv_tokens else 0.0

    @property
    def unqueued_at(self) -> float:
        """When its queue was last seen empty."""
        return self._unqueued_at if self.waiting else self.agenda.now

    def submit(self, work: Work) -> None:
        if not self.waiting:
            self._unqueued_at = self.agenda.now
        self.waiting.append(work)
        self._begin()
        self.most_waiting = max(self.most_waiting, len(self.waiting))

    def abort(self, work: Work) -> None:
        """Its client left: slot, memory or place are free at once."""
        if work in self.running:
            self._free(work)
        else:
            self.waiting.remove(work)
        self._begin()

    def restart(self, slots: int | None = None) -> None:
        """Another process; all that was there is lost."""
        lost = [*self.running, *self.waiting]
        self.running.clear()
        self.waiting.clear()
        self.kv_used, self.started = 0, self.agenda.now + 2.0
        self.slots = slots or self.slots
        for work in lost:
            self._end(work, Fate.LOST)

    def _begin(self) -> None:
        now = self.agenda.now
        while self.waiting and len(self.running) < self.slots:
            work = self.waiting[0]
            if self.kv_tokens and self.kv_used + work.kv > self.kv_tokens and self.running:
                return  # first come, first served: nobody overtakes
            self.waiting.popleft()
            self.running[work] = None
            self.kv_used += work.kv
            work.began_at = now
            self.agenda.after(work.first_s, self._first, work)

    def _first(self, work: Work) -> None:
        if work in self.running:
            work.first_at = self.agenda.now
            self.agenda.after(work.decode_s, self._finish, work)

    def _finish(self, work: Work) -> None:
        if work in self.running:
            self._free(work)
            self._begin()
            self._end(work, Fate.DONE)

    def _free(self, work: Work) -> None:
        del self.running[work]
        self.kv_used -= work.kv

    def _end(self, work: Work, fate: Fate) -> None:
        work.fate, work.ended_at = fate, self.agenda.now
        self.on_end(work)
