"""A machine shuts down, boots again, and its agent is restarted: only the first of these takes anything off it."""

import signal
from contextlib import contextmanager

import pytest
import trio

from tests.journeys.clustering import Cluster, Traffic, begin, cluster, model, until
from tests.journeys.running import House, running
from tests.journeys.talking import Clients


@contextmanager
def drain(made: Cluster, name: str, *more: str):
    """As the unit that a shutdown stops runs it."""
    server = f"127.0.0.1:{made.agents_port}"
    with running(
        "agent", "drain", "--data-dir", str(made.nodes[name].folder), "--server", server, "--grace", "40s", *more
    ) as process:
        yield process


async def ended(made: Cluster, process, within_s: float = 40) -> int:
    await until(made, lambda: process.popen.poll() is not None, within_s)
    return process.wait()


def target(made: Cluster, name: str) -> str:
    return made.node(name)["target"]["target"]


def home_of(made: Cluster) -> str:
    return made.serving()[0]["shards"][0]["node"]


@pytest.mark.slow
async def test_a_node_that_shuts_down_is_left_without_a_failed_request_and_is_back_after_its_boot(home: House):
    with cluster(home, model(replicas=1, decode_rate=40)) as made:
        await until(made, lambda: made.serves(1))
        first = home_of(made)
        clients = Clients(made.gateway, made.gateway.make_key())
        async with trio.open_nursery() as nursery:
            streams = begin(Traffic(clients, 60, stream=True), nursery, places=6, apart_s=0.2)
            plain = begin(Traffic(clients, 3), nursery, places=2)
            await streams.more(3)
            began = trio.current_time()
            with drain(made, first, "-m", "new kernel") as process:
                assert await ended(made, process) == 0, process.lines
            assert made.nodes[first].engine_pids() == set()
            over = trio.current_time()
            await streams.more(12)
            streams.over = plain.over = True

        assert streams.failed() == []
        assert plain.failed() == []
        assert [one for one in streams.asked if one.began_at < began < one.ended_at < over], "no stream was under way"
        assert "is drained after" in process.lines[-1], process.lines
        assert any("waits for" in line for line in process.lines), process.lines
        assert made.events("replica.failed") == []
        second = home_of(made)
        assert second != first

        # The only node that is left: it serves on, and the shutdown goes on.
        with drain(made, second, "--patience", "1s") as process:
            assert await ended(made, process) == 5, process.lines
        assert "has nowhere to go" in process.lines[-1], process.lines
        assert [one["shards"][0]["node"] for one in made.serving()] == [second]
        path = f"/admin/v1/nodes/{second}/target"
        made.gateway.admin("PUT", path, json={"target": "schedulable"}).raise_for_status()

        # Its agent alone is restarted: that is no boot.
        await restarted(made, first)
        assert target(made, first) == "drained"

        made.nodes[first].said += ["--boot", "the next one"]
        await restarted(made, first)
        await until(made, lambda: target(made, first) == "schedulable")
        told = made.events("node.target", first)[-1]["sentence"]
        assert told == f"{first} has booted again, so it is schedulable as it was before it asked to be drained"


async def test_a_restart_of_the_agent_drains_nothing(home: House):
    with cluster(home, model(replicas=2)) as made:
        await until(made, lambda: made.serves(2))
        before = made.running()
        for name in made.nodes:
            await restarted(made, name)
        await until(made, lambda: made.serves(2))

        assert made.running() == before
        assert made.events("node.target") == []
        assert {target(made, name) for name in made.nodes} == {"schedulable"}


async def restarted(made: Cluster, name: str) -> None:
    """As `systemctl restart` does it."""
    made.nodes[name].process.signal(signal.SIGTERM)
    made.nodes[name].process.wait()
    await until(made, lambda: not made.node(name)["agent"]["linked"])
    made.start_agent(name)
    await until(made, lambda: made.node(name)["agent"]["linked"])
