"""Nodes that cannot be heard, and leaders that did not listen (cases C2, C3, C28)."""

import attrs
import pytest
import trio

from llmgw.nodes.limits import ClusterLimits
from llmgw.store import replicas
from tests.control.little_cluster import ANN, SPEC, little_cluster, want
from tests.control.little_nodes import Manner

CHANGES = ("replica.leaving", "replica.stopping", "replica.failed", "replica.gone", "replica.created")


# -- C2 ---------------------------------------------------------------------------------------------


async def test_after_a_partition_there_is_one_engine_and_the_new_one_has_the_traffic(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, {"node-1": 1, "node-2": 1}, [want()]) as little:
        await little.until(little.serving)
        old = little.home("m-1")
        old.cut = True
        await little.until(lambda: little.now["m-1"].standing == "unknown", 10)
        assert little.routed() == ["m-1.g1"]  # its engine answers, and nobody else does

        await little.until(lambda: little.serving() == ["m-2"], 90)
        assert little.routed() == ["m-2.g2"]  # at once, not only when the old one has left
        assert old.running() == ["m-1.g1.r0"]
        old.cut = False
        await little.until(lambda: little.running() == ["m-2.g2.r0"], 30)
        await little.quiet()
        assert sorted(little.there.cluster.rows) == ["m-2"]
        assert [routes["m"][0].id for _, routes in little.routes if routes] == ["m-1.g1", "m-2.g2"]


async def test_the_old_one_is_routed_again_when_the_new_one_dies_young(tmp_path, autojump_clock):
    manners = {"m-2": Manner(dies_after_s=5)}
    async with little_cluster(tmp_path, {"node-1": 1, "node-2": 1}, [want()], manners=manners) as little:
        await little.until(little.serving)
        little.home("m-1").cut = True
        await little.until(lambda: little.routed() == ["m-2.g2"], 90)
        await little.until(lambda: little.routed() == ["m-1.g1"], 10)
        assert not little.told("replica.leaving")


async def test_a_partition_shorter_than_the_grace_changes_nothing(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, {"node-1": 1, "node-2": 1}, [want()]) as little:
        await little.until(little.serving)
        began = autojump_clock.current_time()
        little.home("m-1").cut = True
        await little.until(lambda: little.told("node.silent"))
        await little.until(lambda: autojump_clock.current_time() - began > 55, 60)
        little.home("m-1").cut = False
        await little.until(lambda: little.told("node.back"))
        await little.quiet()
        assert little.running() == ["m-1.g1.r0"]
        assert not little.told(*CHANGES, since=began)


# -- C3 ---------------------------------------------------------------------------------------------


async def five(little):
    await little.until(lambda: len(little.serving()) == 5)
    await little.quiet()


@pytest.fixture
def five_nodes():
    return {f"node-{i}": 1 for i in range(1, 6)}


async def test_a_leader_that_slept_evicts_nobody(tmp_path, autojump_clock, five_nodes):
    async with little_cluster(tmp_path, five_nodes, [want(n=5)]) as little:
        await five(little)
        began = autojump_clock.current_time()
        nodes = list(little.nodes.values())
        for node in nodes:
            node.cut = True  # their links died meanwhile
        autojump_clock.jump(360)
        woke = autojump_clock.current_time()
        await little.until(lambda: little.told("leader.doubts"))
        for node in nodes[:2]:
            node.cut = False
        await little.until(lambda: autojump_clock.current_time() - woke > 20)
        assert little.there.cluster.hold
        assert len(little.routed()) == 5
        nodes[2].cut = False
        await little.until(lambda: little.told("leader.trusts"))
        for node in nodes:
            node.cut = False
        await little.quiet()
        assert not little.told(*CHANGES, since=began)
        assert len(little.running()) == 5
        doubts, *_ = little.told("leader.doubts")
        assert "nothing is stopped: 5 of 5 nodes are silent" in doubts.sentence
        assert "was not awake for 3" in doubts.sentence


async def test_a_leader_that_slept_takes_no_busy_replica_out(tmp_path, autojump_clock, five_nodes):
    """Neither its own sleep nor a canary's that was under way speaks against an engine."""
    async with little_cluster(tmp_path, five_nodes, [want(n=5)]) as little:
        await five(little)
        for live in little.there.cluster.live:
            live.in_flight, live.watched = 1, {Streaming(autojump_clock.current_time())}
        began = autojump_clock.current_time()
        autojump_clock.jump(360)
        await little.until(lambda: autojump_clock.current_time() - began > 380)
        assert not little.told("replica.out", since=began)


class Streaming:
    """A stream that got a token just before."""

    streaming = True

    def __init__(self, now):
        self.sent_at = self.progress_at = now


async def test_while_most_nodes_are_silent_nothing_leaves_and_the_operators_word_counts(
    tmp_path, autojump_clock, five_nodes
):
    five_nodes["node-6"] = 1
    async with little_cluster(tmp_path, five_nodes, [want(n=5)]) as little:
        await five(little)
        began = autojump_clock.current_time()
        homes = [little.home(name) for name in little.serving()]
        for node in homes[:4]:
            node.cut = True
        await little.until(lambda: little.told("leader.doubts"))
        await little.until(lambda: autojump_clock.current_time() - began > 300, 400)
        assert not little.told("replica.leaving", "replica.stopping", "replica.failed", since=began)
        assert "4 of 6 nodes are silent" in little.there.cluster.hold

        lost = homes[0].name
        await little.there.joining.give_up(ANN, lost, "it burnt down")
        little.there.cluster.wake()
        await little.until(lambda: little.told("replica.failed", since=began), 10)
        assert all(lost in one.sentence for one in little.told("replica.failed", since=began))


async def test_with_the_store_away_nothing_happens_and_everything_goes_on(tmp_path, autojump_clock, five_nodes):
    async with little_cluster(tmp_path, five_nodes, [want(n=5)]) as little:
        await five(little)
        began = autojump_clock.current_time()
        little.store_goes_away()
        little.want(want(n=3))
        await little.until(lambda: autojump_clock.current_time() - began > 360, 400)
        assert len(little.running()) == len(little.routed()) == 5
        assert "the store is away" in little.there.cluster.hold
        little.store_comes_back()
        await little.until(lambda: len(little.running()) == 3)
        await little.quiet()
        assert any("the store is away" in one.sentence for one in little.told("leader.doubts"))


async def test_what_was_stored_without_an_answer_is_taken_from_the_store(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, {"node-1": 2}) as little:
        little.answers_are_lost()
        little.want(want(n=2))
        await trio.sleep(5)
        little.store_comes_back()
        await little.until(lambda: len(little.serving()) == 2)
        await little.quiet()

        rows = await little.there.store.read(replicas.every)
        assert {row.name: row for row in rows} == little.there.cluster.rows
        assert [row.name for row in rows] == ["m-1", "m-2"]  # none was made a second time


async def test_a_node_that_was_given_up_comes_back_while_the_store_is_away(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, {"node-1": 1, "node-2": 1}, [want()]) as little:
        await little.until(little.serving)
        node = little.home("m-1")
        node.cut = True
        await little.there.joining.give_up(ANN, node.name)
        await little.until(lambda: little.serving() and little.home("m-1") is not node)
        little.store_goes_away()
        node.cut = False
        await trio.sleep(10)
        assert little.there.joining.nodes[node.name].given_up_at
        little.store_comes_back()
        await little.until(lambda: not little.there.joining.nodes[node.name].given_up_at, 5)
        await little.quiet()
        assert len(little.running()) == 1


# -- C28 --------------------------------------------------------------------------------------------


async def test_what_a_deaf_agent_does_not_take_in_is_withdrawn_and_placed_elsewhere(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, {"node-1": 2, "node-2": 1}, [want()]) as little:
        little.nodes["node-1"].deaf = True
        await little.until(lambda: "m-1" in little.now and little.now["m-1"].replica.shards)
        assert little.home("m-1").name == "node-1"
        took = await little.until(little.serving, 30)
        assert little.home(little.serving()[0]).name == "node-2"
        assert took < ClusterLimits().obey_within + 5
        [stopping] = little.told("replica.stopping")
        assert stopping.sentence == "m-1 stops: node-1 did not take it in for 10 s: withdrawn"
        assert "m-1.g1.r0" not in [one.id for one in little.there.registry.nodes["node-1"].wanted.shards]

        little.nodes["node-1"].deaf = False
        await little.quiet()
        assert little.running() == ["m-2.g2.r0"]
        assert list(little.there.cluster.rows) == ["m-2"]


async def test_a_deaf_agent_is_found_out_though_what_it_is_told_keeps_changing(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, {"node-1": 2}, [want()]) as little:
        await little.until(little.serving)
        little.nodes["node-1"].deaf = True
        began = autojump_clock.current_time()
        for n in range(15):
            little.want(want("files", n=0, spec=attrs.evolve(SPEC, model=f"/models/{n}")))  # asks about another path
            await trio.sleep(1)
        node = little.there.cluster.nodes(autojump_clock.current_time())["node-1"]
        assert node.rev >= 15
        assert 14 <= node.behind_s <= autojump_clock.current_time() - began
        assert "it has not obeyed for" in node.trouble


async def test_a_node_that_comes_back_is_not_blamed_for_what_it_could_not_hear(tmp_path, autojump_clock):
    """It was told while it was away; the time to obey begins when it can hear."""
    async with little_cluster(tmp_path, {"node-1": 2, "node-2": 1}, [want()]) as little:
        await little.until(little.serving)
        node = little.home("m-1")
        node.cut = True
        await little.until(lambda: little.told("node.silent"))
        little.want(want("other", n=0))
        little.there.cluster.sent.pop(node.name)  # whatever it is: it is told anew
        little.there.cluster.wake()
        began = autojump_clock.current_time()
        await little.until(lambda: autojump_clock.current_time() - began > 30)
        node.cut = False
        await little.until(lambda: little.told("node.back"))
        assert little.there.cluster.nodes(autojump_clock.current_time())[node.name].behind_s < 2


async def test_a_node_that_becomes_ready_wakes_the_planner_at_once(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, {"node-1": 0, "node-2": 1}, [want()]) as little:
        little.nodes["node-2"].cut = True
        await little.until(lambda: little.told("replica.blocked"))
        little.nodes["node-2"].cut = False
        little.nodes["node-2"].nudge()
        assert await little.until(lambda: little.told("replica.started")) <= 0.3
