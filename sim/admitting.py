"""The gateway's admission over modelled engines: the policy itself, driven by events as the gateway drives it.

What decides is not modelled: ``core.admission`` says who goes, ``engines.live`` how full the pool is and what it
learns of capacities, ``core.scheduling`` where a request goes. Mirrored here is only ``gateway.admission``, which
waits on Trio: a newcomer goes at once or takes a seat; after an arrival, an end, a sample or a cancel, whoever may
go is granted, counts on the emptiest endpoint, and is sent a moment later.
"""

from functools import partial
from random import Random

import trio
from attrs import define, field, frozen

from llmgw.core.admission import Full, Line, Queues, new_line
from llmgw.core.bands import AdmissionLimits, Mode
from llmgw.core.fleet import Endpoint, Model, fleet_of
from llmgw.core.fleet import Engine as Kind
from llmgw.core.identity import Band
from llmgw.core.saturation import Sample
from llmgw.core.scheduling import Ask, Chosen, Weights, choose
from llmgw.core.seats import Seat, Seats
from llmgw.engines.client import EngineClient
from llmgw.engines.live import LiveEndpoint, LiveFleet, Pool
from llmgw.tasks.streams import Stream
from sim.queueing import Agenda, Engine, Fate, Work

MODEL = "m"


@frozen
class Told:
    """What the gateway is told of one engine, and what the engine is."""

    slots: int = 32
    capacity: int | None = None  # given in the config; None: it learns
    kind: Kind = Kind.VLLM  # whose preset it begins with
    kv_tokens: int = 0


@frozen
class Seen:
    """An endpoint at one scrape."""

    at: float
    running: int
    waiting: int
    capacity: int | None
    saturation: float


async def _nowhere(host: str, port: int, tls: object | None = None) -> Stream:
    raise trio.BrokenResourceError("a modelled engine has no socket")


@define(eq=False, repr=False)
class Station:
    """A modelled engine and what the gateway believes of it."""

    engine: Engine
    live: LiveEndpoint
    seen: list[Seen] = field(factory=list)
    sent: int = 0
    process: float | None = None


@define(eq=False, repr=False)
class Gateway:
    """One pool. ``done`` has every request that is over."""

    agenda: Agenda
    rng: Random
    engines: tuple[Told, ...]
    limits: AdmissionLimits = field(factory=AdmissionLimits)
    scrape_s: float = 0.5  # probe.metrics
    dispatch_s: float = 0.002  # between a grant and the pick of an endpoint
    stations: list[Station] = field(factory=list, init=False)
    done: list[Work] = field(factory=list, init=False)
    grants: list[tuple[float, Band]] = field(factory=list, init=False)  # of those who waited
    pool: Pool = field(init=False)
    line: Line = field(init=False)
    queues: Queues = field(init=False)
    _where: dict[Work, Station] = field(factory=dict, init=False)
    _seats: dict[Work, Seat] = field(factory=dict, init=False)
    _weights: Weights = field(factory=Weights, init=False)

    def __attrs_post_init__(self) -> None:
        limits = self.limits
        self.queues = Queues({band: Seats(limits.queue_seats_max, limits.queue_bytes_max) for band in Band})
        self.line = new_line(limits.rules())
        endpoints = tuple(
            Endpoint(f"e{n}", MODEL, f"http://e{n}", told.kind, capacity=told.capacity)
            for n, told in enumerate(self.engines)
        )
        fleet = LiveFleet(lambda endpoint: EngineClient(endpoint, _nowhere))
        fleet.limits_changed(limits.queue_limit, limits.kv_limit, limits.sample_stale)
        lives = fleet.apply(fleet_of((Model(MODEL, endpoints=endpoints),)), 0.0)
        pool = fleet.pool(MODEL)
        assert pool is not None
        self.pool = pool
        for told, live in zip(self.engines, lives, strict=True):
            station = Station(Engine(self.agenda, told.slots, told.kv_tokens, self._ended), live)
            self.stations.append(station)
            self.agenda.after(self.rng.random() * self.scrape_s, self._scrape, station)

    # -- events -------------------------------------------------------------------------------------

    def arrive(self, work: Work) -> None:
        work.fate = Fate.LINED
        if work.patience_s < 1e9:
            self.agenda.after(work.patience_s, self._leave, work)
        if self.limits.mode != Mode.ON or self.line.may_pass(work.band, self.saturation):
            self._send(work)
            return
        seat = Seat(work.tenant, work.band, 1, self.agenda.now, work)
        had = self.queues.seat(self.line, seat, self.agenda.now)
        if isinstance(had, Full):
            self._refuse(work, had.retry_after_s)
            return
        self._seats[work] = seat
        if had is not None:
            self._refuse(had.owner, self.line.bands[had.band].retry_after_s(self.agenda.now))
        self.turn()
        if seat.waiting:
            self.agenda.after(self.line.bands[work.band].rule.ttl_s, self._too_late, work)

    def turn(self) -> None:
        """Grant whoever may go, one after another: each makes the pool fuller for the next."""
        while self.line.waiting:
            pick = self.queues.next(self.line, self.saturation, self.agenda.now)
            if pick is None:
                return
            work: Work = pick.seat.owner
            del self._seats[work]
            self.grants.append((self.agenda.now, work.band))
            on = self.pool.emptiest(self.agenda.now)
            on.granted += 1
            self.agenda.after(self.dispatch_s, self._granted, work, on)

    @property
    def saturation(self) -> float:
        found = self.pool.saturation(self.agenda.now)
        assert found is not None  # modelled endpoints are always usable
        return found

    def _granted(self, work: Work, on: LiveEndpoint) -> None:
        on.granted -= 1
        if work.fate is Fate.LINED:
            self._send(work)
        else:
            self.turn()  # it left in between, so somebody else has its room

    def _send(self, work: Work) -> None:
        # Admission off is what people have without it: the endpoint with fewest requests of ours.
        station = self._chosen() if self.limits.mode == Mode.ON else self._least()
        station.live.in_flight += 1
        station.sent += 1
        work.fate, work.sent_at = Fate.SENT, self.agenda.now
        self._where[work] = station
        station.engine.submit(work)

    def _chosen(self) -> Station:
        chosen = choose(Ask(), self.pool.endpoints, self._weights, self.agenda.now, self.rng.random())
        assert isinstance(chosen, Chosen)
        return next(one for one in self.stations if one.live is chosen.live)

    def _least(self) -> Station:
        least = min(one.live.in_flight for one in self.stations)
        return self.rng.choice([one for one in self.stations if one.live.in_flight == least])

    def _ended(self, work: Work) -> None:
        self._where.pop(work).live.in_flight -= 1
        self._over(work)
        self.turn()

    def _too_late(self, work: Work) -> None:
        if work in self._seats:
            self._unseat(work)
            work.fate, work.ended_at = Fate.TOO_LATE, self.agenda.now
            self._over(work)

    def _refuse(self, work: Work, retry_after_s: float) -> None:
        self._seats.pop(work, None)
        work.fate, work.ended_at, work.retry_after_s = Fate.FULL, self.agenda.now, retry_after_s
        self._over(work)

    def _leave(self, work: Work) -> None:
        """Its client goes, wherever it stands."""
        if work.fate not in {Fate.LINED, Fate.SENT}:
            return
        if work in self._seats:
            self._unseat(work)
        station = self._where.pop(work, None)
        if station is not None:
            station.live.in_flight -= 1
            station.engine.abort(work)
        work.fate, work.ended_at = Fate.LEFT, self.agenda.now
        self._over(work)
        self.turn()

    def _unseat(self, work: Work) -> None:
        self.queues.leave(self._seats.pop(work))

    def _over(self, work: Work) -> None:
        self.done.append(work)
        if work.over is not None:
            # Not at once: whoever comes next does not overtake what this end lets through.
            self.agenda.after(0.0, partial(work.over, work))

    def _scrape(self, station: Station) -> None:
        engine, live = station.engine, station.live
        if station.process is not None and station.process != engine.started:
            live.restarted()
        station.process = engine.started
        live.sample = Sample(
            self.agenda.now,
            running=len(engine.running),
            waiting=len(engine.waiting),
            kv=engine.kv,
            process_start=engine.started,
            ours=live.in_flight,
        )
        s = live.saturation(self.agenda.now)
        station.seen.append(Seen(self.agenda.now, len(engine.running), len(engine.waiting), live.capacity, s))
        self.turn()
        self.agenda.after(self.scrape_s, self._scrape, station)
