"""How many may wait, in each band over all pools, and who gives way when no more may.

A tenant who holds many seats can't keep out one who holds few: the newest waiter of whoever holds most gives
way to a tenant that would still hold fewer. Every question here costs the same however many wait.
"""

from itertools import count
from typing import Any

from attrs import define, field

from llmgw.core.identity import Band


@define(eq=False)
class Seat:
    """One waiting request. Seconds on the caller's clock."""

    tenant: str
    band: Band
    size: int  # bytes it holds while it waits
    arrived: float  # when it first began to wait, in this pool or another
    owner: Any = None  # who is told
    line: Any = field(default=None, init=False)  # the pool's, once it has a place there
    waiting: bool = field(default=False, init=False)
    joined: float = field(default=0.0, init=False)  # this pool
    order: int = field(default=0, init=False)


@define(eq=False)
class Seats:
    """Of one band. ``sum`` of what is held never passes the bounds."""

    seats_max: int
    bytes_max: int
    held: int = field(default=0, init=False)
    bytes: int = field(default=0, init=False)
    _of: dict[str, dict[Seat, None]] = field(factory=dict, init=False)  # a tenant's seats, the newest last
    _holding: dict[int, dict[str, None]] = field(factory=dict, init=False)  # tenants by how many they hold
    _most: int = field(default=0, init=False)
    _order: "count[int]" = field(factory=count, init=False)

    def lacks(self, size: int) -> str:
        """What a newcomer would find too little of: "seats", "bytes", or nothing."""
        if self.held >= self.seats_max:
            return "seats"
        return "bytes" if self.bytes + size > self.bytes_max else ""

    def gives_way(self, tenant: str, size: int) -> Seat | None:
        """The seat that makes room for this newcomer; None: there is none who should."""
        mine = len(self._of.get(tenant, ()))
        if self._most - mine < 2:  # they would only change places
            return None
        heaviest = next(iter(self._holding[self._most]))
        newest = next(reversed(self._of[heaviest]))
        return newest if self.bytes - newest.size + size <= self.bytes_max else None

    def take(self, seat: Seat) -> None:
        seat.order = next(self._order)
        of = self._of.setdefault(seat.tenant, {})
        of[seat] = None
        self.held += 1
        self.bytes += seat.size
        self._moved(seat.tenant, len(of) - 1, len(of))

    def give_back(self, seat: Seat) -> None:
        of = self._of[seat.tenant]
        del of[seat]
        self.held -= 1
        self.bytes -= seat.size
        self._moved(seat.tenant, len(of) + 1, len(of))
        if not of:
            del self._of[seat.tenant]

    def _moved(self, tenant: str, before: int, after: int) -> None:
        if before:
            level = self._holding[before]
            del level[tenant]
            if not level:
                del self._holding[before]
        if after:
            self._holding.setdefault(after, {})[tenant] = None
        if after > self._most or (before == self._most and before not in self._holding):
            self._most = after  # counts move by one, so the level below is the next that can be the highest
