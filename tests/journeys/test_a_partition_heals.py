"""A node out of reach for longer than its grace: replaced elsewhere, served meanwhile, and one engine in the end."""

import os

import pytest
import trio

from tests.journeys.cables import Cable
from tests.journeys.clustering import QUICK, Cluster, Traffic, begin, cluster, model, until
from tests.journeys.running import House
from tests.journeys.talking import Clients

SHORT = QUICK.replace("[cluster]", '[cluster]\nnode_silent = "1500ms"\nnode_grace = "3s"')


@pytest.mark.slow
async def test_a_cut_link_costs_no_request_and_leaves_one_engine(home: House):
    with cluster(home, model(1, decode_rate=50), nodes=0, more=SHORT) as made:
        async with trio.open_nursery() as nursery:
            cable = Cable(made.agents_port)
            await nursery.start(cable.run)
            made.add("node-1", server=f"127.0.0.1:{cable.port}")
            await until(made, lambda: made.serves(1))
            made.add("node-2")
            (old,) = made.replicas()
            old_pid = old["shards"][0]["pid"]
            clients = Clients(made.gateway, made.gateway.make_key())
            plain = begin(Traffic(clients), nursery, places=2)
            streams = begin(Traffic(clients, tokens=60, stream=True), nursery, places=4)
            await plain.more()

            cable.cut()
            await until(made, lambda: made.node("node-1")["state"] == "unreachable")
            await plain.more()  # its engine serves on
            await until(made, lambda: "replica.leaving" in kinds(made))
            (new,) = made.serving()
            assert new["shards"][0]["node"] == "node-2"
            assert new["generation"] > old["generation"]
            # The new one served before the old one left.
            assert kinds(made).index("replica.leaving") > last(kinds(made), "replica.ready")
            os.kill(old_pid, 0)  # it lives on where nobody can stop it
            await plain.more()

            cable.mend()
            await until(made, lambda: made.serves(1) and not made.nodes["node-1"].engine_pids())
            assert made.replicas()[0]["shards"][0]["pid"] == new["shards"][0]["pid"]
            await until(made, lambda: not made.node("node-1")["shards"])
            await plain.more()
            plain.over = streams.over = True
            with trio.fail_after(10):
                while plain.places or streams.places:  # noqa: ASYNC110
                    await trio.sleep(0.05)
            nursery.cancel_scope.cancel()
        assert plain.failed() == []
        assert streams.failed() == []


def kinds(made: Cluster) -> list[str]:
    return [event["kind"] for event in made.events()]


def last(kinds: list[str], kind: str) -> int:
    return max(place for place, one in enumerate(kinds) if one == kind)


@pytest.mark.slow  # waits out the 10 s that a driver has
async def test_a_driver_that_hangs_keeps_new_engines_away_and_nothing_else(home: House):
    with cluster(home, model(1, decode_rate=50), nodes=0) as made:
        node = made.add("node-1", gpus=2)
        await until(made, lambda: made.serves(1))
        before = made.running()
        node.gpus.hang(600)
        await until(made, lambda: not any(gpu["usable"] for gpu in made.node("node-1")["gpus"]))
        made.gateway.admin("PUT", "/admin/v1/models/sim-model/scale", json={"replicas": 2}).raise_for_status()
        await until(made, lambda: waits(made))
        (waiting,) = [one for one in made.replicas() if one["state"] == "waiting"]
        shown = made.node("node-1")
        assert waiting["why"] == "no node fits: 1 whose driver does not answer"
        assert shown["nothing_lands_because"].startswith("stale")
        await until(made, lambda: made.node("node-1")["driver"])
        assert "no answer within 10 s" in made.node("node-1")["driver"]
        assert shown["heard_age_s"] < 2  # heartbeats go on
        assert shown["state"] == "ready"
        assert made.running() == before
        traffic = Traffic(Clients(made.gateway, made.gateway.make_key()))
        async with trio.open_nursery() as nursery:
            begin(traffic, nursery)
            await traffic.more()
            traffic.over = True
        assert traffic.failed() == []

        node.gpus.hang(0)
        await until(made, lambda: made.serves(2))
        assert before.items() <= made.running().items()


def waits(made: Cluster) -> bool:
    return any(one["state"] == "waiting" and "no node fits" in one["why"] for one in made.replicas())
