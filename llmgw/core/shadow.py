"""What admission would do, reckoned beside requests that nobody holds.

Each engine is mirrored as a batch with a queue that is first come, first served: so it is known when a request
really had a slot, and behind whom it stood until then. A virtual pool of the same size grants slots by the real
policy; a request holds its virtual slot for its time in the engine less its time in the engine's queue, which is
known once it has ended, and until then taken to be as long as usual. The virtual clock catches up whenever
something happens.
"""

from collections import Counter, deque
from heapq import heappop, heappush
from itertools import count
from math import inf

from attrs import define, field

from llmgw.core.admission import Full, Line, Queues, new_line
from llmgw.core.bands import BandRule
from llmgw.core.identity import Band
from llmgw.core.seats import Seat, Seats

USUAL_WEIGHT = 0.1  # of the latest, in what is usual
_RANK = {band: rank for rank, band in enumerate(Band)}
Who = tuple[str, str]  # band and tenant


@define(eq=False)
class Passing:
    """One request, in reality and in the shadow. Times on the caller's clock."""

    band: Band
    tenant: str
    size: int
    arrived: float
    sent_at: float | None = None
    started_at: float | None = None  # it had a slot in the engine
    ended_at: float | None = None
    done: bool = False  # it has ended for good, so that it is known how long it held a slot
    behind: Who | None = None  # whom of a lower band most of the engine's queue belonged to
    seat: Seat | None = None  # in the virtual line
    granted_at: float | None = None
    frees_at: float | None = None  # its virtual slot; in the endless past once it has
    refused: str = ""  # "503" or "504", had admission been on

    @property
    def queued_s(self) -> float:
        """In the engine's queue."""
        if self.sent_at is None:
            return 0.0
        until = self.started_at if self.started_at is not None else self.ended_at
        return 0.0 if until is None else until - self.sent_at

    @property
    def held_s(self) -> float | None:
        """How long it holds a slot; None: it still does."""
        if not self.done or self.ended_at is None:
            return None
        return self.ended_at - self.started_at if self.started_at is not None else 0.0


@define(eq=False)
class Mirror:
    """One engine's batch and queue, as far as our requests make them."""

    capacity: float
    _running: set[Passing] = field(factory=set)
    _queue: "deque[Passing]" = field(factory=deque)
    _waiting: Counter[Who] = field(factory=Counter)  # in the queue

    def sent(self, one: Passing, now: float) -> None:
        one.sent_at, one.started_at = now, None
        if len(self._running) < self.capacity:
            self._start(one, now)
            return
        lower = [(number, who) for who, number in self._waiting.items() if _RANK[Band(who[0])] > _RANK[one.band]]
        one.behind = max(lower)[1] if lower else None
        self._queue.append(one)
        self._waiting[(one.band.value, one.tenant)] += 1

    def left(self, one: Passing, now: float) -> None:
        """Its attempt here is over, or its client has gone."""
        if one in self._running:
            self._running.discard(one)
        elif one in self._queue:
            self._queue.remove(one)
            self._unqueue(one)
        while self._queue and len(self._running) < self.capacity:
            first = self._queue.popleft()
            self._unqueue(first)
            self._start(first, now)

    def _start(self, one: Passing, now: float) -> None:
        one.started_at = now
        self._running.add(one)

    def _unqueue(self, one: Passing) -> None:
        who = (one.band.value, one.tenant)
        self._waiting[who] -= 1
        if not self._waiting[who]:
            del self._waiting[who]


@define(eq=False)
class VirtualPool:
    """Slots granted by the policy. ``decided`` collects requests whose virtual fate is known."""

    line: Line
    queues: Queues
    slots: float = inf
    held: int = 0
    usual_s: float | None = None  # how long a request holds a slot
    decided: list[Passing] = field(factory=list)
    _ends: list[tuple[float, int, Passing]] = field(factory=list)
    _expiries: list[tuple[float, int, Passing]] = field(factory=list)
    _order: "count[int]" = field(factory=count)

    @property
    def saturation(self) -> float:
        return self.held / self.slots

    def arrive(self, one: Passing, now: float) -> None:
        self.catch_up(now)
        if self.line.may_pass(one.band, self.saturation):
            self._grant(one, now)
            return
        seat = Seat(one.tenant, one.band, one.size, one.arrived, owner=one)
        had = self.queues.seat(self.line, seat, now)
        if isinstance(had, Full):
            self._refuse(one, "503")
            return
        if had is not None:
            self._refuse(had.owner, "503")
        one.seat = seat
        expires = now + self.line.bands[one.band].rule.ttl_s
        heappush(self._expiries, (expires, next(self._order), one))
        self._turn(now)

    def ended(self, one: Passing, now: float, gone: bool = False) -> None:
        """In reality: from now on it is known how long it holds a slot. ``gone``: its client did not wait."""
        self.catch_up(now)
        one.done = True
        if gone and one.seat is not None and one.seat.waiting:
            self.queues.leave(one.seat)
            one.seat = None
        held_s = one.held_s or 0.0
        if held_s and not gone:
            self.usual_s = held_s if self.usual_s is None else self.usual_s + USUAL_WEIGHT * (held_s - self.usual_s)
        if one.granted_at is not None and (one.frees_at is None or one.frees_at > now):
            self._ends_at(one, max(now, one.granted_at + held_s))
        self.catch_up(now)

    def catch_up(self, now: float) -> None:
        """What happens in the shadow until now, in its order."""
        while True:
            ends = self._ends[0][0] if self._ends else inf
            expires = self._expiries[0][0] if self._expiries else inf
            if min(ends, expires) > now:
                return
            if ends <= expires:
                _, _, one = heappop(self._ends)
                if one.frees_at == ends:  # else it has become known better
                    one.frees_at = -inf
                    self.held -= 1
                    self._turn(ends)
            else:
                self._expire(heappop(self._expiries)[2])

    def _turn(self, now: float) -> None:
        while (pick := self.queues.next(self.line, self.saturation, now)) is not None:
            self._grant(pick.seat.owner, now)

    def _grant(self, one: Passing, now: float) -> None:
        one.granted_at, one.seat = now, None
        self.held += 1
        self.decided.append(one)
        held_s = one.held_s if one.done else self.usual_s
        if held_s is not None:
            self._ends_at(one, now + held_s)

    def _ends_at(self, one: Passing, at: float) -> None:
        one.frees_at = at
        heappush(self._ends, (at, next(self._order), one))

    def _expire(self, one: Passing) -> None:
        if one.seat is not None and one.seat.waiting:
            self.queues.leave(one.seat)
            self._refuse(one, "504")

    def _refuse(self, one: Passing, status: str) -> None:
        one.refused, one.seat = status, None
        self.decided.append(one)


def virtual_pool(rules: tuple[BandRule, ...], seats_max: int, bytes_max: int) -> VirtualPool:
    queues = Queues({band: Seats(seats_max, bytes_max) for band in Band})
    return VirtualPool(new_line(rules), queues)
