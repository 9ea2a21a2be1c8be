"""Leadership inside the process: what begins and ends with each term, and what a standby shows instead.

What belongs to a term is made anew for it, from the store, in a nursery of its own; between two terms a view of the
store stands in its place, which decides nothing and is read again when somebody asks.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import NoReturn

import trio
from attrs import define, evolve, field

from llmgw.admin.services import ClusterServices, LeaderServices
from llmgw.config import Config
from llmgw.control.leadership import Candidacy
from llmgw.control.publishing import Routes
from llmgw.control.standbys import Standbys
from llmgw.control.standing_aside import StandingAside
from llmgw.control.tenure import Tenure
from llmgw.core.lease_explained import Transition
from llmgw.core.replicas import Proof
from llmgw.core.term import NO_TERM, Term
from llmgw.daemon.leader_views import Leadership, LeaderViews
from llmgw.daemon.leading import Base, Leading
from llmgw.daemon.operating import become, cluster_services
from llmgw.daemon.reloading import Reloading, stored_config
from llmgw.nodes.connection import House
from llmgw.nodes.registry import LiveNode, NotLeading
from llmgw.store.errors import StoreUnavailable
from llmgw.store.leader import NotLeading as Refused
from llmgw.tasks.keep_running import keep_running
from llmgw.telemetry.families import Family

Service = Callable[[], Awaitable[object]]
FOLLOW_S = 1.0  # what the leader applied is in force on a standby within this
SERVES_S = 0.25
REFUSED_S = 0.5
FRESH_S = 0.5  # what a standby shows is not read again before
BEGAN, LIFTED = "leader.began", "leader.lifted"
FROM_ELSEWHERE = "leader.other"  # not ours to tell: its leader does


@define(eq=False)
class Terms:
    """Made by ``await Terms.load(…)``. ``take_over`` puts a config into force."""

    base: Base
    leadership: Leadership
    environ: Mapping[str, str]
    take_over: Callable[[Config], None]
    views: LeaderViews = field(init=False)
    aside: StandingAside = field(init=False)
    standbys: Standbys | None = field(default=None, init=False)  # None: nobody else could lead
    leading: Leading = field(init=False)
    cluster: ClusterServices = field(init=False)
    house: House = field(init=False)
    _read_at: float = field(factory=trio.current_time, init=False)
    _led: Leading | None = field(default=None, init=False)  # our last term
    _began: Transition | None = field(default=None, init=False)
    _part: object = field(default=None, init=False)
    _turn: trio.Lock = field(factory=trio.Lock, init=False)

    @classmethod
    async def load(
        cls,
        base: Base,
        leadership: Leadership,
        environ: Mapping[str, str],
        take_over: Callable[[Config], None],
        route: Callable[[Routes], None],
    ) -> "Terms":
        """``route``: puts the replicas that serve into force."""
        terms = cls(base, leadership, environ, take_over)
        parts = base.parts
        if isinstance(leadership, Candidacy):
            terms.standbys = Standbys(
                base.store, leadership, lambda why: parts.log.warning("who stands by is not known", why=why)
            )
        terms.views = LeaderViews(leadership, base.parts, base.store, terms.standbys)
        terms.aside = StandingAside(
            terms.views.another_leads, lambda: parts.config.door.balancer_pause, parts.gate.running.values, route
        )
        terms.leading = await terms._made(NO_TERM)
        identity = base.identity
        terms.house = House(
            terms.leading.registry, base.joining, base.parts.config.agents,
            (lambda: identity.ca) if identity else bytes, terms.leading.own_drains,
        )  # fmt: skip
        leadership.lead, leadership.on_transition = terms.lead, terms._changed
        leadership.report = partial(base.parts.failed, "leadership")
        base.parts.stands_back = terms.views.stands_back
        base.parts.metrics.more = terms._families
        return terms

    def serve_operators(self, reloading: Reloading, agent_address: Callable[[], str]) -> None:
        self.cluster = cluster_services(self.leading, reloading, agent_address)

    def operators(self) -> LeaderServices:
        views = self.views
        return LeaderServices(views.standby_of, self._refresh, views.shown, views.explain, views.resign)

    def services(self) -> Iterator[tuple[str, Service]]:
        """What runs whether this control plane leads or not."""
        yield "events", self.base.events.run
        yield "joining", self.base.joining.follow
        yield "leadership", self.leadership.run
        yield "what is wanted", self._follow
        yield "whether it serves", self._tell_whether_it_serves
        yield "standing aside", self.aside.run
        if self.standbys is not None:
            yield "who stands by", self.standbys.run
        if self.base.identity is not None:
            yield "certificate for agents", self.base.identity.follow

    # -- questions ------------------------------------------------------------------------------------

    def _leads(self, part: object) -> Term | NotLeading:
        """Asked before each act in a ``part`` of ours: the term, as long as it may be acted under there."""
        term = self.leadership.term
        if term is not None and part is self._part and term == self.leading.term and self.leadership.may_act():
            return term
        return NotLeading(self.views.other().agents)

    def leads_now(self) -> bool:
        return self.views.leads

    def _families(self) -> Iterator[Family]:
        """What the cluster looks like is told by whoever leads, and by nobody else."""
        yield from self.views.families()
        yield from self.leading.metrics.families() if self.views.leads else self.leading.metrics.certificate()

    # -- a term ---------------------------------------------------------------------------------------

    async def lead(self, tenure: Tenure) -> None:
        """One term, until it is to end. Raises StoreUnavailable before it has begun."""
        before, term, events = self._led, tenure.term or NO_TERM, self.base.events
        await self.base.read_again()
        if self._began is not None:  # not before: it is numbered after what other leaders told
            events.tell(self._began.kind, "leader", self._began.sentence, term=str(term))
            self._began = None
        await self._adopt()
        proofs = before.cluster.proofs if before and term.comes_right_after(before.term) else {}
        leading = await self._made(term, proofs)
        if before is not None and before.term == term:
            leading.cluster.go_on_from(before.cluster)
        self._take_up(leading)
        leading.passes.publishing.inherit(self.aside.lead(leading.cluster.rows))
        try:
            async with trio.open_nursery() as services:
                for name, service in leading.services():
                    ended = partial(self.base.parts.service_ended, name)
                    services.start_soon(keep_running, partial(self._as_leader, service), ended, name=name)
                await tenure.leaving.wait()
                await events.flush()  # whoever leads next tells of it too
                async with leading.cluster.turn:  # what is being decided is stored and told, or refused
                    services.cancel_scope.cancel(reason="this control plane does not lead any more")
        finally:
            self._led = leading
            leading.registry.refuse_all("this control plane does not lead any more")

    async def _as_leader(self, service: Service) -> NoReturn:
        """Begun again after a write that was refused: that was the end of the term, which comes now, or a moment in
        which the lease had to be renewed first."""
        while True:
            try:
                await service()
            except* Refused as errors:
                why = str(errors.exceptions[0])
                self.base.parts.log.warning("what only a leader writes was refused", why=why)
            await trio.sleep(REFUSED_S)

    async def _adopt(self) -> None:
        """What was applied last is in force here; the first leader of all records what its file says."""
        desired, config = self.base.desired, self.base.parts.config
        await desired.read_again()
        if desired.models is None:
            await desired.record(config.models, "start", source=str(config.file or ""))
            self.take_over(evolve(config, fleet=evolve(config.fleet, revision=desired.revision)))
        elif desired.revision != config.fleet.revision:
            self.take_over(stored_config(config, desired, self.environ))

    async def _made(self, term: Term, proofs: Mapping[str, Proof] = MappingProxyType({})) -> Leading:
        part = object()
        leads = partial(self._leads, part)
        return await Leading.load(self.base, term, part, leads, self.aside.route, self._met_newer, proofs)

    def _take_up(self, leading: Leading) -> None:
        """From here on nodes and operators are this one's, and nobody else's: there is one truth at a time."""
        before, self.leading, self._part, self._read_at = self.leading, leading, leading.part, trio.current_time()
        leading.take_up()
        become(self.cluster, leading)
        self.house.registry, self.house.drains = leading.registry, leading.own_drains
        before.registry.refuse_all("another term has begun")

    def _met_newer(self, node: LiveNode, seen: Term, heard_s: float | None) -> None:
        """A node has obeyed a later term than ours, or another leader of ours."""
        ours = str(self.leading.term)
        conflict = seen.conflicts_with(self.leading.term)
        what = "a node has obeyed another leader of the same term" if conflict else "a node has obeyed a later term"
        self.base.parts.log.error(what, node=node.name, seen=str(seen), ours=ours)
        self.leadership.told(node.name, seen, heard_s)

    def _changed(self, told: Transition) -> None:
        self.views.noted(told)
        if told.kind == BEGAN:
            self._began = told
        elif told.kind != FROM_ELSEWHERE:
            self.base.events.tell(told.kind, "leader", told.sentence, term=str(told.term))
        if told.kind == LIFTED:
            self.leading.lifted(told.term)

    # -- standing by ----------------------------------------------------------------------------------

    async def _refresh(self) -> float:
        """Read the store again where we stand by; how old what is shown is, in seconds."""
        async with self._turn:
            if not self.leads_now() and trio.current_time() - self._read_at > FRESH_S:
                try:
                    await self.base.read_again()
                    view = await self._made(NO_TERM)
                    if not self.leads_now():
                        self._take_up(view)
                except StoreUnavailable as error:  # what is shown is older, and says so
                    self.base.parts.log.warning("a view of the store was not read again", error=str(error))
        return trio.current_time() - self._read_at

    async def _follow(self) -> NoReturn:
        """Service: on a standby, what the leader applied and took out of service counts here too."""
        while True:
            await trio.sleep(FOLLOW_S)
            if self.leads_now():
                continue
            try:
                if await self.base.desired.read_again() and self.base.desired.models is not None:
                    self.take_over(stored_config(self.base.parts.config, self.base.desired, self.environ))
                await self.leading.endpoint_targets.load()
            except StoreUnavailable:
                continue  # what is known goes on

    async def _tell_whether_it_serves(self) -> NoReturn:
        """Service: whoever handed over to us waits until we have somewhere to send requests."""
        parts = self.base.parts
        while True:
            self.leadership.serving(parts.live.ready(None, trio.current_time()) is None)
            await trio.sleep(SERVES_S)
