"""What admission would have done, beside the requests as they pass; for ``mode = "shadow"``.

Holds nothing and refuses nothing. Sums are kept by pool, band and tenant, and handed to whoever stores the
five-minute accounts.
"""

from collections import Counter
from collections.abc import Mapping
from math import inf
from typing import Any
from weakref import WeakKeyDictionary

from attrs import define, field

from llmgw.core.bands import AdmissionLimits
from llmgw.core.identity import KeyRecord
from llmgw.core.shadow import Mirror, Passing, VirtualPool, virtual_pool
from llmgw.engines.live import LiveEndpoint, LiveFleet
from llmgw.telemetry.metrics import OTHER, Buckets

WAITS_S = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
FIRSTS_S = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0)
TALLIES_MAX = 5000  # pools x bands x tenants between two hand-outs; beyond it they share a tenant
Key = tuple[str, str, str]  # model, band, tenant


@define(eq=False)
class Tally:
    """Of one pool, band and tenant. ``alone`` and ``behind``: seconds to the first token, without and with somebody
    of a lower band in front in the engine's queue; ``blamed``: seconds waited there, by who it mostly belonged to."""

    requests: int = 0
    waits: Buckets = field(factory=lambda: Buckets(WAITS_S))
    would: Counter[str] = field(factory=Counter)
    alone: Buckets = field(factory=lambda: Buckets(FIRSTS_S))
    behind: Buckets = field(factory=lambda: Buckets(FIRSTS_S))
    blamed: Counter[str] = field(factory=Counter)

    def as_json(self) -> dict[str, Any]:
        return {
            "requests": self.requests, "waits": self.waits.counts, "would": dict(self.would),
            "alone": self.alone.counts, "behind": self.behind.counts,
            "blamed": {who: round(seconds, 3) for who, seconds in self.blamed.items()},
        }  # fmt: skip


@define(eq=False)
class Beside:
    """One request's shadow."""

    _shadow: "Shadow"
    _model: str
    _one: Passing

    def sent(self, to: LiveEndpoint, now: float) -> None:
        self._shadow.sent(self._one, to, now)

    def left(self, at: LiveEndpoint, now: float) -> None:
        self._shadow.left(self._one, at, now)

    def finished(self, first_token_s: float | None, gone: bool, now: float) -> None:
        self._shadow.finished(self._model, self._one, first_token_s, gone, now)


@define(eq=False)
class Shadow:
    live: LiveFleet
    limits: AdmissionLimits
    tallies: dict[Key, Tally] = field(factory=dict)
    _pools: dict[str, VirtualPool] = field(factory=dict)
    _mirrors: "WeakKeyDictionary[LiveEndpoint, Mirror]" = field(factory=WeakKeyDictionary)
    _keys: dict[Passing, Key] = field(factory=dict)  # of those whose virtual fate is not known yet

    def arrived(self, model: str, key: KeyRecord, size: int, now: float) -> Beside:
        one = Passing(key.band, key.tenant, size, now)
        pool = self._pool(model)
        self._keys[one] = (model, key.band_name, key.tenant)
        self._tally(self._keys[one]).requests += 1
        pool.arrive(one, now)
        self._note(pool)
        return Beside(self, model, one)

    def sent(self, one: Passing, to: LiveEndpoint, now: float) -> None:
        self._mirror(to).sent(one, now)

    def left(self, one: Passing, at: LiveEndpoint, now: float) -> None:
        """An attempt there is over."""
        one.ended_at = now
        self._mirror(at).left(one, now)

    def finished(self, model: str, one: Passing, first_token_s: float | None, gone: bool, now: float) -> None:
        """The request has ended; ``first_token_s`` since it was sent, of a stream that had one."""
        if one.ended_at is None:
            one.ended_at = now
        tally = self._tally((model, one.band.value, one.tenant))
        if first_token_s is not None:
            (tally.behind if one.behind else tally.alone).observe(first_token_s)
        if one.behind:
            tally.blamed["/".join(one.behind)] += one.queued_s  # type: ignore[assignment]
        pool = self._pool(model)
        pool.ended(one, now, gone)
        self._note(pool)
        if one.granted_at is None and one.seat is None:
            self._keys.pop(one, None)

    def take(self) -> dict[Key, Tally]:
        """What was summed since the last call."""
        taken, self.tallies = self.tallies, {}
        return taken

    def rows(self) -> list[tuple[str, str, str, dict[str, Any]]]:
        """What was summed and not taken yet: model, band, tenant, and the tally as JSON."""
        return [(*key, tally.as_json()) for key, tally in self.tallies.items()]

    def apply(self, limits: AdmissionLimits) -> None:
        self.limits = limits
        for model, pool in list(self._pools.items()):
            real = self.live.pool(model)
            if real is None:
                del self._pools[model]
                self._keys = {one: key for one, key in self._keys.items() if key[0] != model}
            else:
                pool.line.rules_changed(limits.rules(real.model.bands))

    def _note(self, pool: VirtualPool) -> None:
        """What became of those whose virtual fate is known now."""
        decided, pool.decided = pool.decided, []
        for one in decided:
            key = self._keys.pop(one, None)
            if key is None:
                continue
            tally = self._tally(key)
            if one.refused:
                tally.would[one.refused] += 1
            elif one.granted_at is not None:
                tally.waits.observe(one.granted_at - one.arrived)

    def _pool(self, model: str) -> VirtualPool:
        pool, real = self._pools.get(model), self.live.pool(model)
        if pool is None:
            limits = self.limits
            rules = limits.rules(real.model.bands if real is not None else None)
            pool = self._pools[model] = virtual_pool(rules, limits.queue_seats_max, limits.queue_bytes_max)
        pool.slots = sum((e.capacity or inf) for e in real.endpoints if not e.leaving) or 1.0 if real else 1.0
        return pool

    def _mirror(self, live: LiveEndpoint) -> Mirror:
        mirror = self._mirrors.get(live)
        if mirror is None:
            mirror = self._mirrors[live] = Mirror(live.capacity or inf)
        mirror.capacity = live.capacity or inf
        return mirror

    def _tally(self, key: Key) -> Tally:
        tally = self.tallies.get(key)
        if tally is None:
            known = key if len(self.tallies) < TALLIES_MAX else (key[0], key[1], OTHER)
            tally = self.tallies.setdefault(known, Tally())
        return tally


def added(sums: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Two tallies as JSON, together."""
    if not sums:
        return {**more}
    return {
        "requests": sums["requests"] + more["requests"],
        **{name: [a + b for a, b in zip(sums[name], more[name], strict=True)] for name in ("waits", "alone", "behind")},
        **{name: dict(Counter(sums[name]) + Counter(more[name])) for name in ("would", "blamed")},
    }
