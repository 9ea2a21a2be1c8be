"""A control plane in simulated time: its real store, passes, proofs and pools over nodes and engines in memory.

A test that uses it takes ``autojump_clock`` itself. ``lead`` and ``leader_dies`` make another control plane over the
same store, as a process that is started again does.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import trio
from attrs import define, field

from llmgw.control.acting import Acting
from llmgw.control.cluster import signature
from llmgw.control.explaining import Explaining
from llmgw.control.node_views import replicas_json
from llmgw.control.proving import Proving
from llmgw.core.engine_spec import EngineSpec, PlacementRules, Want
from llmgw.core.fleet import Endpoint, Model, fleet_of
from llmgw.core.identity import Operator, Role, digest
from llmgw.core.joining import NodeRecord
from llmgw.core.replicas import ReplicaLimits, ReplicaNow
from llmgw.core.shards import Launch
from llmgw.engines.client import EngineClient
from llmgw.engines.limits import ProbeLimits
from llmgw.engines.probe import probe
from llmgw.nodes.limits import ClusterLimits
from llmgw.nodes.registry import LiveNode, Registry
from llmgw.store import nodes as node_rows
from llmgw.store.errors import StoreUnavailable, StoreUncertain
from llmgw.store.events import Event
from llmgw.store.place import Place
from llmgw.store.sqlite import open_store
from llmgw.store.turn import inline
from tests.clusters import Plane, plane
from tests.control.little_nodes import Manner, Node, Shard, cards, network
from tests.stores import Kind

ANN = Operator("ann", Role.ADMIN)
SPEC = EngineSpec("sim", gpus=1, gpu_memory_mib=20_000)
SECRET = "secret"
FOR_EVER_S = 100_000.0  # a story that hangs fails by this, in virtual time


def want(model: str = "m", n: int = 1, spec: EngineSpec = SPEC, **rules: Any) -> Want:
    return Want(model, spec, PlacementRules(**rules), n, n)


@define(eq=False)
class Little:
    where: Path | Kind
    services: trio.Nursery
    limits: ReplicaLimits
    times: ClusterLimits
    probe: ProbeLimits
    samples: bool  # whether engines' metrics are scraped
    wants: dict[str, Want] = field(factory=dict)
    nodes: dict[str, Node] = field(factory=dict)
    manners: dict[str, Manner] = field(factory=dict)  # by replica or model
    plane: Plane | None = None
    proving: Proving | None = None
    routes: list[tuple[float, Mapping[str, tuple[Endpoint, ...]]]] = field(factory=list)  # when, what
    failed: list[object] = field(factory=list)
    _away: Any = None
    _leading: trio.CancelScope | None = None
    _signatures: dict[str, object] = field(factory=dict)

    # -- nodes and wishes -------------------------------------------------------------------------------

    def node(self, name: str, gpus: int = 1, **more: Any) -> Node:
        card_list = more.pop("cards", None) or cards(name, gpus)
        node = self.nodes[name] = Node(name, card_list, self._registry, self._manner, self.services, **more)
        self.services.start_soon(node.run)
        return node

    async def aim(self, name: str, target: str, why: str) -> None:
        """What an operator asks of a node."""

        def change(db: Any) -> None:
            node_rows.aim(db, name, target, "ann", 1.0, why)
            node_rows.raise_revision(db.conn)

        await self.there.store.write(change)
        await self.there.joining.read_again()

    def want(self, *wants: Want) -> None:
        self.wants.update({one.model: one for one in wants})
        if self.plane is not None:
            self.plane.desired.take(list(self.wants.values()))

    def _manner(self, launch: Launch) -> Manner:
        replica = launch.id.partition(".g")[0]
        model = replica.rpartition("-")[0]
        return self.manners.get(launch.id) or self.manners.get(replica) or self.manners.get(model) or Manner()

    def _registry(self) -> Registry | None:
        return self.plane.registry if self.plane is not None else None

    # -- leaders ----------------------------------------------------------------------------------------

    async def lead(self, serving: Mapping[str, tuple[Endpoint, ...]] | None = None) -> None:
        """A new process takes the store; or one whose gateway is ``serving`` these already."""
        where = self.where
        store = (
            open_store(Place(where, where / "llmgw.db"), lambda: inline) if isinstance(where, Path) else where.open()
        )
        await store.write(partial(_joined, self.nodes))
        self._signatures.clear()
        made = await plane(store, self.limits, connect=network(self.nodes), times=lambda: self.times)
        made.passes.publishing.route = partial(self._route, made)
        made.registry.on_report = self._reported
        made.registry.on_link = lambda node: made.cluster.wake()
        made.passes.came_back = partial(_came_back, made)
        made.desired.take(list(self.wants.values()))
        if serving is not None:
            made.passes.publishing.inherit(serving)
            self._route(made, serving)
        connect = network(self.nodes)
        self.proving = Proving(
            made.cluster, SECRET, lambda one: EngineClient(one, connect), lambda: self.probe, self._failed
        )
        self.plane, self._leading = made, trio.CancelScope()
        await self.services.start(self._lead, made, self.proving, self._leading)

    async def _lead(
        self, made: Plane, proving: Proving, scope: trio.CancelScope, task_status: trio.TaskStatus[None]
    ) -> None:
        with scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(made.events.run)
                nursery.start_soon(made.passes.run)
                nursery.start_soon(proving.run)
                task_status.started()
                await trio.sleep_forever()

    async def leader_dies(self) -> None:
        assert self.plane is not None
        assert self._leading is not None
        self._leading.cancel()
        made, self.plane = self.plane, None
        made.store.close()
        await trio.lowlevel.checkpoint()

    def store_goes_away(self) -> None:
        """Every write is refused, as on a full disk; what was committed can be read."""
        store = self.there.store

        async def refused(work: Callable[[], Any], /) -> Any:
            raise StoreUnavailable("disk full")

        self._away, store._run_writer = store._run_writer, refused

    def answers_are_lost(self) -> None:
        """Every write is made, and nobody hears of it."""
        store = self.there.store
        run = self._away = store._run_writer

        async def unheard(work: Callable[[], Any], /) -> Any:
            await run(work)
            raise StoreUncertain("no answer to a commit")

        store._run_writer = unheard

    def store_comes_back(self) -> None:
        self.there.store._run_writer = self._away

    def _route(self, made: Plane, routes: Mapping[str, tuple[Endpoint, ...]]) -> None:
        self.routes.append((trio.current_time(), routes))
        for its in routes.values():
            names = [endpoint.replica for endpoint in its]
            assert len(names) == len(set(names)), f"two generations of one replica in a pool: {its}"
        models = tuple(Model(name, (), (), tuple(its)) for name, its in routes.items())
        for live in made.cluster.live.apply(fleet_of(models), trio.current_time()):
            if self.samples:
                self.services.start_soon(probe, live, lambda: self.probe, lambda: 0.5, lambda _: None)

    def _reported(self, node: LiveNode) -> None:
        told = signature(node)
        if self._signatures.get(node.name) != told:
            self._signatures[node.name] = told
            self.there.cluster.wake()

    def _failed(self, what: str, error: BaseException) -> None:
        self.failed.append((what, error))

    # -- what there is ----------------------------------------------------------------------------------

    @property
    def there(self) -> Plane:
        assert self.plane is not None, "nobody leads"
        return self.plane

    @property
    def now(self) -> Mapping[str, ReplicaNow]:
        return self.there.cluster.observe().replicas

    def serving(self, model: str = "m") -> list[str]:
        """By replica; both proved and in the pool."""
        pool = self.there.cluster.live.pool(model)
        routed = {one.endpoint.replica for one in pool.endpoints} if pool else set()
        return sorted(n for n, now in self.now.items() if now.replica.model == model and now.serving and n in routed)

    def routed(self, model: str = "m") -> list[str]:
        """Endpoints in the pool."""
        pool = self.there.cluster.live.pool(model) if self.plane else None
        return sorted(one.id for one in pool.endpoints) if pool else []

    def running(self) -> list[str]:
        return sorted(id for node in self.nodes.values() for id in node.running())

    def shard(self, replica: str, rank: int = 0) -> Shard:
        """Of its last incarnation."""
        id = self.there.cluster.rows[replica].instance(rank)
        return next(node.shards[id] for node in self.nodes.values() if id in node.shards)

    def home(self, replica: str, rank: int = 0) -> Node:
        return self.nodes[self.there.cluster.rows[replica].shards[rank].node]

    def shown(self, replica: str) -> dict[str, Any]:
        [found] = replicas_json(self.there.cluster, replica)
        return found

    def told(self, *kinds: str, since: float = 0.0) -> list[Event]:
        """Events of these kinds (or of all), from a moment of Trio's clock on."""
        found, _ = self.there.events.since(0)
        at = self.there.cluster.wall() - trio.current_time() + since
        return [one for one in found if one.at >= at and (not kinds or one.kind in kinds)]

    def acting(self) -> Acting:
        return Acting(self.there.store, self.there.cluster, self.there.events)

    def explaining(self) -> Explaining:
        return Explaining(self.there.cluster, self.there.store, int)

    async def until(self, condition: Callable[[], object], within_s: float = 60.0) -> float:
        """How long it took. Fails with what there is."""
        began = trio.current_time()
        while not condition():
            assert trio.current_time() - began < within_s, "\n" + self.story()
            await trio.sleep(0.1)
        return trio.current_time() - began

    async def quiet(self, for_s: float = 3.0, within_s: float = 120.0) -> None:
        """Until passes have had nothing to do for a while."""
        since = began = trio.current_time()
        while trio.current_time() - since < for_s:
            assert trio.current_time() - began < within_s, "\n" + self.story()
            await trio.sleep(0.2)
            if self.there.passes.said != "nothing to do":
                since = trio.current_time()

    def story(self) -> str:
        lines = [f"{one.at - 1_000_000:9.1f} {one.sentence}" for one in self.told()[-60:]]
        lines += [f"{n}: {now.standing} {now.why} {now.replica.phase}" for n, now in self.now.items()]
        lines += [f"runs: {self.running()}", f"routed: {self.routed()}", f"last pass: {self.there.passes.said}"]
        return "\n".join(lines)


def _joined(nodes: Mapping[str, Node], db: Any) -> None:
    for name in nodes:
        if node_rows.find(db.conn, name) is None:
            node_rows.save(db, NodeRecord(name, digest(name), 1.0, "token"))
            node_rows.raise_revision(db.conn)


async def _came_back(made: Plane, names: tuple[str, ...]) -> None:
    for name in names:
        await made.joining.came_back(name)


def _in(folder: Path) -> Place:
    return Place(folder, folder / "llmgw.db")


@asynccontextmanager
async def little_cluster(
    where: Path | Kind,
    nodes: Mapping[str, int] | None = None,
    wants: Sequence[Want] = (),
    limits: ReplicaLimits | None = None,
    times: ClusterLimits | None = None,
    probing: ProbeLimits | None = None,
    samples: bool = False,
    manners: Mapping[str, Manner] | None = None,
) -> AsyncIterator[Little]:
    """A leader leads already. ``where``: a folder for SQLite, or any store; ``nodes``: how many GPUs each has."""
    with trio.fail_after(FOR_EVER_S):
        async with trio.open_nursery() as services:
            little = Little(
                where, services, limits or ReplicaLimits(), times or ClusterLimits(), probing or ProbeLimits(), samples
            )
            little.manners.update(manners or {})
            for name, gpus in (nodes or {}).items():
                little.node(name, gpus)
            little.want(*wants)
            await little.lead()
            try:
                yield little
                assert not little.failed, little.failed
            finally:
                if little.plane is not None:
                    await little.leader_dies()
                services.cancel_scope.cancel()
