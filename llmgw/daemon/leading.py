"""The control plane inside the process: what it is made of, and what is made anew for each term of leadership.

Leading means: passes decide, replicas are proved, nodes are told.
"""

import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import cached_property, partial
from types import MappingProxyType
from typing import NoReturn

import trio
from attrs import define, field

from llmgw.control.applying_plan import Applying
from llmgw.control.cluster import Cluster, signature
from llmgw.control.cluster_metrics import ClusterMetrics
from llmgw.control.desired import Desired
from llmgw.control.endpoint_targets import EndpointTargets
from llmgw.control.events import Events
from llmgw.control.joining import Joining
from llmgw.control.own_drains import OwnDrains
from llmgw.control.passes import Passes
from llmgw.control.proving import Proving
from llmgw.control.publishing import Publishing, Routes
from llmgw.control.targets import Targets
from llmgw.control.watching import Watching
from llmgw.core.reconcile import Seen
from llmgw.core.replicas import Proof
from llmgw.core.term import Term
from llmgw.daemon.parts import Parts
from llmgw.gateway.running import cut_at, requests_at
from llmgw.nodes.identity import ListenerIdentity
from llmgw.nodes.registry import LiveNode, NotLeading, Registry
from llmgw.store import nodes as node_rows
from llmgw.store import replicas
from llmgw.store.errors import StoreUnavailable
from llmgw.store.face import Database, Store
from llmgw.store.fenced import Fenced
from llmgw.store.leader import secret
from llmgw.wire.agent_frames import Hello

SEEN_EVERY_S = 10.0


@define(eq=False)
class Base:
    """What outlasts a term: what the store says, and what nodes show to come in. ``fenced``: how a leader writes."""

    parts: Parts
    store: Store
    fenced: Fenced
    joining: Joining
    desired: Desired
    events: Events
    identity: ListenerIdentity | None  # None: there is no certificate, and no agents
    secret: str = field(repr=False)  # of this cluster: keys of engines are made of it

    @classmethod
    async def load(
        cls, parts: Parts, store: Store, fenced: Fenced, desired: Desired, identity: ListenerIdentity | None
    ) -> "Base":
        events = await Events.load(store, lambda: parts.config.replica.events_max)
        joining = await Joining.load(fenced, lambda: identity.ca_digits if identity else "")
        key = await store.write(lambda db: secret(db.conn, "engine_secret", secrets.token_hex(32)))
        return cls(parts, store, fenced, joining, desired, events, identity, key)

    async def read_again(self) -> None:
        """What another process may have changed. Raises StoreUnavailable."""
        await self.joining.read_again()
        await self.events.read_again()

    def expires_in_s(self) -> float | None:
        return None if self.identity is None else self.identity.expires_in_s()


@define(eq=False)
class Leading:
    """One term of leadership, or, under no term, what a standby shows of the store.

    ``leads``: the term, as long as it may be acted under; asked before each frame to a node.
    """

    base: Base
    part: object  # it is this one, and no other
    registry: Registry
    cluster: Cluster
    passes: Passes
    proving: Proving
    targets: Targets
    endpoint_targets: EndpointTargets
    own_drains: OwnDrains
    met_newer: Callable[[LiveNode, Term, float | None], None]
    _signatures: dict[str, object] = field(factory=dict, init=False)

    @classmethod
    async def load(
        cls,
        base: Base,
        term: Term,
        part: object,
        leads: Callable[[], Term | NotLeading],
        route: Callable[[Routes], None],
        met_newer: Callable[[LiveNode, Term, float | None], None],
        proofs: Mapping[str, Proof] = MappingProxyType({}),
    ) -> "Leading":
        """``proofs``: of replicas that this process proved a moment ago, as the leader before itself."""
        parts, store, joining, desired, events = base.parts, base.fenced, base.joining, base.desired, base.events
        registry = Registry(base.store.cluster_id, parts.config.cluster, leads)
        rows = await store.read(replicas.every)
        cluster = Cluster(
            term, registry, joining, desired, parts.live, lambda: parts.config.replica, lambda: parts.config.cluster,
            steady_wall(), {row.name: row for row in rows}, lambda: parts.config.gpu.on_excluded == "move",
        )  # fmt: skip
        cluster.proofs.update({row.endpoint_id: proofs[row.endpoint_id] for row in rows if row.endpoint_id in proofs})
        publishing = Publishing(cluster, events, base.secret, route, parts.log)
        passes = Passes(cluster, Applying(store, cluster, events), publishing, Watching(events), events, parts.log)
        passes.drains = lambda: parts.config.drain
        proving = Proving(cluster, base.secret, parts.client, lambda: parts.config.probe, parts.failed)
        limits, requests = (lambda: parts.config.drain), partial(requests_at, parts.gate)
        targets = Targets(cluster, events, limits, requests, parts.failed)
        endpoints = EndpointTargets(
            store, parts.live, events, limits, cluster.wall, requests, partial(cut_at, parts.gate), parts.failed
        )
        await endpoints.load()
        drains = OwnDrains(cluster, events, targets, parts.failed)
        return cls(base, part, registry, cluster, passes, proving, targets, endpoints, drains, met_newer)

    @property
    def term(self) -> Term:
        return self.cluster.term

    @cached_property
    def metrics(self) -> ClusterMetrics:
        return ClusterMetrics(
            self.cluster, self.base.events, self.passes, self.proving, self.targets, self.endpoint_targets,
            self.base.expires_in_s,
        )  # fmt: skip

    def take_up(self) -> None:
        """From now on nodes, passes and metrics are this one's."""
        self.registry.on_report, self.registry.on_link = self._reported, self._linked
        self.registry.on_newer_term = self.met_newer
        joining = self.base.joining
        joining.on_ended, joining.is_linked = self._ended, self._is_linked
        self.base.desired.on_change = self.cluster.wake
        self.passes.came_back, self.passes.after = self._came_back, self._looked

    def lifted(self, term: Term) -> None:
        """The same leadership under a higher number."""
        self.cluster.term = term
        self.cluster.wake()

    def services(self) -> Iterator[tuple[str, Callable[[], Awaitable[object]]]]:
        """What runs for as long as the term lasts."""
        yield "nodes seen", self._note_seen
        yield "reconcile", self.passes.run
        yield "proofs", self.proving.run
        yield "drains of endpoints", self.endpoint_targets.run

    def _is_linked(self, name: str) -> bool:
        """Its link stands and it speaks: nobody else may take its name."""
        node = self.registry.nodes.get(name)
        return node is not None and node.linked and not self.registry.silent(name, trio.current_time())

    # -- what nodes bring about -----------------------------------------------------------------------

    def _reported(self, node: LiveNode) -> None:
        told = signature(node)
        if self._signatures.get(node.name) != told:
            self._signatures[node.name] = told
            self.cluster.wake()

    def _linked(self, node: LiveNode) -> None:
        self.base.parts.log.info("agent link", node=node.name, linked=node.linked, why=node.last_end, peer=node.peer)
        self.cluster.wake()

    def _ended(self, name: str, why: str) -> None:
        """A node whose credential counts no more."""
        if name in self.base.joining.nodes:  # it has joined again
            self.registry.refuse(name, why)
            self.base.events.tell("node.joined", name, f"{name} has joined again, with another credential")
        else:
            self.registry.forget(name, why)
            self.base.events.tell("node.removed", name, why)
        self.cluster.wake()

    async def _came_back(self, names: tuple[str, ...]) -> None:
        for name in names:
            await self.base.joining.came_back(name)
            self.base.events.tell("node.back", name, f"{name}, which had been given up, reports again")

    async def _looked(self, seen: Seen, stopped: Mapping[str, int]) -> None:
        await self.targets.look(seen, stopped)
        await self.own_drains.look(seen)

    async def _note_seen(self) -> NoReturn:
        """Service: what nodes said of themselves last outlives this process."""
        while True:
            await trio.sleep(SEEN_EVERY_S)
            wall, now = time.time(), trio.current_time()
            heard = {
                node.name: (wall - (now - node.reported_at), node.hello)
                for node in self.registry.nodes.values()
                if node.reported_at is not None and node.hello is not None
            }
            try:
                await self.base.fenced.write(partial(_note, heard))
            except StoreUnavailable as error:
                self.base.parts.log.warning("when nodes were seen was not stored", error=str(error))


def steady_wall() -> Callable[[], float]:
    """The wall clock as it was when this leader began, and from there on the monotonic one.

    Rows hold wall times, so that a later leader can read them; a clock that jumps must not end a replica's grace.
    """
    wall, began = time.time(), trio.current_time()
    return lambda: wall + trio.current_time() - began


def _note(heard: Mapping[str, tuple[float, Hello]], db: Database) -> None:
    for name, (at, hello) in heard.items():
        said = {"labels": hello.labels, "address": hello.address, "boot": hello.boot, "version": hello.version}
        node_rows.saw(db, name, at, said)
