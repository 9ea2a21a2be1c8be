"""The fleet as this process sees it now: what the probes learned and what the road counts.

The only mutable thing the roads share. Probe and road meet here; scheduling reads it. A reload keeps the
endpoints that did not change, and one that was removed serves on until its last request has ended.
"""

from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Any

from attrs import define, evolve, field

from llmgw.core.breaker import Breaker, BreakerLimits, State
from llmgw.core.capacity import Capacity
from llmgw.core.fleet import Endpoint, Fleet, Model
from llmgw.core.prefix import PrefixIndex
from llmgw.core.saturation import BATCH, KV_LIMIT, QUEUE_LIMIT, Parts, Room, Sample, pool_saturation, room
from llmgw.engines.client import EngineClient

SAMPLE_STALE_S = 2.0


def _nobody(_: "LiveEndpoint") -> None:
    """Nobody waits for news of endpoints."""


@define(eq=False)
class LiveEndpoint:
    """Times are Trio's clock, in seconds."""

    endpoint: Endpoint
    client: EngineClient
    breaker: Breaker
    added_at: float
    in_flight: int = 0
    granted: int = 0  # admitted and not yet sent anywhere; counted here because it had most room
    healthy: bool | None = None  # None: nobody has asked yet; counts as usable
    health_why: str = "not asked yet"
    health_at: float | None = None
    leaving: bool = False  # removed by a reload: serves on what it has
    held_out: str = ""  # why an operator took it out of service: no new request, those that are there run on
    _sample: Sample | None = None
    sample_why: str = ""  # why there is no fresh sample
    silent: bool = False  # its samples stopped coming though we asked: full, not unknown
    busy_until: float = 0.0  # after its own 429 or 503: full until then
    progress_at: float = 0.0  # a token was made, or an answer came whole
    watched: "set[Any] | None" = None  # requests under way there, where somebody looks whether they get on
    queue_limit: float = QUEUE_LIMIT
    kv_limit: float = KV_LIMIT
    sample_stale: float = SAMPLE_STALE_S  # a sample this old is none
    on_restart: Callable[["LiveEndpoint"], None] | None = None
    on_news: Callable[["LiveEndpoint"], None] = _nobody  # there may be more room now, or less
    served: int = field(default=0, init=False)
    known: Capacity = field(init=False)
    _room: Room | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.known = Capacity(self.endpoint.capacity, BATCH[self.endpoint.engine], self.kv_limit, self.queue_limit)

    @property
    def id(self) -> str:
        return self.endpoint.id

    @property
    def capacity(self) -> int | None:
        return self.known.value

    @property
    def sample(self) -> Sample | None:
        return self._sample

    @sample.setter
    def sample(self, sample: Sample | None) -> None:
        before, self._sample, self._room = self._sample, sample, None
        if sample is not None and before is not None and sample.tokens != before.tokens:
            self.progress_at = sample.at
        if sample is not None:
            self.known.sampled(sample, room(sample, None).others + self.in_flight)

    @property
    def room(self) -> Room:
        """What its last sample shows; made once a sample."""
        if self._room is None:
            self._room = room(self._sample, self.known.value, self.queue_limit, self.kv_limit, self.known.ran)
        return self._room

    @property
    def load(self) -> int:
        """Ours: sent there, and granted on their way."""
        return self.in_flight + self.granted

    @property
    def limited(self) -> bool:
        """It has as many of ours as the operator lets it have."""
        most = self.endpoint.max_in_flight
        return most is not None and self.in_flight + self.granted >= most

    def saturation(self, now: float) -> float:
        room = self._room or self.room
        s = room.saturation(self.in_flight + self.granted)
        if self.endpoint.max_in_flight is not None and self.limited:
            return inf
        return max(1.0, s) if self.silent or now < self.busy_until else s

    def parts(self) -> Parts:
        return self.room.parts(self.load)

    def is_still(self, endpoint: Endpoint) -> bool:
        """Whether this is the same engine, asked the same way; what else is said of it counts from now on.

        Its requests, its connections and what is known of it stay: it can't be filled a second time.
        """
        mine = self.endpoint
        same = evolve(
            mine, capacity=endpoint.capacity, max_in_flight=endpoint.max_in_flight, adapters=endpoint.adapters,
            inject_usage=endpoint.inject_usage,
        )  # fmt: skip
        if same != endpoint:
            return False
        if mine != endpoint:
            self.endpoint = self.client.endpoint = endpoint
            self.known.given, self._room = endpoint.capacity, None
        return True

    def limits_changed(self, queue_limit: float, kv_limit: float, sample_stale: float) -> None:
        self.queue_limit, self.kv_limit, self.sample_stale, self._room = queue_limit, kv_limit, sample_stale, None
        self.known.queue_limit, self.known.kv_limit = queue_limit, kv_limit

    def usable(self, now: float) -> bool:
        """The one predicate for saturation, scheduling and /ready."""
        return self.unusable(now) is None

    def unusable(self, now: float) -> str | None:
        """Why nothing can be sent there now; None if something can. A half-open breaker counts as usable."""
        if self.leaving:
            return "leaving: removed from the configuration"
        if self.held_out:
            return self.held_out
        if self.healthy is False:
            return f"unhealthy: {self.health_why}"
        if self.breaker.state(now) is State.OPEN:
            return f"breaker open: {self.breaker.why}"
        return None

    def stands_still_s(self, now: float) -> float:
        """How long nothing has come of the requests that are there; 0 without any.

        A plain answer comes in one piece, so it says something only where the engine counts its tokens.
        """
        sample = self._sample
        counts = sample is not None and sample.tokens is not None
        here = [one for one in self.watched or () if one.streaming or counts]
        theirs = counts and sample is not None and bool(sample.running or sample.waiting)
        if not here and not theirs:
            self.progress_at = max(self.progress_at, now)
            return 0.0
        signs: list[float] = [max(one.progress_at, one.sent_at) for one in here]
        return max(0.0, now - max(self.progress_at, self.added_at, *signs))

    def restarted(self) -> None:
        """Another process answers there: what its predecessor did is not its fault, what it cached is gone."""
        self.breaker.good()
        self.known.restarted()
        self._room = None
        if self.on_restart is not None:
            self.on_restart(self)


@define(eq=False)
class Pool:
    """The endpoints of one model."""

    model: Model
    endpoints: list[LiveEndpoint]
    prefixes: PrefixIndex

    def saturation(self, now: float) -> float | None:
        """None: no endpoint is usable."""
        if len(self.endpoints) == 1:
            only = self.endpoints[0]
            return only.saturation(now) if only.unusable(now) is None else None
        members = [(e.saturation(now), float(e.capacity or 1)) for e in self.endpoints if e.unusable(now) is None]
        return pool_saturation(members) if members else None

    def emptiest(self, now: float) -> LiveEndpoint:
        """The usable endpoint with most room. There must be one."""
        return min((e for e in self.endpoints if e.unusable(now) is None), key=lambda e: e.saturation(now))


@define(eq=False)
class LiveFleet:
    make_client: Callable[[Endpoint], EngineClient]
    breaker_limits: BreakerLimits = field(factory=BreakerLimits)
    prefix_entries_max: int = 50_000
    queue_limit: float = QUEUE_LIMIT
    kv_limit: float = KV_LIMIT
    sample_stale: float = SAMPLE_STALE_S
    on_news: Callable[[LiveEndpoint], None] = _nobody
    fleet: Fleet = field(factory=Fleet)
    _pools: dict[str, Pool] = field(factory=dict, init=False)
    held_out: Mapping[str, str] = field(factory=dict, init=False)  # by id, why operators took one out of service
    _live: dict[str, LiveEndpoint] = field(factory=dict, init=False)
    _leaving: list[LiveEndpoint] = field(factory=list, init=False)

    def apply(self, fleet: Fleet, now: float) -> list[LiveEndpoint]:
        """Make this the fleet; the endpoints that are new, each of which wants a probe."""
        kept, added = {}, []
        for endpoint in fleet.endpoints:
            old = self._live.get(endpoint.id)
            if old is not None and old.is_still(endpoint):
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

    def hold_out(self, why: Mapping[str, str]) -> None:
        """These get no new request, by id, whatever is configured; those that are there run on."""
        self.held_out = why
        for live in self._live.values():
            was, live.held_out = live.held_out, why.get(live.id, "")
            if was and not live.held_out:
                self.on_news(live)

    def find(self, id: str) -> LiveEndpoint | None:
        """An endpoint of the fleet, or one that still leaves."""
        return self._live.get(id) or next((one for one in self._leaving if one.id == id), None)

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
        if any(pool.endpoints for pool in pools):
            return "no endpoint is usable"
        by_agents = any(pool.model.run_by_agents for pool in pools)
        return "no replica serves yet" if by_agents else "no endpoint is configured"

    def _added(self, endpoint: Endpoint, now: float) -> LiveEndpoint:
        live = LiveEndpoint(
            endpoint, self.make_client(endpoint), Breaker(self.breaker_limits), now,
            queue_limit=self.queue_limit, kv_limit=self.kv_limit, sample_stale=self.sample_stale,
        )  # fmt: skip
        live.on_restart, live.on_news = self._forget_prompts, self._tell
        live.watched = set() if endpoint.replica else None
        live.held_out = self.held_out.get(endpoint.id, "")
        return live

    def _tell(self, live: LiveEndpoint) -> None:
        self.on_news(live)

    def limits_changed(self, queue_limit: float, kv_limit: float, sample_stale: float) -> None:
        self.queue_limit, self.kv_limit, self.sample_stale = queue_limit, kv_limit, sample_stale
        for live in self:
            live.limits_changed(queue_limit, kv_limit, sample_stale)

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
