"""May it proceed, and who goes next: bands by priority, tenants in turns.

From the top band down, a band's next tenant is granted while the pool's saturation *before* this request is
below the band's ceiling; after each grant the question is asked again from the top. A band with a floor share
is due a grant after every ``1 / share`` of them, judged by the pool's highest ceiling. An empty band blocks
nobody and collects no credit. The caller brings saturation and time, and tells whom this names.
"""

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from math import ceil
from typing import NamedTuple

from attrs import define, field

from llmgw.core.bands import BandRule
from llmgw.core.identity import Band
from llmgw.core.seats import Seat, Seats

RETRY_AFTER_LEAST_S, RETRY_AFTER_MOST_S = 1.0, 60.0
RETRY_AFTER_UNKNOWN_S = 5.0  # nobody of the band was let through in the window: a burst has just begun, or it stands
DRAIN_WINDOW_S = 10.0
_LITTER = 16  # seats left behind in a heap before it is swept


class Pick(NamedTuple):
    """A grant and what let it through."""

    seat: Seat
    why: str


class TenantLine(NamedTuple):
    """What waits of one tenant in one band of one pool."""

    waiting: int
    since: float  # when the oldest of them first began to wait
    bytes: int


@define(eq=False)
class _Turns:
    """One tenant's waiters in one band of one pool, by when they first began to wait."""

    _heap: list[tuple[float, int, Seat]] = field(factory=list)
    live: int = 0
    bytes: int = 0

    def push(self, seat: Seat) -> None:
        heappush(self._heap, (seat.arrived, seat.order, seat))
        self.live += 1
        self.bytes += seat.size

    def leave(self, seat: Seat) -> None:
        """It no longer waits; its entry goes when it comes up, or with the next sweep."""
        self.live -= 1
        self.bytes -= seat.size
        if len(self._heap) > 2 * self.live + _LITTER:
            self._heap = [entry for entry in self._heap if entry[2].waiting]
            heapify(self._heap)

    def pop(self) -> Seat:
        while True:
            _, _, seat = heappop(self._heap)
            if seat.waiting:
                self.live -= 1
                self.bytes -= seat.size
                return seat

    def all(self) -> list[Seat]:
        return [seat for _, _, seat in self._heap if seat.waiting]

    def oldest(self) -> float:
        while not self._heap[0][2].waiting:
            heappop(self._heap)
        return self._heap[0][0]


@define(eq=False)
class BandLine:
    """The waiters of one band in one pool."""

    rule: BandRule
    waiting: int = field(default=0, init=False)
    bytes: int = field(default=0, init=False)
    granted: int = field(default=0, init=False)
    passed: int = field(default=0, init=False)  # grants to others since its own, while somebody of it waited
    _tenants: "OrderedDict[str, _Turns]" = field(factory=OrderedDict, init=False)  # whose turn it is comes first
    _drained: list[int] = field(factory=lambda: [0, 0], init=False)  # grants of this half of the window, and before
    _half: int = field(default=0, init=False)

    def join(self, seat: Seat) -> None:
        turns = self._tenants.get(seat.tenant)
        if turns is None:
            turns = self._tenants[seat.tenant] = _Turns()
        seat.waiting = True
        turns.push(seat)
        self.waiting += 1
        self.bytes += seat.size

    def leave(self, seat: Seat) -> None:
        seat.waiting = False
        turns = self._tenants[seat.tenant]
        turns.leave(seat)
        if not turns.live:
            del self._tenants[seat.tenant]
        self._one_less(seat)

    def take(self, now: float) -> Seat:
        """The next tenant's oldest seat; the tenant goes behind the others."""
        tenant, turns = next(iter(self._tenants.items()))
        seat = turns.pop()
        seat.waiting = False
        if turns.live:
            self._tenants.move_to_end(tenant)
        else:
            del self._tenants[tenant]
        self._one_less(seat)
        self.granted += 1
        self.passed = 0
        self._turn(now)
        self._drained[0] += 1
        return seat

    @property
    def due(self) -> bool:
        return self.waiting > 0 and self.rule.floor > 0 and (self.passed + 1) * self.rule.floor >= 1 - 1e-9

    def retry_after_s(self, now: float) -> float:
        """When a newcomer would find room, if the band goes on as it does."""
        self._turn(now)
        half = DRAIN_WINDOW_S / 2
        rate = sum(self._drained) / (half + now % half)
        wanted = (self.waiting + 1) / rate if rate else RETRY_AFTER_UNKNOWN_S
        return float(min(RETRY_AFTER_MOST_S, max(RETRY_AFTER_LEAST_S, ceil(wanted))))

    def tenants(self) -> dict[str, TenantLine]:
        """What waits of each tenant, in the order of turns."""
        return {tenant: TenantLine(turns.live, turns.oldest(), turns.bytes) for tenant, turns in self._tenants.items()}

    def everybody(self) -> list[Seat]:
        return [seat for turns in self._tenants.values() for seat in turns.all()]

    def _one_less(self, seat: Seat) -> None:
        self.waiting -= 1
        self.bytes -= seat.size
        if not self.waiting:
            self.passed = 0  # no credit while it is empty

    def _turn(self, now: float) -> None:
        half = int(now // (DRAIN_WINDOW_S / 2))
        if half != self._half:
            self._drained = [0, self._drained[0] if half == self._half + 1 else 0]
            self._half = half


@define(eq=False)
class Line:
    """Who waits for one pool."""

    bands: dict[Band, BandLine]  # the highest first
    waiting: int = field(default=0, init=False)
    _highest: float = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._highest = max(one.rule.ceiling for one in self.bands.values())

    def rules_changed(self, rules: tuple[BandRule, ...]) -> None:
        """From now on; whoever waits keeps their place."""
        for rule in rules:
            self.bands[rule.band].rule = rule
        self._highest = max(rule.ceiling for rule in rules)

    def join(self, seat: Seat, now: float) -> None:
        seat.joined = now
        self.bands[seat.band].join(seat)
        self.waiting += 1

    def leave(self, seat: Seat) -> None:
        """It gave up, or has to go; at once, wherever it stands."""
        self.bands[seat.band].leave(seat)
        self.waiting -= 1

    def next(self, saturation: float, now: float) -> Pick | None:
        """Who goes at this saturation, taken out of the line; None: nobody may."""
        if not self.waiting:
            return None
        due = self._due(saturation)
        if due is not None:
            why = f"its floor share of {due.rule.floor:.0%} was due after {due.passed} other grants"
            return Pick(self._take(due, now), why)
        for one in self.bands.values():
            if one.waiting and saturation < one.rule.ceiling:
                why = f"saturation {saturation:.2f} was below {one.rule.band.value}'s ceiling {one.rule.ceiling:g}"
                return Pick(self._take(one, now), why)
        return None

    def may_pass(self, band: Band, saturation: float) -> bool:
        """Whether a newcomer goes without waiting: nobody waits, and there is room."""
        return not self.waiting and saturation < self.bands[band].rule.ceiling

    def everybody(self) -> list[Seat]:
        """Who waits now, band by band."""
        return [seat for one in self.bands.values() for seat in one.everybody()]

    def ahead(self, band: Band) -> list[tuple[Band, int]]:
        """How many of this band and of those above wait now."""
        found: list[tuple[Band, int]] = []
        for name, one in self.bands.items():
            if one.waiting:
                found.append((name, one.waiting))
            if name is band:
                break
        return found

    def _due(self, saturation: float) -> BandLine | None:
        if saturation >= self._highest:
            return None
        due = [one for one in self.bands.values() if one.rule.floor and one.due]
        return max(due, key=lambda one: one.passed * one.rule.floor) if due else None

    def _take(self, band: BandLine, now: float) -> Seat:
        seat = band.take(now)
        self.waiting -= 1
        for other in self.bands.values():
            if other is not band and other.waiting:
                other.passed += 1
        return seat


@define(eq=False)
class Full:
    """No seat for a newcomer; ``lacks`` is "seats" or "bytes"."""

    lacks: str
    retry_after_s: float


@define(eq=False)
class Queues:
    """Every pool's line, under one bound a band."""

    seats: dict[Band, Seats]

    def seat(self, line: Line, seat: Seat, now: float) -> Seat | Full | None:
        """Give it a place. Returns who had to make room for it, out of its line already; or why there is none."""
        seats = self.seats[seat.band]
        lacks, out = seats.lacks(seat.size), None
        if lacks:
            out = seats.gives_way(seat.tenant, seat.size)
            if out is None:
                return Full(lacks, line.bands[seat.band].retry_after_s(now))
            self.leave(out)
        seats.take(seat)
        line.join(seat, now)
        seat.line = line
        return out

    def leave(self, seat: Seat) -> None:
        seat.line.leave(seat)
        self.seats[seat.band].give_back(seat)

    def next(self, line: Line, saturation: float, now: float) -> Pick | None:
        pick = line.next(saturation, now)
        if pick is not None:
            self.seats[pick.seat.band].give_back(pick.seat)
        return pick


def new_line(rules: tuple[BandRule, ...]) -> Line:
    return Line({rule.band: BandLine(rule) for rule in rules})
