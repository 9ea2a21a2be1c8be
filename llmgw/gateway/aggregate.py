"""Five-minute sums per pool, band and tenant, with the accounts worth keeping: "why was it slow yesterday".

Kept in memory for the running window; a closed window is handed to whoever stores it.
"""

import heapq
from collections import Counter
from itertools import count

from attrs import define, field

from llmgw.gateway.record import Record

WINDOW_S = 300
_PLAIN = frozenset({"ok", "client_gone"})


@define(eq=False)
class Aggregate:
    """One window of one pool, band and tenant. ``kept`` is a heap: the dullest account on top."""

    start: int  # wall clock, seconds
    model: str
    band: str
    tenant: str
    requests: int = 0
    outcomes: Counter[str] = field(factory=Counter)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_s: float = 0.0
    wait_s: float = 0.0
    ttft_s: float = 0.0
    streams: int = 0
    retried: int = 0
    slowest_s: float = 0.0
    kept: list[tuple[tuple[int, float], int, Record]] = field(factory=list)


@define(eq=False)
class Aggregates:
    accounts_max: int
    groups_max: int = 5000  # pools x bands x tenants in one window; beyond it they share the tenant "other"
    _open: dict[tuple[str, str, str], Aggregate] = field(factory=dict)
    _start: int = 0
    _closed: list[Aggregate] = field(factory=list)
    _order: "count[int]" = field(factory=count)

    def add(self, record: Record) -> None:
        start = int(record.at) // WINDOW_S * WINDOW_S
        if start > self._start:
            self._turn(start)
        key = (record.model, record.band, record.tenant)
        group = self._open.get(key)
        if group is None:
            group = self._new(key)
        self._sum(group, record)
        worth = (int(record.outcome not in _PLAIN) + int(len(record.tries) > 1), record.total_s)
        self._keep(group, worth, record)

    def take_closed(self, now: float) -> list[Aggregate]:
        """Windows that have ended since the last call."""
        if self._start and now >= self._start + WINDOW_S:
            self._turn(int(now) // WINDOW_S * WINDOW_S)
        closed, self._closed = self._closed, []
        return closed

    def take_all(self) -> list[Aggregate]:
        """The running window too: the process ends."""
        self._turn(self._start + WINDOW_S)
        closed, self._closed = self._closed, []
        return closed

    def _turn(self, start: int) -> None:
        self._closed += self._open.values()
        self._open, self._start = {}, start

    def _new(self, key: tuple[str, str, str]) -> Aggregate:
        if len(self._open) >= self.groups_max:
            key = (key[0], key[1], "other")
        return self._open.setdefault(key, Aggregate(self._start, *key))

    def _sum(self, group: Aggregate, record: Record) -> None:
        group.requests += 1
        group.outcomes[record.outcome] += 1
        group.prompt_tokens += record.prompt_tokens
        group.completion_tokens += record.completion_tokens
        group.total_s += record.total_s
        group.wait_s += record.wait_s
        group.retried += len(record.tries) > 1
        group.slowest_s = max(group.slowest_s, record.total_s)
        if record.ttft_s is not None:
            group.streams += 1
            group.ttft_s += record.ttft_s

    def _keep(self, group: Aggregate, worth: tuple[int, float], record: Record) -> None:
        """Refused, retried and deadline-hit before slow, slow before quick."""
        kept = group.kept
        if len(kept) < self.accounts_max:
            heapq.heappush(kept, (worth, next(self._order), record))
        elif worth > kept[0][0]:
            heapq.heapreplace(kept, (worth, next(self._order), record))
