"""Where nothing fits, and what is told of it (C14, C34, C40)."""

import attrs
import trio

from llmgw.core.engine_spec import OnFull
from llmgw.core.gpus import Evidence, Severity
from llmgw.store import decisions
from tests.control.little_cluster import SPEC, little_cluster, want
from tests.control.little_nodes import Manner, cards

TWO_CARDS = attrs.evolve(SPEC, gpus=2)
NEW = attrs.evolve(TWO_CARDS, args=("--new",))


# -- C34 --------------------------------------------------------------------------------------------


async def test_on_a_full_node_a_change_waits_says_so_and_the_old_one_serves(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, {"node-1": 2}, [want(spec=TWO_CARDS)]) as little:
        await little.until(little.serving)
        little.want(want(spec=NEW))
        await trio.sleep(120)
        assert little.serving() == ["m-1"]
        shown = little.shown("m-2")
        assert shown["state"] == "waiting"
        assert shown["why"] == "no node fits: 1 short of GPU memory"
        [blocked] = little.told("replica.blocked")
        assert blocked.sentence == "m-2 waits: no node fits: 1 short of GPU memory"
        assert len(little.told("replica.created")) == 2


async def test_stop_first_makes_room_where_policy_allows_it(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, {"node-1": 2}, [want(spec=TWO_CARDS, on_full=OnFull.STOP_FIRST)]) as little:
        await little.until(little.serving)
        little.want(want(spec=NEW, on_full=OnFull.STOP_FIRST))
        await little.until(lambda: little.serving() == ["m-2"])
        await little.quiet()
        said = [one.sentence for one in little.told("replica.blocked", "replica.leaving")]
        assert said[0].startswith("m-1 goes before m-2 starts: it fits nowhere beside m-1")
        assert little.shown("m-2")["up_to_date"]


async def test_the_old_spec_is_restored_when_the_new_one_does_not_come_up(tmp_path, autojump_clock):
    manners = {"m-2": Manner(dies_after_s=0.3, ready_after_s=10)}
    async with little_cluster(
        tmp_path, {"node-1": 2}, [want(spec=TWO_CARDS, on_full=OnFull.STOP_FIRST)], manners=manners
    ) as little:
        await little.until(little.serving)
        little.want(want(spec=NEW, on_full=OnFull.STOP_FIRST))
        await little.until(lambda: little.told("replica.renewed"), 60)
        little.manners.clear()
        await little.until(lambda: little.serving() == ["m-2"])
        await little.quiet()
        assert little.there.cluster.rows["m-2"].spec == TWO_CARDS
        [renewed] = little.told("replica.renewed")
        assert "the new spec did not come up in 3 tries" in renewed.sentence
        assert not little.shown("m-2")["up_to_date"]


async def test_a_spec_that_came_up_once_is_not_rolled_back_for_later_crashes(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, {"node-1": 2}, [want(spec=TWO_CARDS, on_full=OnFull.STOP_FIRST)]) as little:
        await little.until(little.serving)
        little.want(want(spec=NEW, on_full=OnFull.STOP_FIRST))
        await little.until(lambda: little.serving() == ["m-2"])
        await trio.sleep(30)
        little.manners["m-2"] = Manner(dies_after_s=0.3, ready_after_s=10)
        little.shard("m-2").kill()
        await little.until(lambda: len(little.told("replica.failed")) >= 5, 200)
        assert not little.told("replica.renewed")
        assert little.there.cluster.rows["m-2"].spec == NEW


async def test_nobody_takes_the_place_that_was_made_for_another(tmp_path, autojump_clock):
    """Another model has waited for a place there for longer."""
    wants = [want("first", spec=TWO_CARDS, on_full=OnFull.STOP_FIRST)]
    async with little_cluster(tmp_path, {"node-1": 2}, wants) as little:
        await little.until(lambda: little.serving("first"))
        little.want(want("other", n=2))
        await little.until(lambda: len(little.told("replica.blocked")) == 2)
        little.want(want("first", spec=NEW, on_full=OnFull.STOP_FIRST))
        await little.until(lambda: little.told("replica.leaving"))
        await little.until(lambda: little.serving("first") and little.shown(little.serving("first")[0])["up_to_date"])
        assert not little.serving("other")


# -- C14 --------------------------------------------------------------------------------------------


def excluded(card):
    return attrs.evolve(
        card, evidence=(Evidence("xid 79", Severity.EXCLUDED, "fell off the bus", 1, 1, "a reboot of the machine"),)
    )


async def test_an_excluded_gpu_gets_nothing_new_and_what_runs_there_stays(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, {"node-1": 2}, [want()]) as little:
        await little.until(little.serving)
        node, began = little.nodes["node-1"], trio.current_time()
        used = little.now["m-1"].replica.shards[0].gpus[0]
        node.gpus = tuple(excluded(card) for card in node.gpus)
        await little.until(lambda: len(little.told("gpu.evidence")) == 2)
        little.want(want(n=2))
        await trio.sleep(120)
        assert little.running() == ["m-1.g1.r0"]
        assert little.serving() == ["m-1"]
        assert not little.told("replica.leaving", "replica.failed", "replica.stopping", since=began)
        said = await little.explaining().placement("m-2")
        assert {used in one.name for one in said.candidates if "xid 79" in " ".join(one.reasons)} == {True, False}
        node.gpus = cards("node-1", 2)
        await little.until(lambda: len(little.serving()) == 2, 10)
        assert len(little.told("gpu.cleared")) == 2


# -- C40 --------------------------------------------------------------------------------------------


async def test_where_nothing_fits_every_gpu_is_named_with_its_numbers(tmp_path, autojump_clock):
    shared = attrs.evolve(SPEC, gpu_memory_mib=4096, exclusive=False)
    big = attrs.evolve(SPEC, gpu_memory_mib=21 * 1024, exclusive=False)
    async with little_cluster(tmp_path, {"node-2": 0}, [want("small", spec=shared)]) as little:
        little.node("node-1", cards=cards("node-1", 2, foreign_mib=2048))
        await little.leader_dies()
        await little.lead()
        await little.until(lambda: little.serving("small"))
        little.want(want("big", spec=attrs.evolve(big, gpus=2)))
        await little.until(lambda: little.told("replica.blocked"))
        said = await little.explaining().placement("big-2")
        assert said.verdict == "no node fits: 1 short of GPU memory, 1 without GPUs"
        found = {one.name: one.reasons for one in said.candidates}
        assert found["node-1"] == ("needs 2 GPUs, 1 of 2 would do",)
        assert found["node-2"] == ("needs 2 GPUs, 0 of 0 would do",)
        assert found["node-1 GPU 0 (Sim 24G, GPU-node-1-0)"] == (
            "needs 21.0 GiB, free 18.0 (claimed 4.0, foreign 2.0)",
        )
        assert found["node-1 GPU 1 (Sim 24G, GPU-node-1-1)"] == (
            "would do by itself: free 22.0 GiB (claimed 0.0, foreign 2.0)",
        )
        [kept] = await little.there.store.read(lambda conn: [decisions.latest(conn, "big-2")])
        assert {one["name"]: tuple(one["reasons"]) for one in kept.told["candidates"]} == found
