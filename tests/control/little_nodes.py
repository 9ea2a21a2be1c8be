"""Nodes and engines in memory: agents that hear what the registry was told and answer with reports.

Engines are simulated ones behind memory streams, so that proofs are real requests. What may go wrong is set from
outside: links cut, agents deaf, engines slow, wedged, killed. No GPU is ever used twice: that is looked at whenever
an engine starts.
"""

import math
from collections.abc import Callable
from typing import Any

import attrs
import trio
from attrs import define, field, frozen

from llmgw.core.gpus import Gpu
from llmgw.core.shards import ENDED, Exit, Launch, ShardSeen, ShardState
from llmgw.nodes.registry import Registry
from llmgw.tasks.memory import MemoryListener, MemoryStream
from llmgw.wire.agent_frames import Hello, Host, LogsAsked, Obeys, Report, Wanted
from sim.engine_model import EngineShape
from sim.loading import LoadingSpec
from sim.serving import EngineSpec, Served, serve_engine

PERIOD_S = 1.0
HOST_MIB = 64 * 1024


@frozen
class Manner:
    """How an engine behaves. Times in seconds; ``dies_after_s``: after its process began."""

    starts_s: float = 0.1
    health_after_s: float = 0.2
    ready_after_s: float = 0.2
    dies_after_s: float = math.inf
    gets_on: bool = True  # while it loads
    releases_s: float = 0.0  # its memory comes back so long after its end
    stops_s: float = 0.2


@define(eq=False)
class Shard:
    """One engine process, and how its agent tells of it."""

    launch: Launch
    port: int
    manner: Manner
    state: ShardState = ShardState.STARTING
    since: float = field(factory=trio.current_time)
    exit: Exit | None = None
    served: Served | None = None
    listener: MemoryListener = field(factory=MemoryListener)
    told: bool = False  # its end was reported
    _asked: bool = False
    _spawned: bool = False
    _process: trio.CancelScope = field(factory=trio.CancelScope)

    @property
    def id(self) -> str:
        return self.launch.id

    @property
    def rank(self) -> int:
        return int(self.id.rpartition(".r")[2])

    @property
    def there(self) -> bool:
        """It has, or still holds, memory of its GPUs."""
        return self.state not in ENDED and self._spawned

    @property
    def comes(self) -> bool:
        return self.state is ShardState.STARTING and not self._asked

    async def run(self) -> None:
        with self._process:
            await trio.sleep(self.manner.starts_s)
            self._spawned = True
            self.to(ShardState.LOADING)
            async with trio.open_nursery() as nursery:
                if self.rank == 0:
                    self.served = await nursery.start(serve_engine, self._spec(), [self.listener])
                await trio.sleep(self.manner.dies_after_s)
                self.exit = Exit(code=1)
                nursery.cancel_scope.cancel()
        if self.served is not None:
            self.served.stop()
        self.to(ShardState.RELEASING)
        with trio.CancelScope(shield=True):
            await trio.sleep(self.manner.releases_s)
        self.to(ShardState.STOPPED if self._asked else ShardState.FAILED)

    async def stop(self) -> None:
        if not self._asked:
            self._asked = True
            if self.state not in ENDED and self.state is not ShardState.RELEASING:
                self.to(ShardState.STOPPING)
                await trio.sleep(self.manner.stops_s)
                self._process.cancel()

    def kill(self, how: Exit | None = None) -> None:
        self.exit = how or Exit(signal=9)
        self._process.cancel()

    def wedge(self) -> None:
        """It takes requests, says that it is well, and makes no token."""
        assert self.served is not None
        self.served.simulator.faults.set({"wedge": True})
        self.served.simulator.wedge()

    def to(self, state: ShardState) -> None:
        self.state, self.since = state, trio.current_time()

    def seen(self) -> ShardSeen:
        now = trio.current_time()
        gets_on = self.manner.gets_on or self.state is ShardState.STARTING
        return ShardSeen(
            self.id,
            self.state,
            now - self.since,
            pid=1000 + self.port,
            ports=dict.fromkeys(self.launch.ports, self.port),
            exit=self.exit if self.state not in (ShardState.STARTING, ShardState.LOADING) else None,
            gpu_mib=dict.fromkeys(self.launch.gpus, self.launch.need_mib) if self.there else {},
            progress=int(now * 10) if gets_on else 1,
        )

    def _spec(self) -> EngineSpec:
        argv = self.launch.argv
        model = argv[argv.index("--model") + 1] if "--model" in argv else "m"
        manner = self.manner
        return EngineSpec(
            EngineShape((model,)),
            self.launch.key or None,
            loading=LoadingSpec(manner.ready_after_s, manner.health_after_s),
        )


@define(eq=False)
class _Link:
    linked_at: float
    nudge: Callable[[], None]

    def want_changed(self) -> None:
        self.nudge()

    def ask(self, asked: LogsAsked) -> None: ...

    def refuse(self, why: str) -> None: ...


@define(eq=False)
class Node:
    """``cut``: its link is, though its engines answer; ``deaf``: it reports and does not do as it is told."""

    name: str
    gpus: tuple[Gpu, ...]
    leader: Callable[[], Registry | None]
    manner_of: Callable[[Launch], Manner]
    nursery: trio.Nursery
    cut: bool = False
    deaf: bool = False
    off_network: bool = False  # its engines can't be reached
    streams: list[MemoryStream] = field(factory=list)  # to its engines
    has: tuple[str, ...] = ()
    boot: str = "boot"
    shards: dict[str, Shard] = field(factory=dict)
    obeys: Obeys = field(factory=Obeys)
    ever: list[str] = field(factory=list)  # ids that were started here
    _link: tuple[Registry, _Link] | None = None
    _seq: int = 0
    _ports: int = 8000
    _news: trio.Event = field(factory=trio.Event)

    async def run(self) -> None:
        """The agent, for ever: report, then take up what is wanted."""
        while True:
            registry = self.leader()
            if self.cut or registry is None:
                self._link = None
            else:
                self._connected(registry)
                self.report(registry)  # of what was obeyed before: it always lags behind
                wanted = registry.node(self.name).wanted
                if wanted is not None and not self.deaf:
                    self.obey(wanted)
            with trio.move_on_after(PERIOD_S):
                await self._news.wait()
                await trio.sleep(0.01)
            self._news = trio.Event()

    def report(self, registry: Registry) -> None:
        live = registry.node(self.name)
        self._seq += 1
        shards = [self.shards[id] for id in sorted(self.shards)]
        frame = Report(
            self._seq, self.obeys, Host(HOST_MIB, HOST_MIB), self._cards(), tuple(one.seen() for one in shards),
            has=self.has,
        )  # fmt: skip
        for one in shards:
            one.told = one.state in ENDED
        live.reported(frame, trio.current_time())
        registry.on_report(live)

    def obey(self, wanted: Wanted) -> None:
        asked = {launch.id: launch for launch in wanted.shards}
        for id in [id for id in self.shards if id not in asked]:
            shard = self.shards[id]
            if shard.state in ENDED:
                if shard.told:
                    del self.shards[id]
            else:
                self.nursery.start_soon(shard.stop)
        for id in asked.keys() - self.shards.keys():
            self._start(asked[id])
        self.obeys = Obeys(wanted.term, wanted.rev)

    def leave_network(self) -> None:
        self.off_network = True
        for stream in self.streams:
            stream.reset()

    def nudge(self) -> None:
        self._news.set()

    def engine(self, port: int) -> Shard | None:
        return next((one for one in self.shards.values() if one.port == port and one.served is not None), None)

    def running(self) -> list[str]:
        return sorted(id for id, shard in self.shards.items() if shard.state not in ENDED)

    def _start(self, launch: Launch) -> None:
        assert launch.id not in self.ever, f"{launch.id} was started before"
        self.ever.append(launch.id)
        self._ports += 1
        shard = self.shards[launch.id] = Shard(launch, self._ports, self.manner_of(launch))
        for uuid in launch.gpus:
            card = next(gpu for gpu in self.gpus if gpu.uuid == uuid)
            here = [one for one in self.shards.values() if uuid in one.launch.gpus and (one.there or one.comes)]
            needs = [one.launch.need_mib or card.total_mib for one in here]
            assert sum(needs) <= card.total_mib - card.foreign_mib, f"{uuid} is used twice: {[one.id for one in here]}"
        self.nursery.start_soon(shard.run)

    def _cards(self) -> tuple[Gpu, ...]:
        found = []
        for card in self.gpus:
            needs = (one.launch.need_mib for one in self.shards.values() if card.uuid in one.launch.gpus and one.there)
            ours = sum(needs)
            found.append(attrs.evolve(card, ours_mib=ours, used_mib=card.used_mib + ours))
        return tuple(found)

    def _connected(self, registry: Registry) -> None:
        if self._link is None or self._link[0] is not registry:
            link = _Link(trio.current_time(), self.nudge)
            self._link = registry, link
            hello = Hello(1, registry.cluster, self.name, self.boot, address=self.name)
            registry.accept(registry.node(self.name), hello, link, self.name)


def network(nodes: dict[str, Node]) -> Any:
    """How the leader's clients reach engines."""

    async def connect(host: str, port: int, tls: object = None) -> MemoryStream:
        await trio.lowlevel.checkpoint()
        node = nodes[host]
        shard = None if node.off_network else node.engine(port)
        if shard is None or not shard.there:
            raise ConnectionRefusedError("connection refused")
        stream = shard.listener.connect()
        stream.shielded = False
        node.streams = [one for one in node.streams if not one.closed] + [stream]
        return stream

    return connect


def cards(node: str, count: int, total_mib: int = 24_576, foreign_mib: int = 0) -> tuple[Gpu, ...]:
    return tuple(Gpu(f"GPU-{node}-{i}", i, "Sim 24G", total_mib, foreign_mib) for i in range(count))
