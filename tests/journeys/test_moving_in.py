"""What docs/migrate.md says, step by step: engines started by hand move under agents while clients ask."""

import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from attrs import define

from sim.gpus import SimFolder, gpus_of
from tests.journeys.clustering import MODEL, Cluster, Traffic, begin, cluster, config_of, model, until
from tests.journeys.running import Engine, House, Process
from tests.journeys.talking import Clients

OWN_NAME = "org/the-model"  # as the engines call it, before and after
TOKENS = 20


def by_hand(home: House, node: str) -> Engine:
    """An engine on a node that knows no agent yet; it holds most of the only GPU."""
    gpus = SimFolder(home.folder / node / "gpus")
    gpus.make(gpus_of(1, 24 * 1024, node))
    said = ["--port", "0", "--model", OWN_NAME, "--decode-rate", "100", "--gpu-memory", str(20 * 1024)]
    env = {"LLMGW_SIM_GPUS": str(gpus.path), "CUDA_VISIBLE_DEVICES": gpus.state.gpus[0].uuid}
    process: Process = home.running("sim", "engine", *said, **env)
    return Engine(process, process.said("listening on ").split()[-1])


def written(static: dict[str, str], replicas: int | None) -> str:
    """The model as it stands in the file: old endpoints, and so many replicas; None: agents are not spoken of."""
    text = model(replicas or 0, endpoints=static, decode_rate=100, engine=f'served_as = "{OWN_NAME}"')
    text = text.replace('engine = "sim"\n', f'engine = "sim"\nserved_as = "{OWN_NAME}"\n')
    return text if replicas is not None else text.partition("[models.engine]")[0].replace("replicas = 0\n", "")


@define(eq=False)
class Move:
    """Two machines, and how far they are."""

    home: House
    made: Cluster
    old: dict[str, Engine]  # by node, while it runs
    urls: dict[str, str]  # static endpoints in the file
    replicas: int = 0

    async def apply(self) -> None:
        """The file as it is now: `llmgw ctl diff`, `llmgw ctl apply`."""
        file = str(self.write())
        assert "no engine would be started anew" in await self.ctl("diff", file)
        assert "revision" in await self.ctl("apply", file)

    async def hang_up(self) -> None:
        """Or `systemctl reload llmgw`."""
        self.write()
        self.made.gateway.process.signal(signal.SIGHUP)

    def write(self) -> Path:
        file = self.made.gateway.config
        file.write_text(config_of(self.made, written(self.urls, self.replicas)))
        return file

    async def ctl(self, *arguments: str) -> str:
        """In a thread: clients go on meanwhile."""
        return await trio.to_thread.run_sync(self.made.gateway.ctl_says, *arguments)

    async def under_an_agent(self, node: str, take_over: Callable[[], Awaitable[None]]) -> None:
        made, engine = self.made, self.old[node]
        endpoint = f"endpoint/by-hand-{node}"
        assert "no request is left there, 0 were cut" in await self.ctl("drain", endpoint, "-m", "moves", "--watch")
        assert engine.state()["running"] == 0
        del self.urls[f"by-hand-{node}"]
        self.replicas += 1
        await take_over()
        await until(made, lambda: f"by-hand-{node}" not in endpoints(made))
        assert "is in service" in await self.ctl("uncordon", endpoint)
        assert "nothing is drained" in await self.ctl("drains")
        await until(made, lambda: "short of GPU memory" in waiting(made))
        assert "free 4.0 (claimed 0.0, foreign 20.0)" in await self.ctl("explain", "placement", MODEL)
        assert engine.state()["running"] == 0
        engine.process.signal(signal.SIGTERM)
        await trio.to_thread.run_sync(engine.process.wait)
        await until(made, lambda: made.serves(self.replicas))
        assert node in nodes_of(made)

    async def back(self) -> None:
        """One of them; llmgw says which machine is free then."""
        made, before = self.made, nodes_of(self.made)
        self.replicas -= 1
        await self.apply()
        await until(made, lambda: made.serves(self.replicas))
        (node,) = before - nodes_of(made)
        await until(made, lambda: not made.node(node)["shards"])
        self.old[node] = by_hand(self.home, node)
        self.urls[f"by-hand-{node}"] = self.old[node].url
        await self.apply()
        await until(made, lambda: states(made).get(f"by-hand-{node}") == "usable")


@pytest.mark.slow
async def test_engines_move_under_agents_one_by_one_and_back_and_no_request_fails(home: House):
    old = {name: by_hand(home, name) for name in ("gpu-1", "gpu-2")}
    urls = {f"by-hand-{name}": engine.url for name, engine in old.items()}
    with cluster(home, written(urls, None), nodes=0) as made:
        await until(made, made.ready)
        move, clients = Move(home, made, old, urls), Clients(made.gateway, made.gateway.make_key())
        async with trio.open_nursery() as nursery:
            plain = begin(Traffic(clients, TOKENS), nursery)
            streams = begin(Traffic(clients, TOKENS * 2, stream=True), nursery)
            for name in old:  # agents join beside the engines, and see their memory as somebody else's
                made.add(name)
            await until(made, lambda: all(foreign_mib(made, name) == 20 * 1024 for name in old))
            await move.apply()  # replicas = 0
            for name, take_over in (("gpu-1", move.apply), ("gpu-2", move.hang_up)):
                await move.under_an_agent(name, take_over)
                await plain.more()
                await streams.more(8)
            assert nodes_of(made) == set(old)
            await until(made, lambda: all(foreign_mib(made, name) == 0 for name in old))
            assert endpoints(made) == {f"{one['name']}.g{one['generation']}" for one in made.replicas()}

            await move.back()
            served = next(iter(move.urls))
            await until(made, lambda: served_by(made, served) > 8)
            plain.over = streams.over = True

        assert plain.failed() == []
        assert streams.failed() == []
        # Clients were answered in the same name with the same key all the time.
        assert {one.answer.json()["model"] for one in plain.asked if one.answer} == {OWN_NAME}


def nodes_of(made: Cluster) -> set[str]:
    return {shard["node"] for one in made.replicas() for shard in one["shards"]}


def states(made: Cluster) -> dict[str, str]:
    return {one["id"]: one["state"] for one in made.gateway.endpoints()}


def served_by(made: Cluster, endpoint: str) -> int:
    return next(one["served"] for one in made.gateway.endpoints() if one["id"] == endpoint)


def endpoints(made: Cluster) -> set[str]:
    return {one["id"] for one in made.gateway.endpoints()}


def foreign_mib(made: Cluster, name: str) -> int | None:
    nodes = {one["name"]: one for one in made.get("/nodes")["nodes"]}
    return nodes[name]["gpu_memory"]["foreign_mib"] if name in nodes and nodes[name]["gpus"] else None


def waiting(made: Cluster) -> str:
    return " ".join(one["why"] for one in made.replicas() if one["state"] == "waiting")
