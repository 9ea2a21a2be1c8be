"""Several things die at once, or in the middle of something: the cluster ends up as it was asked to be."""

import os
import signal
from contextlib import suppress

import pytest
import trio

from tests.journeys.clustering import QUICK, Cluster, Traffic, begin, cluster, config_of, model, until
from tests.journeys.running import House
from tests.journeys.talking import Clients

pytestmark = pytest.mark.slow
SHORT = QUICK.replace("[cluster]", '[cluster]\nnode_silent = "1500ms"\nnode_grace = "3s"')
UNDISTURBED = {"created", "blocked", "started", "ready"}  # blocked: before the first node has joined


def lose_power(made: Cluster, name: str) -> None:
    """Agent, shims and engines of a node, at once."""
    left = made.nodes[name].engine_pids()
    made.kill_agent(name)
    while left:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        left = made.nodes[name].engine_pids()


async def test_a_node_that_lost_everything_and_comes_back_runs_its_replica_again(home: House):
    with cluster(home, model(decode_rate=100)) as made:
        await until(made, lambda: made.serves(2))
        before, clients = made.running(), Clients(made.gateway, made.gateway.make_key())
        async with trio.open_nursery() as nursery:
            plain = begin(Traffic(clients), nursery)
            await plain.more()
            lose_power(made, "node-1")
            made.start_agent("node-1")
            await until(made, lambda: made.serves(2) and made.running() != before)
            await plain.more()
            plain.over = True
        assert plain.failed() == []
        assert len(made.running().items() & before.items()) == 1  # the other node's knows nothing of it


async def test_a_node_that_does_not_come_back_is_replaced_after_its_grace(home: House):
    with cluster(home, model(decode_rate=100), nodes=3, more=SHORT) as made:
        await until(made, lambda: made.serves(2))
        (dead, *_) = sorted(shard["node"] for one in made.replicas() for shard in one["shards"])
        clients = Clients(made.gateway, made.gateway.make_key())
        async with trio.open_nursery() as nursery:
            plain = begin(Traffic(clients), nursery)
            await plain.more()
            lose_power(made, dead)
            await until(made, lambda: len(made.serving()) == 2 and dead not in serving_on(made))
            await plain.more()
            plain.over = True
        assert plain.failed() == []
        made.start_agent(dead)
        await until(made, lambda: made.serves(2) and not made.node(dead)["shards"])


def serving_on(made: Cluster) -> set[str]:
    return {shard["node"] for one in made.serving() for shard in one["shards"]}


async def test_a_leader_that_slept_past_the_grace_evicts_nobody(home: House):
    with cluster(home, model(decode_rate=100), nodes=3, more=SHORT) as made:
        await until(made, lambda: made.serves(2))
        before = made.running()
        for _ in range(3):
            made.gateway.process.signal(signal.SIGSTOP)
            await trio.sleep(6)
            made.gateway.process.signal(signal.SIGCONT)
            await until(made, lambda: all(made.node(name)["state"] == "ready" for name in made.nodes))
            await trio.sleep(1)
        assert made.serves(2)
        assert made.running() == before
        kinds = [event["kind"].removeprefix("replica.") for event in made.events("replica.")]
        assert set(kinds) <= UNDISTURBED
        assert kinds.count("created") == 2


@pytest.mark.parametrize("after_s", [0.3, 1.0, 2.0, 3.5, 5.0])
async def test_a_change_of_version_outlives_the_leader_that_began_it(home: House, after_s: float):
    with cluster(home, model(decode_rate=100, seed=1), nodes=3) as made:
        await until(made, lambda: made.serves(2))
        before = made.running()
        await trio.to_thread.run_sync(made.apply, config_of(made, model(decode_rate=100, seed=2)), "HUP")
        await until(made, lambda: any(not one["up_to_date"] for one in made.replicas()))
        await trio.sleep(after_s)
        made.kill_control_plane()
        made.start_control_plane()
        await until(made, lambda: made.serves(2) and not made.running().keys() & before.keys(), 60)
        engines = {pid for node in made.nodes.values() for pid in node.engine_pids()}
        assert len(engines) == 4  # two, with their shims
        assert not {pid for pid, _ in before.values()} & engines
