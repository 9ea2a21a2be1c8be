"""The fleet as this process sees it now: what the probes learned and what the road counts.

The only mutable thing the roads share. Probe and road meet here; scheduling reads it. A reload keeps the
endpoints that did not change, and one that was removed serves on until its last request has ended.
"""

from collections.abc import Callable, Iterator

from attrs import define, field

from llmgw.core.breaker import Breaker, BreakerLimits, State
from llmgw.core.fleet import Endpoint, Fleet, Model
from llmgw.core.prefix import PrefixIndex
from llmgw.core.saturation import BATCH, Sample, pool_saturation, saturation
from llmgw.engines.client import EngineClient


@define(eq=False)
class LiveEndpoint:
    """Times are Trio's clock, in seconds."""

    endpoint: Endpoint
    client: EngineClient
    breaker: Breaker
    added_at: float
    in_flight: int = 0
    healthy: bool | None = None  # None: nobody has asked yet; counts as usable
    health_why: str = "not asked yet"
    health_at: float | None = None
    leaving: bool = False  # removed by a reload: serves on what it has
    sample: Sample | None = None
    sample_why: str = ""  # why there is no fresh sample
    silent: bool = False  # its samples stopped coming though we asked: full, not unknown
    busy_until: float = 0.0  # after its own 429 or 503: full until then
    on_restart: Callable[["LiveEndpoint"], None] | None = None
    served: int = field(default=0, init=False)

    @property
    def id(self) -> str:
        return self.endpoint.id

    @property
    def capacity(self) -> int | None:
        return self.endpoint.capacity or BATCH[self.endpoint.engine]

    def saturation(self, now: float) -> float:
        s = saturation(self.in_flight, self.sample, self.capacity)
        return max(1.0, s) if self.silent or now < self.busy_until else s

    def usable(self, now: float) -> bool:
        """The one predicate for saturation, scheduling and /ready."""
        return self.unusable(now) is None

    def unusable(self, now: float) -> str | None:
        """Why nothing can be sent there now; None if something can. A half-open breaker counts as usable."""
        if self.leaving:
            return "leaving: removed from the configuration"
        if self.healthy is False:
            return f"unhealthy: {self.health_why}"
        if self.breaker.state(now) is State.OPEN:
            return f"breaker open: {self.breaker.why}"
        return None

    def restarted(self) -> None:
        """Another process answers there: what its predecessor did is not its fault, what it cached is gone."""
        self.breaker.good()
        if self.on_restart is not None:
            self.on_restart(self)


@define(eq=False)
class Pool:
    """The endpoints of one model."""

    model: Model
    endpoints: list[LiveEndpoint]
    prefixes: PrefixIndex

    def saturation(self, now: float) -> float:
        usable = [e for e in self.endpoints if e.usable(now)]
        return pool_saturation((e.saturation(now), float(e.capacity or 1)) for e in usable)


@define(eq=False)
class LiveFleet:
    make_client: Callable[[Endpoint], EngineClient]
    breaker_limits: BreakerLimits = field(factory=BreakerLimits)
    prefix_entries_max: int = 50_000
    fleet: Fleet = field(factory=Fleet)
    _pools: dict[str, Pool] = field(factory=dict, init=False)
    _live: dict[str, LiveEndpoint] = field(factory=dict, init=False)
    _leaving: list[LiveEndpoint] = field(factory=list, init=False)

    def apply(self, fleet: Fleet, now: float) -> list[LiveEndpoint]:
        """Make this the fleet; the endpoints that are new, each of which wants a probe."""
        kept, added = {}, []
        for endpoint in fleet.endpoints:
            old = self._live.get(endpoint.id)
            if old is not None and old.endpoint == endpoint:
                kept[endpoint.id] = old
                continue
            kept[endpoint.id] = live = self._added(endpoint, now)
            added.append(live)
        for old in self._live.values():
            if kept.get(old.id) is not old:
                self._leave(old)
        self._live, self.fleet = kept, fleet
        self._pools = {model.name: self._pool(model) for model in fleet.models.values()}
        return added

    def pool(self, model: str) -> Pool | None:
        return self._pools.get(model)

    def pools(self) -> list[Pool]:
        return list(self._pools.values())

    def __iter__(self) -> Iterator[LiveEndpoint]:
        """Every endpoint of the fleet, and those that are still leaving."""
        yield from self._live.values()
        yield from self.leaving()

    def leaving(self) -> list[LiveEndpoint]:
        self._leaving = [e for e in self._leaving if e.in_flight > 0]
        return self._leaving

    def clients(self) -> list[EngineClient]:
        return [live.client for live in self]

    def ready(self, model: str | None, now: float) -> str | None:
        """Why there is nowhere to send a request, or None."""
        if model is not None:
            asked = self.fleet.resolve(model)
            if asked is None:
                return f"no model {model[:128]!r} is configured"
            pools = [self._pools[asked.model.name]]
        else:
            pools = self.pools()
        if any(e.usable(now) for pool in pools for e in pool.endpoints):
            return None
        return "no endpoint is usable" if any(pool.endpoints for pool in pools) else "no endpoint is configured"

    def _added(self, endpoint: Endpoint, now: float) -> LiveEndpoint:
        live = LiveEndpoint(endpoint, self.make_client(endpoint), Breaker(self.breaker_limits), now)
        live.on_restart = self._forget_prompts
        return live

    def _forget_prompts(self, live: LiveEndpoint) -> None:
        pool = self._pools.get(live.endpoint.model)
        if pool is not None and live in pool.endpoints:  # not one that left and has a namesake
            pool.prefixes.forget(live.id)

    def _leave(self, live: LiveEndpoint) -> None:
        live.leaving = True
        live.client.close()
        if live.in_flight:
            self._leaving.append(live)

    def _pool(self, model: Model) -> Pool:
        old = self._pools.get(model.name)
        prefixes = old.prefixes if old is not None else PrefixIndex(self.prefix_entries_max)
        endpoints = [self._live[e.id] for e in model.endpoints]
        if old is not None:
            urls = {e.id: e.endpoint.url for e in endpoints}
            for gone in old.endpoints:
                if urls.get(gone.id) != gone.endpoint.url:
                    prefixes.forget(gone.id)
        return Pool(model, endpoints, prefixes)
