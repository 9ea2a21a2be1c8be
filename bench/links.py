"""What two hundred agents cost the leader: TLS over loopback, a whole report each second, `wanted` in answer.

The leader runs alone in its process, the agents share another one; the figure is the leader's own CPU time. It fails
above BOUND of a core, and when the load was no load. ``python bench/links.py [AGENTS [SECONDS]]``, about 15 s.
"""

import cProfile
import datetime
import multiprocessing
import os
import pstats
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import trio
from attrs import define, field

from agent.dialing import TlsDial
from agent.link import LeaderLink
from agent.membership import Membership
from agent.places import Places
from agent.report import Reporter
from agent.terms import Terms
from llmgw.control.joining import Invited, Joining
from llmgw.core.agent_settings import AgentSettings
from llmgw.core.gpus import Gpu, GpuProcess
from llmgw.core.identity import Operator, Role
from llmgw.core.joining import ca_digits
from llmgw.core.shards import Fetch, Launch, Orphan, ShardSeen, ShardState
from llmgw.core.term import Term
from llmgw.nodes.certificates import Files, der, make_ca, make_server
from llmgw.nodes.connection import House
from llmgw.nodes.limits import AgentsLimits, ClusterLimits
from llmgw.nodes.listener import AgentListener, agents_context, listen_for_agents
from llmgw.nodes.registry import Registry
from llmgw.store.place import Place
from llmgw.store.sqlite import opened
from llmgw.wire.agent_frames import Tail, Wanted

BOUND = 0.20  # of a core
GPUS = 8
SETTLE_S = 3.0
PROFILE = os.environ.get("BENCH_PROFILE")


# -- the leader ------------------------------------------------------------------------------------------


async def lead(folder: Path, agents: int, seconds: float, pipe: Connection) -> None:
    files = Files(folder / "certs")
    now = datetime.datetime.now(datetime.UTC)
    make_ca(files, now)
    make_server(files, "agents", ("127.0.0.1",), now)
    async with opened(Place(folder, folder / "llmgw.db")) as store:
        joining = await Joining.load(store, lambda: ca_digits(der(files.ca)))
        invited = await joining.invite(Operator("bench", Role.ADMIN))
        assert isinstance(invited, Invited)
        limits = ClusterLimits()
        registry = Registry(store.cluster_id, limits, lambda: Term(0, 1, "bench"))
        for number in range(agents):
            registry.want(f"node-{number}", 1, launches(number))
        house = House(registry, joining, AgentsLimits(), files.ca.read_bytes)
        context = agents_context(str(files.chain()), str(files.key()))
        listener = AgentListener(house, lambda: context, lambda what, error: print(what, repr(error)))
        sock = await listen_for_agents("127.0.0.1:0")
        pipe.send((sock.socket.getsockname()[1], invited.token.text))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listener.serve, sock)
            with trio.fail_after(60):
                while len(registry.linked()) < agents:  # noqa: ASYNC110 -- a bench looks now and then
                    await trio.sleep(0.1)
            await trio.sleep(SETTLE_S)
            figures = await measured(registry, seconds)
            pipe.send(figures)
            nursery.cancel_scope.cancel()


async def measured(registry: Registry, seconds: float) -> tuple[float, int, int, float]:
    """CPU share, reports, nodes that obey, and the longest the loop was held."""
    before, reports, began = cpu(), count(registry), time.monotonic()
    profile = cProfile.Profile() if PROFILE else None
    if profile:
        profile.enable()
    held = 0.0
    while time.monotonic() - began < seconds:
        asleep = time.monotonic()
        await trio.sleep(0.02)
        held = max(held, time.monotonic() - asleep - 0.02)
    if profile:
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(35)
    share = (cpu() - before) / (time.monotonic() - began)
    obeying = sum(node.obeys_what_it_was_told() for node in registry.nodes.values())
    return share, count(registry) - reports, obeying, held


def count(registry: Registry) -> int:
    return sum(node.counts["reports"] for node in registry.nodes.values())


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def launches(number: int) -> list[Launch]:
    return [
        Launch(
            f"m-{number}-{gpu}.g1.r0",
            ("vllm", "serve", "/models/m", "--port", "{port}", "--max-model-len", "32768"),
            {"CUDA_VISIBLE_DEVICES": "{gpus}", "HF_HUB_OFFLINE": "1"},
            gpus=(f"GPU-{number}-{gpu}",),
            need_mib=70_000,
            files=Fetch("/models/m"),
            key="k" * 40,
            key_env="VLLM_API_KEY",
        )
        for gpu in range(GPUS)
    ]


# -- the agents ------------------------------------------------------------------------------------------


class Quiet:
    async def wait(self) -> None:
        await trio.sleep_forever()


@define(eq=False)
class BusyEngines:
    """Eight engines that do something all the time, one of which writes a line a second."""

    number: int
    changed: Quiet = field(factory=Quiet)
    address: str = ""
    _beat: int = 0

    async def adopt(self) -> None: ...

    def obey(self, wanted: Wanted) -> None: ...

    def seen(self) -> tuple[ShardSeen, ...]:
        self._beat += 1
        return tuple(
            ShardSeen(
                id=f"m-{self.number}-{gpu}.g1.r0",
                state=ShardState.LOADING,
                age_s=self._beat,
                pid=10_000 + gpu,
                host="10.0.0.1",
                ports={"http": 20_000 + gpu},
                gpu_mib={f"GPU-{self.number}-{gpu}": 70_000},
                memory_mib=9_000,
                progress=self._beat * 100,
                log_age_s=0.5,
                started_at=1e9,
            )
            for gpu in range(GPUS)
        )

    def reported(self, shards: object) -> None: ...

    def orphans(self) -> tuple[Orphan, ...]:
        return ()

    def has(self) -> tuple[str, ...]:
        return ("/models/m",)

    def tail(self, id: str) -> Tail | None:
        return Tail(id, "INFO 12:00:00 engine: throughput 812.3 tokens/s, running 31, waiting 4\n" * 20, 100)

    def new_tails(self) -> tuple[Tail, ...]:
        tail = self.tail(f"m-{self.number}-0.g1.r0")
        return (tail,) if tail else ()

    def logs(self, id: str, most: int) -> tuple[str, int | None]:
        return "", None

    async def run(self) -> None:
        await trio.sleep_forever()


@define(eq=False)
class EightGpus:
    number: int
    driver: str = ""

    def seen(self) -> Sequence[Gpu]:
        return [
            Gpu(
                uuid=f"GPU-{self.number}-{index}",
                index=index,
                model="NVIDIA H100 80GB HBM3",
                total_mib=81_559,
                used_mib=71_000,
                ours_mib=70_000,
                processes=(GpuProcess(10_000 + index, 70_000, "vllm", f"m-{self.number}-{index}.g1.r0"),),
                temperature_c=61.0,
                power_w=512.5,
                utilisation=0.93,
            )
            for index in range(GPUS)
        ]

    async def run(self) -> None:
        await trio.sleep_forever()


async def run_agents(folder: Path, agents: int, port: int, token: str, stop: Callable[[], bool]) -> None:
    dial = TlsDial()
    async with trio.open_nursery() as nursery:
        for number in range(agents):
            settings = AgentSettings(servers=(f"127.0.0.1:{port}",), join_token=token)
            places = Places(folder / str(number))
            places.prepare()
            engines, name = BusyEngines(number), f"node-{number}"
            reporter = Reporter(settings, engines, EightGpus(number))
            membership = Membership(settings, places, name, dial)
            link = LeaderLink(settings, membership, Terms(places), engines, reporter, dial)
            nursery.start_soon(link.run)
            await trio.sleep(1 / agents)
        while not stop():  # noqa: ASYNC110 -- it is said through a pipe
            await trio.sleep(0.2)
        nursery.cancel_scope.cancel()


def agents_process(folder: Path, agents: int, port: int, token: str, pipe: Connection) -> None:
    trio.run(run_agents, folder, agents, port, token, pipe.poll)


def leader_process(folder: Path, agents: int, seconds: float, pipe: Connection) -> None:
    trio.run(lead, folder, agents, seconds, pipe)


def main() -> int:
    agents = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 8.0
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = context.Pipe()
        leader = context.Process(target=leader_process, args=(Path(folder) / "leader", agents, seconds, theirs))
        leader.start()
        port, token = ours.recv()
        stop, stopped = context.Pipe()
        others = context.Process(target=agents_process, args=(Path(folder) / "agents", agents, port, token, stopped))
        others.start()
        try:
            share, reports, obeying, held = ours.recv()
        finally:
            stop.send("over")
            leader.join(10)
            others.join(10)
            for process in (leader, others):
                process.kill()
    rate = reports / seconds
    print(f"{agents} agents, {rate:.0f} reports/s: {share:.1%} of a core at the leader, {obeying} obey,")
    print(f"the loop was held for at most {held * 1000:.1f} ms (bound: {BOUND:.0%} of a core)")
    if rate < 0.9 * agents or obeying < agents:
        print("that was no load: too few reports, or not all obey")
        return 1
    return 0 if share < BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
