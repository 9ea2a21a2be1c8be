"""A node is taken out of service while traffic runs, and nobody who asks notices (C30, C33, C26, C31)."""

import os
import signal
from functools import partial
from typing import Any

import httpx
import pytest
import trio

from tests.journeys.clustering import Cluster, Traffic, begin, cluster, model, until
from tests.journeys.loads import Steady
from tests.journeys.running import House, values
from tests.journeys.talking import Clients, raise_descriptor_limit

SLOTS = 160
WIDE = f"capacity = {SLOTS}"


@pytest.fixture(autouse=True, scope="module")
def enough_descriptors():
    raise_descriptor_limit()


async def put(made: Cluster, path: str, **asked: Any) -> dict[str, Any]:
    """Of the management API, beside the clients' turns."""
    send = partial(made.gateway.admin, "PUT", f"/admin/v1{path}", json=asked)
    answer: httpx.Response = await trio.to_thread.run_sync(send)
    told: dict[str, Any] = answer.raise_for_status().json()
    return told


async def drain(made: Cluster, node: str, **more: Any) -> dict[str, Any]:
    return await put(made, f"/nodes/{node}/target", target="drained", reason="new fans", **more)


def state(made: Cluster, node: str) -> dict[str, Any]:
    told: dict[str, Any] = made.get(f"/nodes/{node}/drain")["drain"]
    return told


def is_over(made: Cluster, node: str) -> bool:
    return state(made, node)["left_s"] is None


def at(made: Cluster, endpoint: str) -> int:
    """Requests that are there now."""
    return len(made.get("/requests/running", endpoint=endpoint, limit=1000)["requests"])


def home_of(made: Cluster) -> tuple[dict[str, Any], str]:
    (one,) = made.serving()
    return one, one["shards"][0]["node"]


# -- the exit criterion -------------------------------------------------------------------------------

often = pytest.mark.parametrize(
    ("streams", "tokens", "rate", "plain"),
    [(30, 80, 10, 20), pytest.param(100, 300, 10, 200, marks=pytest.mark.slow)],
    ids=["30-streams", "100-streams"],
)
sizes = pytest.mark.parametrize(
    ("nodes", "shards"),
    [(2, 1), pytest.param(3, 2, marks=pytest.mark.slow)],
    ids=["one-shard-of-two-nodes", "two-shards-of-three"],
)


@often
@sizes
async def test_draining_a_node_moves_its_replica_and_every_answer_is_whole(
    home: House, nodes, shards, streams, tokens, rate, plain, capsys
):
    # Two shards of one replica want two GPUs, and a successor's may share one of them.
    engine = f"{WIDE}\nshards = {shards}\nexclusive = false"
    said = model(1, decode_rate=rate, slots=SLOTS, blocks=40_000, engine=engine, gpu_memory="10GiB")
    with cluster(home, said, nodes) as made:
        await until(made, lambda: made.serves(1))
        one, node = home_of(made)
        clients = Clients(made.gateway, made.gateway.make_key())
        async with trio.open_nursery() as nursery:
            long = begin(Traffic(clients, tokens, stream=True), nursery, streams, tokens / rate / streams)
            short = Steady(clients, plain)
            nursery.start_soon(short.run)
            with trio.fail_after(60):
                while at(made, f"{one['name']}.g{one['generation']}") < streams:  # noqa: ASYNC110
                    await trio.sleep(0.1)
            there = at(made, f"{one['name']}.g{one['generation']}")
            began = trio.current_time()
            told = await drain(made, node)
            await until(made, lambda: is_over(made, node), 120)
            took = trio.current_time() - began
            long.over = short.over = True
        ended = state(made, node)

        assert there >= 20
        assert told["confirmed"]
        assert long.failed() == []
        assert short.failed() == []
        assert len(long.asked) >= streams
        assert (ended["state"], ended["cut"], ended["replaced"]) == ("drained", 0, [one["name"]])
        assert made.nodes[node].engine_pids() == set()
        (other,) = made.serving()
        assert node not in {shard["node"] for shard in other["shards"]}
        assert {shard["node"] for shard in other["shards"]} == set(told["drain"]["planned"][one["name"]])
    with capsys.disabled():
        print(
            f"\n{node} drained in {took:.1f} s with {there} streams there: {len(long.asked)} streams and"
            f" {len(short.asked)} plain requests, 0 failed"
        )


# -- where nothing else can host --------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["stop", pytest.param("keep", marks=pytest.mark.slow)])
async def test_the_only_node_that_can_host_says_so_serves_and_ends_as_asked(home: House, ending):
    with cluster(home, model(1, decode_rate=100), 1) as made:
        await until(made, lambda: made.serves(1))
        key = made.gateway.make_key()
        told = await drain(made, "node-1", grace=4, at_deadline=ending)
        assert told["drain"]["state"] in ("draining", "blocked")
        await until(made, lambda: state(made, "node-1")["state"] == "blocked")
        assert "is blocked: no node fits: 1 drained" in state(made, "node-1")["waits_on"][0]
        why = made.gateway.ctl("explain", "drain", "node-1")
        assert why["verdict"].startswith("blocked, ")
        assert why["verdict"].endswith("stopped" if ending == "stop" else "kept")
        told = made.gateway.metrics()
        assert values(told, "llmgw_drain_state", subject="node-1", state="blocked") == [1.0]
        assert values(told, "llmgw_drain_waiting_on", subject="node-1", what="place") == [1.0]
        assert values(told, "llmgw_node_state", node="node-1", state="blocked") == [1.0]
        plain = Traffic(Clients(made.gateway, key), tokens=2)
        async with trio.open_nursery() as nursery:
            begin(plain, nursery)
            await plain.more(20)
            plain.over = True
        assert plain.failed() == []
        await until(made, lambda: is_over(made, "node-1"))
        ended = state(made, "node-1")
        if ending == "stop":
            assert ended["state"] == "drained"
            assert made.nodes["node-1"].engine_pids() == set()
            assert made.serving() == []
        else:
            assert ended["state"] == "blocked"
            assert "it stays cordoned" in ended["said"]
            assert len(made.serving()) == 1
        told = made.gateway.metrics()
        assert values(told, "llmgw_drains_ended_total", end=ended["state"]) == [1.0]
        # And back.
        await put(made, "/nodes/node-1/target", target="schedulable")
        await until(made, lambda: made.serves(1))


# -- a control plane that dies --------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_drain_goes_on_after_the_control_plane_was_killed_and_ends_once(home: House):
    with cluster(home, model(1, decode_rate=20, ready_after=2)) as made:
        await until(made, lambda: made.serves(1))
        node = home_of(made)[1]
        await drain(made, node)
        await until(made, lambda: len(made.replicas()) == 2)
        before = state(made, node)
        made.kill_control_plane()
        made.start_control_plane()
        await until(made, made.ready)
        await until(made, lambda: is_over(made, node))
        ended = state(made, node)
        assert (ended["state"], ended["planned"]) == ("drained", before["planned"])
        assert made.nodes[node].engine_pids() == set()
        await until(made, lambda: made.serves(1))
        said = [event for event in made.events("node.target", node) if "is drained after" in event["sentence"]]
        assert len(said) == 1
        found = made.node(node)
        assert (found["state"], found["target"]["target"], found["target"]["why"]) == ("drained", "drained", "new fans")


# -- what a dry run says ---------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_dry_run_and_the_drain_after_it_name_the_same_places(home: House):
    with cluster(home, model(3, decode_rate=100), 4) as made:
        await until(made, lambda: made.serves(3))
        (node, *_) = sorted({shard["node"] for one in made.replicas() for shard in one["shards"]})
        dry = await drain(made, node, dry_run=True)
        again = await drain(made, node, dry_run=True)
        plan = {move["replica"]: move["to"] for move in dry["plan"]["moves"]}
        assert plan == {move["replica"]: move["to"] for move in again["plan"]["moves"]}
        assert plan
        assert all(plan.values())
        before = {one["name"] for one in made.replicas()}
        await drain(made, node)
        await until(made, lambda: is_over(made, node), 60)
        await until(made, lambda: made.serves(3))
        new = [one for one in made.replicas() if one["name"] not in before]
        assert sorted([shard["node"] for shard in one["shards"]] for one in new) == sorted(plan.values())


# -- cordon ------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_cordon_with_a_stopped_agent_is_answered_unconfirmed_and_nothing_lands_there(home: House):
    with cluster(home, model(1, decode_rate=100)) as made:
        await until(made, lambda: made.serves(1))
        _, node = home_of(made)
        other = "node-2" if node == "node-1" else "node-1"
        os.kill(made.nodes[other].pid, signal.SIGSTOP)
        try:
            made.gateway.ctl("scale", "sim-model", "2")
            await until(made, lambda: any(shard["node"] == other for one in made.replicas() for shard in one["shards"]))
            began = trio.current_time()
            told = await put(made, f"/nodes/{other}/target", target="cordoned")
            assert trio.current_time() - began < 6
            assert not told["confirmed"]
            assert told["said"].startswith(f"{other} is cordoned, unconfirmed: it has not obeyed rev ")
            assert len(told["may_still_start"]) == 1
        finally:
            os.kill(made.nodes[other].pid, signal.SIGCONT)


# -- a sick GPU ----------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_an_xid_under_streams_moves_the_replica_and_what_the_engine_completes_stays_whole(home: House):
    said = model(1, decode_rate=10, slots=SLOTS, blocks=40_000, engine=WIDE)
    with cluster(home, said) as made:
        await until(made, lambda: made.serves(1))
        one, node = home_of(made)
        (uuid,) = one["shards"][0]["gpus"]
        clients = Clients(made.gateway, made.gateway.make_key())
        async with trio.open_nursery() as nursery:
            long = begin(Traffic(clients, tokens=60, stream=True), nursery, 100, 0.05)
            await until(made, lambda: at(made, f"{one['name']}.g{one['generation']}") == 100)
            made.nodes[node].gpus.xid(uuid, 79)
            await until(made, lambda: one["name"] not in {now["name"] for now in made.replicas()}, 60)
            long.over = True
        assert long.failed() == []
        assert len(long.asked) >= 100
        (other,) = made.serving()
        assert other["shards"][0]["node"] != node
        (left,) = made.events("replica.leaving", one["name"])
        assert "is excluded: xid 79" in left["sentence"]


# -- static endpoints ------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_static_endpoint_is_taken_out_under_traffic_and_back(home: House):
    engines = home.engines(2, decode_rate=40)
    table = "\n".join(
        f'[[models.endpoints]]\nid = "e{number}"\nurl = "{engine.url}"\nengine = "sim"'
        for number, engine in enumerate(engines)
    )
    gateway = home.gateway(f'[[models]]\nname = "sim-model"\n{table}')
    clients = Clients(gateway, gateway.make_key())
    traffic = Traffic(clients, tokens=40, stream=True)
    async with trio.open_nursery() as nursery:
        begin(traffic, nursery, 12, 0.05)
        await traffic.more(12)
        await trio.to_thread.run_sync(partial(gateway.ctl_says, "drain", "endpoint/e0", "-m", "disk", "--watch"))
        served = engines[0].state()["served"]
        assert gateway.ctl("drains")["drains"][0]["drain"]["state"] == "drained"
        await traffic.more(24)
        assert engines[0].state()["served"] == served
        await trio.to_thread.run_sync(partial(gateway.ctl_says, "uncordon", "endpoint/e0", "-m", "done"))
        await traffic.more(36)
        traffic.over = True
    assert traffic.failed() == []
    assert engines[0].state()["served"] > served
