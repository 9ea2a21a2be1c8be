"""Who waits for which pool, and who is told when: the policy of ``core.admission``, driven by events.

A request that may go at once is not seen here again. One that waits has a seat and a waiter; it leaves both the
moment it is told, gives up, or its client leaves. Between a grant and the pick of an endpoint a request is
visible nowhere, so until then it counts on the endpoint that had most room (``granted``).
"""

from functools import partial
from math import inf

import trio
from attrs import define, field

from llmgw.core.admission import Full, Line, Queues, new_line
from llmgw.core.bands import AdmissionLimits, BandRule, Mode
from llmgw.core.identity import Band
from llmgw.core.outcome import Outcome, Refusal
from llmgw.core.saturation import Parts
from llmgw.core.seats import Seat, Seats
from llmgw.engines.live import LiveEndpoint, LiveFleet, Pool
from llmgw.gateway import verdicts
from llmgw.gateway.waits import Waits
from llmgw.tasks.alarms import Alarm, Alarms
from llmgw.tasks.waiting_room import Waiter

REMOVED = Refusal(
    Outcome.NO_ENDPOINT,
    "the model was removed while the request waited",
    retry_after_s=verdicts.NO_ENDPOINT_FOR_S,
)
ENDING = Refusal(Outcome.SHUTTING_DOWN, "the gateway shuts down; ask again", retry_after_s=1.0)


@define(eq=False)
class Grant:
    """It may go; it counts on this endpoint until it is sent somewhere."""

    on: LiveEndpoint
    why: str


@define(eq=False)
class Asking:
    """One request before a pool's door."""

    tenant: str
    band: Band
    size: int  # bytes it holds
    arrived: float  # when it first began to wait
    waited_s: float  # in queues before this one
    total_at: float  # its total deadline
    overflows: bool  # there is another pool for it when this one is saturated
    alarm: Alarm
    behind: str = ""  # what it waited behind
    let_through: str = ""  # which condition let it through
    cancelled: Refusal | None = None  # by an operator, while it waits


@define(eq=False)
class PoolLine:
    """One pool's line, with the alarm for what will change by itself: a busy endpoint's pause, a breaker's."""

    model: str
    line: Line
    waits: Waits
    alarm: Alarm


@define(eq=False)
class Admission:
    live: LiveFleet
    limits: AdmissionLimits
    alarms: Alarms
    queues: Queues = field(init=False)
    _pools: dict[str, PoolLine] = field(factory=dict, init=False)
    _asking: dict[Seat, Asking] = field(factory=dict, init=False)  # of those who wait
    _off: bool = field(init=False)
    _ending: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        limits = self.limits
        self.queues = Queues({band: Seats(limits.queue_seats_max, limits.queue_bytes_max) for band in Band})
        self.live.on_news = self.news
        self._off = limits.mode != Mode.ON

    # -- on the road --------------------------------------------------------------------------------

    def at_once(self, model: str, band: Band, now: float, adapter: str | None = None) -> bool:
        """Whether it goes without waiting; so does what waiting can't change, and choosing says what it lacks."""
        if self._off:
            return True
        pool = self.live.pool(model)
        saturation = pool.saturation(now) if pool is not None else None
        if pool is None or saturation is None or self._pool(model).line.may_pass(band, saturation):
            return True
        return adapter is not None and not any(adapter in e.endpoint.adapters for e in pool.endpoints if e.usable(now))

    async def wait(self, model: str, asking: Asking) -> Refusal | None:
        """Until it is granted, refused, or the client leaves. After a grant no checkpoint comes before the return."""
        if self._ending:
            return ENDING
        here, now = self._pool(model), trio.current_time()
        seat = Seat(asking.tenant, asking.band, asking.size, asking.arrived)
        waiter = seat.owner = Waiter[Grant | Refusal]()
        asking.behind = self._behind(here, asking.band, now)
        if (refusal := self._seated(here, seat, now)) is not None:
            return refusal
        self.turn(model, now)
        if waiter.told:  # it had only to let nobody be overtaken
            return self._told(here, seat, asking, await waiter.wait(_nobody_left), at_once=True)
        self._asking[seat] = asking
        asking.alarm.ring = partial(self._rung, here, seat, asking)
        asking.alarm.set(self._due(seat, asking))
        try:
            word = await waiter.wait(partial(self._left, here, seat))
        finally:
            del self._asking[seat]
            asking.alarm.set(inf)
        return self._told(here, seat, asking, word)

    def left(self, model: str) -> None:
        """A request has left a pool: somebody may have room."""
        here = self._pools.get(model)
        if here is not None and here.line.waiting:
            self.turn(model, trio.current_time())

    def retrying(self, model: str, now: float) -> None:
        """A request keeps its grant and goes elsewhere in its pool: the endpoint it leaves has room."""
        here, pool = self._pools.get(model), self.live.pool(model)
        if here is not None and here.line.waiting and pool is not None and pool.saturation(now) is not None:
            kept = pool.emptiest(now)
            kept.granted += 1
            self.turn(model, now)
            kept.granted -= 1

    # -- events -------------------------------------------------------------------------------------

    def news(self, live: LiveEndpoint) -> None:
        """A sample, or a change of health: there may be more room, or less."""
        self.left(live.endpoint.model)

    def apply(self, limits: AdmissionLimits) -> None:
        """A reload: the fleet has changed, and perhaps the rules; whoever waits keeps their place."""
        self.limits, self._off = limits, limits.mode != Mode.ON
        for seats in self.queues.seats.values():
            seats.seats_max, seats.bytes_max = limits.queue_seats_max, limits.queue_bytes_max
        self.live.limits_changed(limits.queue_limit, limits.kv_limit, limits.sample_stale)
        for model, here in list(self._pools.items()):
            here.line.rules_changed(self._rules(model))
            here.waits.tenants_max = limits.tenants_max
            if self.live.pool(model) is None:
                self._tell_all(here, REMOVED, "no_endpoint")
                here.alarm.set(inf)
                del self._pools[model]
            else:
                self.turn(model, trio.current_time())
        for seat, asking in self._asking.items():
            if seat.waiting:
                asking.alarm.set(self._due(seat, asking))

    def end(self) -> None:
        """The process ends: whoever still waits is told, and nobody waits any more."""
        self._ending = True
        for here in self._pools.values():
            self._tell_all(here, ENDING, "shutting_down")

    def turn(self, model: str, now: float) -> None:
        """Grant whoever may go, one after another: each grant makes the pool fuller for the next."""
        here, pool = self._pools[model], self.live.pool(model)
        while here.line.waiting:
            saturation = pool.saturation(now) if pool is not None else None
            if pool is None or saturation is None:
                self._tell_all(here, _nobody(model, pool, now), "no_endpoint")
                return
            pick = self.queues.next(here.line, -inf if self._off else saturation, now)
            if pick is None:
                here.alarm.set(_changes_at(pool, now))
                return
            on = pool.emptiest(now)
            on.granted += 1
            pick.seat.owner.tell(Grant(on, pick.why))

    # -- what is shown ------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        return sum(here.line.waiting for here in self._pools.values())

    def pools(self) -> list[PoolLine]:
        """A line for every pool there is, waited for or not."""
        return [self._pool(pool.model.name) for pool in self.live.pools()]

    def _rules(self, model: str) -> tuple[BandRule, ...]:
        pool = self.live.pool(model)
        return self.limits.rules(pool.model.bands if pool is not None else None)

    def _pool(self, model: str) -> PoolLine:
        here = self._pools.get(model)
        if here is None:
            limits = self.limits
            line = new_line(self._rules(model))
            alarm = self.alarms.new(lambda: self.left(model))
            here = self._pools[model] = PoolLine(model, line, Waits(limits.tenants_max), alarm)
        return here

    # -- one who waits ------------------------------------------------------------------------------

    def _seated(self, here: PoolLine, seat: Seat, now: float) -> Refusal | None:
        had = self.queues.seat(here.line, seat, now)
        if isinstance(had, Full):
            here.waits.refused(seat.band, seat.tenant, "full")
            return _full(seat.band, had)
        if had is not None:  # somebody of a greedier tenant made room
            there = next(one for one in self._pools.values() if one.line is had.line)
            there.waits.refused(had.band, had.tenant, "gave_way")
            retry_after_s = there.line.bands[had.band].retry_after_s(now)
            had.owner.tell(
                Refusal(
                    Outcome.QUEUE_FULL,
                    f"the queue of {had.band.value} is full, and its place went to a tenant that holds fewer",
                    retry_after_s=retry_after_s,
                )
            )
        return None

    def _due(self, seat: Seat, asking: Asking) -> float:
        """When the first of its limits runs out."""
        rule: BandRule = seat.line.bands[seat.band].rule
        expires = seat.joined + rule.ttl_s - asking.waited_s
        overflows = seat.joined + self.limits.overflow_after if asking.overflows else inf
        return min(expires, overflows, asking.total_at)

    def _rung(self, here: PoolLine, seat: Seat, asking: Asking) -> None:
        """One of its limits has run out, unless it was told meanwhile."""
        now = trio.current_time()
        if not seat.waiting:
            return
        rule = here.line.bands[seat.band].rule
        self.queues.leave(seat)
        if asking.cancelled is not None:
            reason, word = "cancelled", asking.cancelled
        elif now >= asking.total_at:
            reason, word = "total", Refusal(Outcome.TOTAL_TIMEOUT, "the total deadline passed while it waited")
        elif now - seat.joined + asking.waited_s >= rule.ttl_s:
            reason = "too_late"
            word = Refusal(
                Outcome.WAITED_TOO_LONG, f"it waited {rule.ttl_s:g} s, which is as long as {seat.band.value} may wait"
            )
        else:
            reason = "overflowed"
            word = Refusal(Outcome.QUEUE_FULL, f"it waited {now - seat.joined:.1f} s, and another pool may serve it")
        here.waits.refused(seat.band, seat.tenant, reason)
        seat.owner.tell(word)

    def _left(self, here: PoolLine, seat: Seat) -> None:
        """Its client has gone: its place is free at this instant."""
        if seat.waiting:
            self.queues.leave(seat)
            here.waits.refused(seat.band, seat.tenant, "gone")

    def _told(
        self, here: PoolLine, seat: Seat, asking: Asking, word: Grant | Refusal, at_once: bool = False
    ) -> Refusal | None:
        waited_s = trio.current_time() - seat.joined
        if isinstance(word, Refusal):
            return word
        word.on.granted -= 1
        if at_once:
            asking.behind = ""
        else:
            asking.let_through = word.why
            here.waits.served(seat.band, seat.tenant, waited_s)
        return None

    def _behind(self, here: PoolLine, band: Band, now: float) -> str:
        """What holds a newcomer back, in words."""
        ahead = ", ".join(f"{count} of {name.value}" for name, count in here.line.ahead(band)) or "nobody"
        pool = self.live.pool(here.model)
        saturation = pool.saturation(now) if pool is not None else None
        if pool is None or saturation is None:
            return ahead
        fullest = max((one for one in pool.endpoints if one.usable(now)), key=lambda one: one.parts().saturation)
        ceiling = here.line.bands[band].rule.ceiling
        return f"{ahead}; saturation {saturation:.2f} ({_fullest(fullest.parts())}), {band.value}'s ceiling {ceiling:g}"

    def _tell_all(self, here: PoolLine, word: Refusal, reason: str) -> None:
        """Nobody who waits here can be served."""
        for seat in here.line.everybody():
            self.queues.leave(seat)
            here.waits.refused(seat.band, seat.tenant, reason)
            seat.owner.tell(word)


def _nobody_left() -> None:
    """Nobody can leave between a word and its hearing."""


def _nobody(model: str, pool: Pool | None, now: float) -> Refusal:
    if pool is None:
        return verdicts.no_endpoint(model, ())
    return verdicts.no_endpoint(model, (one.unusable(now) or "" for one in pool.endpoints), pool.model.run_by_agents)


def _full(band: Band, full: Full) -> Refusal:
    what = "requests" if full.lacks == "seats" else "bytes"
    return Refusal(
        Outcome.QUEUE_FULL,
        f"the queue of {band.value} holds as many {what} as it may",
        retry_after_s=full.retry_after_s,
    )


def _fullest(parts: Parts) -> str:
    return f"{parts.fullest} {getattr(parts, parts.fullest):.2f}"


def _changes_at(pool: Pool, now: float) -> float:
    """When an endpoint's room changes with no event of its own: a pause it asked for, or a breaker's, is over."""
    times = (at for one in pool.endpoints for at in (one.busy_until, one.breaker.opens_at) if at > now)
    return min(times, default=inf)
