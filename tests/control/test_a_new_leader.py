"""A control plane that is started again: it adopts what runs, and starts or stops nothing it has not heard of (C20).

On either store.
"""

import attrs
import trio

from tests.control.little_cluster import SPEC, little_cluster, want
from tests.control.little_nodes import Manner, Shard

TWO = {"node-1": 1, "node-2": 1}
PAIR = attrs.evolve(SPEC, shards=2)
STARTS_AND_STOPS = (
    "replica.created", "replica.started", "replica.leaving", "replica.stopping", "replica.failed", "replica.gone",
)  # fmt: skip


async def began_again(little):
    await little.leader_dies()
    await little.lead()
    return trio.current_time()


def generations(little):
    return {name: row.generation for name, row in little.there.cluster.rows.items()}


async def test_a_new_leader_adopts_what_runs(kind, autojump_clock):
    async with little_cluster(kind, TWO, [want(n=2)]) as little:
        await little.until(lambda: len(little.serving()) == 2)
        before, ran = generations(little), little.running()
        began = await began_again(little)
        took = await little.until(lambda: len(little.serving()) == 2)
        assert took < 2.5  # reports, one pass, one proof each
        await little.quiet()
        assert not little.told(*STARTS_AND_STOPS, since=began)
        assert generations(little) == before
        assert little.running() == ran
        assert sum(len(node.ever) for node in little.nodes.values()) == 2


async def test_nothing_is_started_or_stopped_or_told_before_reports_arrived(kind, autojump_clock):
    async with little_cluster(kind, TWO, [want(n=2)]) as little:
        await little.until(lambda: len(little.serving()) == 2)
        await little.leader_dies()
        for node in little.nodes.values():
            node.cut = True
        little.want(want(n=1), want("other", n=1))
        await little.lead()
        began = trio.current_time()
        await trio.sleep(4.5)
        assert not little.told(*STARTS_AND_STOPS, since=began)
        assert all(node.wanted is None for node in little.there.registry.nodes.values())
        for node in little.nodes.values():
            node.cut = False
        await little.until(lambda: little.told("replica.stopping", since=began))
        await little.until(lambda: little.serving("other"))
        assert len(little.running()) == 2


async def test_what_was_wanted_is_adopted_in_the_first_pass_after_reports(kind, autojump_clock):
    """Also what an earlier leader had only decided: it is told again, and is not decided a second time."""
    async with little_cluster(kind, TWO, [want(n=2)]) as little:
        for node in little.nodes.values():
            node.deaf = True
        await little.until(lambda: len(little.told("replica.started")) == 2)
        before = generations(little)
        await little.leader_dies()
        for node in little.nodes.values():
            node.deaf = False
        await little.lead()
        await little.until(lambda: len(little.serving()) == 2)
        assert generations(little) == before


async def test_a_shard_that_died_while_nobody_led_is_noticed(kind, autojump_clock):
    """Within one heartbeat: no leader ever saw the dead shard as anything but dead."""
    async with little_cluster(kind, TWO, [want(spec=PAIR)]) as little:
        await little.until(little.serving)
        old = little.running()
        await little.leader_dies()
        little.nodes["node-2"].shards["m-1.g1.r1"].kill()
        await little.lead()
        await little.until(lambda: little.told("replica.failed"), 10)
        await little.until(lambda: little.serving() and not set(old) & set(little.running()), 30)
        assert little.running() == ["m-1.g2.r0", "m-1.g2.r1"]
        assert "rank 1 on node-2 killed by signal 9" in little.told("replica.failed")[0].sentence


async def test_one_shards_death_ends_all_and_all_start_with_a_new_generation(kind, autojump_clock):
    async with little_cluster(kind, TWO, [want(spec=PAIR)]) as little:
        await little.until(little.serving)
        for rank in (1, 0):
            generation = little.there.cluster.rows["m-1"].generation
            little.shard("m-1", rank).kill()
            await little.until(lambda g=generation: little.there.cluster.rows["m-1"].generation > g, 15)
            await little.until(little.serving, 30)
            await little.quiet()
            assert len(little.running()) == 2


async def test_a_replica_is_asked_where_its_engine_is_and_not_where_an_older_row_says(kind, autojump_clock):
    """A restored row knows the ports of a process that has ended since; what it wants is started anew, on others."""
    async with little_cluster(kind, TWO, [want()]) as little:
        await little.until(little.serving)
        home, was = little.home("m-1"), little.there.cluster.rows["m-1"]
        await little.leader_dies()
        home.shards.pop("m-1.g1.r0").kill()
        home.ever.remove("m-1.g1.r0")
        await little.lead()
        await little.until(little.serving, 10)

        row, ports = little.there.cluster.rows["m-1"], little.shard("m-1").seen().ports
        assert was.first_ports != ports
        assert row.first_ports == ports
        assert row.generation == was.generation


async def test_engines_that_the_store_does_not_know_are_named_before_they_are_ended(kind, autojump_clock):
    """As after a restore: what was started since runs, and no row says why."""
    async with little_cluster(kind, TWO, [want()]) as little:
        await little.until(little.serving)
        await little.leader_dies()
        node = little.nodes["node-2"]
        launch = attrs.evolve(little.nodes["node-1"].shards["m-1.g1.r0"].launch, id="m-9.g31.r0", gpus=())
        node.shards["m-9.g31.r0"] = lost = Shard(launch, 8999, Manner())
        little.services.start_soon(lost.run)
        await trio.sleep(0.5)
        await little.lead()
        began = trio.current_time()
        await little.until(lambda: "m-9.g31.r0" not in node.shards, 10)

        (told,) = little.told("leader.store_back", since=began)
        assert told.sentence == "node-2 runs what this store does not know, and is told to end it: m-9.g31.r0"
        assert little.serving() == ["m-1"]


async def test_the_other_ranks_are_wanted_once_rank_0_has_told_its_ports(kind, autojump_clock):
    manners = {"m-1.g1.r0": Manner(starts_s=7)}
    async with little_cluster(kind, TWO, [want(spec=PAIR)], manners=manners) as little:
        await little.until(lambda: little.nodes["node-1"].shards)
        seen = little.nodes["node-1"].shards["m-1.g1.r0"].seen()
        assert seen.ports  # reserved, and not yet sure
        assert seen.state == "starting"
        await trio.sleep(5)
        assert not little.nodes["node-2"].shards
        assert little.shown("m-1")["shards"][1]["why"] == "waits for rank 0's address"
        await little.until(little.serving)
        launch = little.nodes["node-2"].shards["m-1.g1.r1"].launch
        assert f"node-1:{seen.ports['peer']}" in launch.argv


async def test_rank_1_lives_on_while_rank_0s_node_reports_late_to_a_new_leader(kind, autojump_clock):
    async with little_cluster(kind, TWO, [want(spec=PAIR)]) as little:
        await little.until(little.serving)
        ran, first = little.running(), little.home("m-1", 0)
        first.cut = True
        began = await began_again(little)
        await trio.sleep(20)
        assert little.now["m-1"].standing == "unknown"
        assert little.running() == ran
        first.cut = False
        await little.until(little.serving)
        await little.quiet()
        assert little.running() == ran
        assert not little.told(*STARTS_AND_STOPS, since=began)


async def test_a_replica_of_a_node_that_never_reports_is_unknown_and_replaced_after_the_grace(kind, autojump_clock):
    nodes = {"node-1": 1, "node-2": 1, "node-3": 1}
    async with little_cluster(kind, nodes, [want(n=2)]) as little:
        await little.until(lambda: len(little.serving()) == 2)
        lost = little.home("m-1")
        lost.cut = True
        began = await began_again(little)
        await trio.sleep(50)
        shown = little.shown("m-1")
        assert shown["state"] == "unknown"
        assert shown["why"] == f"{lost.name} is unknown, silent for 50 s"
        assert not little.told(*STARTS_AND_STOPS, since=began)
        await little.until(lambda: little.serving() == ["m-2", "m-3"], 20)
        await little.until(lambda: little.told("replica.stopping"), 20)
        lost.cut = False
        await little.until(lambda: len(little.running()) == 2, 20)
        await little.quiet()
        assert sorted(little.there.cluster.rows) == ["m-2", "m-3"]


async def test_a_new_leader_that_hears_few_of_its_nodes_doubts_itself(kind, autojump_clock):
    nodes = {f"node-{i}": 1 for i in range(5)}
    async with little_cluster(kind, nodes, [want(n=3)]) as little:
        await little.until(lambda: len(little.serving()) == 3)
        ran = little.running()
        for node in list(little.nodes.values())[:3]:
            node.cut = True
        began = await began_again(little)
        await trio.sleep(300)
        assert "3 of 5 nodes are silent" in little.there.cluster.hold
        assert not little.told("replica.leaving", "replica.stopping", "replica.failed", since=began)
        assert set(ran) <= set(little.running())


async def test_a_crash_loops_pause_outlives_its_leader(kind, autojump_clock):
    manners = {"m": Manner(dies_after_s=0.5, ready_after_s=10)}
    async with little_cluster(kind, TWO, [want()], manners=manners) as little:
        await little.until(lambda: len(little.told("replica.failed")) == 7, 200)
        began = await began_again(little)
        await trio.sleep(40)
        assert not little.told("replica.started", since=began)
        assert little.shown("m-1")["state"] == "crash loop"
        await little.until(lambda: little.told("replica.started", since=began), 40)
        await little.until(lambda: little.told("replica.failed", since=began), 10)
        assert "(crash 8 in a row)" in little.told("replica.failed", since=began)[0].sentence


async def test_what_was_leaving_goes_on_leaving(kind, autojump_clock):
    async with little_cluster(kind, TWO, [want(n=2)]) as little:
        await little.until(lambda: len(little.serving()) == 2)
        for node in little.nodes.values():
            node.leave_network()  # so that nobody can say that they are idle
        little.want(want(n=1))
        await little.until(lambda: little.told("replica.leaving"))
        for node in little.nodes.values():
            node.off_network = False
        await began_again(little)
        await little.until(lambda: len(little.there.cluster.rows) == 1, 30)
        await little.until(lambda: len(little.running()) == 1, 30)
        await little.until(lambda: len(little.serving()) == 1)


async def test_an_engine_whose_node_has_not_reported_yet_is_asked_where_it_was(kind, autojump_clock):
    """Agent and control plane went together: the engine serves on, and answers with its own key."""
    async with little_cluster(kind, {"node-1": 1}, [want()]) as little:
        await little.until(little.serving)
        await little.quiet()  # where it is, is stored
        await little.leader_dies()
        little.nodes["node-1"].cut = True
        await little.lead()
        await little.until(lambda: little.routed() == ["m-1.g1"], 10)
        assert little.now["m-1"].standing == "unknown"
