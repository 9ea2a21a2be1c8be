"""The control plane inside the process: what it is made of, and its services.

Leading means: passes decide, replicas are proved, nodes are told. On SQLite the one process that holds the data
lock leads for as long as it lives; its term is the number of this start.
"""

import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
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
from llmgw.core.term import Term
from llmgw.daemon.parts import Parts
from llmgw.gateway.running import cut_at, requests_at
from llmgw.nodes.connection import House
from llmgw.nodes.identity import ListenerIdentity
from llmgw.nodes.listener import AgentListener, listen_for_agents
from llmgw.nodes.registry import LiveNode, NotLeading, Registry
from llmgw.store import nodes as node_rows
from llmgw.store import replicas
from llmgw.store.errors import StoreUnavailable
from llmgw.store.face import Database, Store
from llmgw.store.leader import lift_epoch, secret, term_n
from llmgw.wire.agent_frames import Hello

SEEN_EVERY_S = 10.0


@define(eq=False)
class Leading:
    parts: Parts
    store: Store
    joining: Joining
    desired: Desired
    events: Events
    registry: Registry
    cluster: Cluster
    passes: Passes
    proving: Proving
    identity: ListenerIdentity | None  # None: there is no certificate, and no agents
    term: Term
    targets: Targets
    endpoint_targets: EndpointTargets
    own_drains: OwnDrains
    held: socket.socket | None = field(default=None, init=False)  # where agents connect, if it is open already
    _lift_above: Term | None = field(default=None, init=False)
    _to_lift: trio.Event = field(factory=trio.Event, init=False)
    _signatures: dict[str, object] = field(factory=dict, init=False)

    @classmethod
    async def load(
        cls,
        parts: Parts,
        store: Store,
        desired: Desired,
        identity: ListenerIdentity | None,
        route: Callable[[Routes], None],
    ) -> "Leading":
        term = Term(await store.read(term_n), store.epoch, secrets.token_hex(8))
        events = await Events.load(store, lambda: parts.config.replica.events_max)
        joining = await Joining.load(store, lambda: identity.ca_digits if identity else "")
        registry = Registry(store.cluster_id, parts.config.cluster, lambda: NotLeading())
        rows = await store.read(replicas.every)
        key = await store.write(lambda db: secret(db.conn, "engine_secret", secrets.token_hex(32)))
        cluster = Cluster(
            term, registry, joining, desired, parts.live, lambda: parts.config.replica, lambda: parts.config.cluster,
            steady_wall(), {row.name: row for row in rows},
        )  # fmt: skip
        publishing = Publishing(cluster, events, key, route, parts.log)
        passes = Passes(cluster, Applying(store, cluster, events), publishing, Watching(events), events, parts.log)
        proving = Proving(cluster, key, parts.client, lambda: parts.config.probe, parts.failed)
        limits, requests = (lambda: parts.config.drain), partial(requests_at, parts.gate)
        targets = Targets(cluster, events, limits, requests, parts.failed)
        endpoints = EndpointTargets(
            store, parts.live, events, limits, cluster.wall, requests, partial(cut_at, parts.gate), parts.failed
        )
        await endpoints.load()
        leading = cls(
            parts, store, joining, desired, events, registry, cluster, passes, proving, identity, term, targets,
            endpoints, OwnDrains(cluster, events, targets, parts.failed),
        )  # fmt: skip
        registry.lead = lambda: leading.term
        registry.on_report, registry.on_link = leading._reported, leading._linked
        joining.on_ended, joining.is_linked = leading._ended, leading._is_linked
        registry.on_newer_term = leading._met_newer
        parts.metrics.more = ClusterMetrics(
            cluster, events, passes, proving, targets, endpoints, leading.expires_in_s
        ).families
        desired.on_change = cluster.wake
        passes.came_back, passes.after = leading._came_back, leading._looked
        passes.drains = limits
        cluster.moves_off_sick = lambda: parts.config.gpu.on_excluded == "move"
        events.tell("leader.began", "leader", f"this control plane leads, term {term}", term=str(term))
        return leading

    def services(self) -> Iterator[tuple[str, Callable[[], Awaitable[object]]]]:
        yield "events", self.events.run
        yield "joining", self.joining.follow
        yield "nodes seen", self._note_seen
        yield "term", self._lift
        yield "reconcile", self.passes.run
        yield "proofs", self.proving.run
        yield "drains of endpoints", self.endpoint_targets.run
        if self.identity is not None:
            yield "certificate for agents", self.identity.follow

    def _is_linked(self, name: str) -> bool:
        """Its link stands and it speaks: nobody else may take its name."""
        node = self.registry.nodes.get(name)
        return node is not None and node.linked and not self.registry.silent(name, trio.current_time())

    async def agents(self, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """The listener for agents, until cancelled; its address. Raises OSError."""
        identity = self.identity
        if identity is None:
            task_status.started("")
            return
        limits = self.parts.config.agents
        listener = await listen_for_agents(limits.listen, self.held)
        house = House(self.registry, self.joining, limits, lambda: identity.ca, self.own_drains)
        host, port = listener.socket.getsockname()[:2]
        task_status.started(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        async with listener:
            await AgentListener(house, lambda: identity.context, self.parts.failed).serve(listener)

    def expires_in_s(self) -> float | None:
        return None if self.identity is None else self.identity.expires_in_s()

    # -- what nodes bring about -----------------------------------------------------------------------

    def _reported(self, node: LiveNode) -> None:
        told = signature(node)
        if self._signatures.get(node.name) != told:
            self._signatures[node.name] = told
            self.cluster.wake()

    def _linked(self, node: LiveNode) -> None:
        self.parts.log.info("agent link", node=node.name, linked=node.linked, why=node.last_end, peer=node.peer)
        self.cluster.wake()

    def _ended(self, name: str, why: str) -> None:
        """A node whose credential counts no more."""
        if name in self.joining.nodes:  # it has joined again
            self.registry.refuse(name, why)
            self.events.tell("node.joined", name, f"{name} has joined again, with another credential")
        else:
            self.registry.forget(name, why)
            self.events.tell("node.removed", name, why)
        self.cluster.wake()

    def _met_newer(self, node: LiveNode, seen: Term) -> None:
        """A node has obeyed a later term than ours, or another leader of ours: the store went back in time."""
        self.parts.log.error("a node has obeyed a later term", node=node.name, seen=str(seen), ours=str(self.term))
        if self._lift_above is None or not self._lift_above.is_newer_than(seen):
            self._lift_above = seen
            self._to_lift.set()

    async def _lift(self) -> NoReturn:
        """Service: on SQLite nobody else can lead, so the term is lifted above what was seen, and agents come back."""
        while True:
            await self._to_lift.wait()
            self._to_lift, above = trio.Event(), self._lift_above
            if above is None or self.term.is_newer_than(above):
                continue
            epoch = await self.store.write(partial(lift_epoch, epoch=self.store.epoch, above=(above.n, above.epoch)))
            self.store.epoch = epoch[1]
            self.term = self.cluster.term = Term(*epoch, secrets.token_hex(8))
            told = f"agents had obeyed term {above}: the store went back in time; this leader's is {self.term} now"
            self.events.tell("leader.lifted", "leader", told, seen=str(above), term=str(self.term))
            self.cluster.wake()

    async def _came_back(self, names: tuple[str, ...]) -> None:
        for name in names:
            await self.joining.came_back(name)
            self.events.tell("node.back", name, f"{name}, which had been given up, reports again")

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
                await self.store.write(partial(_note, heard))
            except StoreUnavailable as error:
                self.parts.log.warning("when nodes were seen was not stored", error=str(error))


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
