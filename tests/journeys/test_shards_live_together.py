"""A replica of two shards on two nodes: when one dies both start anew, whoever else dies at the same moment."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.journeys.clustering import Cluster, Traffic, begin, cluster, model, until
from tests.journeys.running import House
from tests.journeys.talking import Clients


@pytest.fixture(scope="module")
def made(shared_home: House) -> Iterator[Cluster]:
    with cluster(shared_home, model(1, decode_rate=100, engine="shards = 2")) as found:
        found.wait(lambda: found.serves(1))
        yield found


def replica(made: Cluster) -> dict[str, Any]:
    (one,) = made.replicas()
    return one


def restart_agent(made: Cluster, node: str) -> None:
    """The one whose engine just died: it hears of it from what the shim wrote down."""
    made.kill_agent(node)
    made.start_agent(node)


def restart_control_plane(made: Cluster, _: str) -> None:
    made.kill_control_plane()
    made.start_control_plane()


def nobody(_: Cluster, __: str) -> None: ...


slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("rank", "also"),
    [
        (0, nobody),
        (1, nobody),
        (0, restart_agent),
        (0, restart_control_plane),
        pytest.param(1, restart_agent, marks=slow),
        pytest.param(1, restart_control_plane, marks=slow),
    ],
)
async def test_the_death_of_one_shard_is_the_end_of_all_and_all_start_with_a_new_generation(made, rank, also, nursery):
    before = replica(made)
    assert [shard["rank"] for shard in before["shards"]] == [0, 1]
    assert {shard["node"] for shard in before["shards"]} == {"node-1", "node-2"}
    victim = before["shards"][rank]

    os.kill(victim["pid"], signal.SIGKILL)
    also(made, victim["node"])
    await until(made, lambda: made.serves(1) and replica(made)["generation"] > before["generation"])

    after = replica(made)
    assert after["name"] == before["name"]
    assert after["generation"] == before["generation"] + 1
    assert not {shard["pid"] for shard in before["shards"]} & {shard["pid"] for shard in after["shards"]}
    for shard in before["shards"]:
        with pytest.raises(ProcessLookupError):
            os.kill(shard["pid"], 0)
    failed = made.events("replica.failed")[-1]
    assert f"rank {rank} on {victim['node']} killed by signal 9" in failed["sentence"]
    assert failed["data"]["generation"] == before["generation"]

    traffic = begin(Traffic(Clients(made.gateway, made.gateway.make_key())), nursery)
    await traffic.more(8)
    traffic.over = True
    assert traffic.failed() == []
