"""Engines that come up slowly, too early, or not at all; claims let go in every phase (C10, C18, C35, C36, C42)."""

from itertools import pairwise

import attrs
import pytest
import trio

from llmgw.control.node_views import find_shard, tail_of
from llmgw.core.claims import board_of
from llmgw.core.replicas import ReplicaLimits
from llmgw.core.shards import Exit
from llmgw.wire.agent_frames import Tail
from tests.control.little_cluster import SPEC, little_cluster, want
from tests.control.little_nodes import Manner

ONE_GPU = {"node-1": 1}


def claims(little):
    """By GPU."""
    seen = little.there.cluster.observe()
    offers = board_of(seen.nodes, seen.replicas.values()).offers()
    return {
        gpu.gpu.uuid: [claim.instance for claim in gpu.claims] for node in offers for gpu in node.gpus if gpu.claims
    }


# -- C10 --------------------------------------------------------------------------------------------


async def test_a_start_that_gets_on_may_take_longer_than_its_limit(tmp_path, autojump_clock):
    spec = attrs.evolve(SPEC, start_within_s=15)
    manners = {"m": Manner(health_after_s=20, ready_after_s=20)}
    async with little_cluster(tmp_path, ONE_GPU, [want(spec=spec)], manners=manners) as little:
        await little.until(little.serving)
        assert autojump_clock.current_time() > 20
        assert not little.told("replica.failed")


async def test_a_start_without_progress_fails_and_is_tried_again_for_ever(tmp_path, autojump_clock):
    spec = attrs.evolve(SPEC, start_within_s=15)
    manners = {"m": Manner(health_after_s=1e6, ready_after_s=1e6, gets_on=False)}
    limits = ReplicaLimits(restart_backoff=1, restart_backoff_max=60)
    async with little_cluster(tmp_path, ONE_GPU, [want(spec=spec)], limits, manners=manners) as little:
        await trio.sleep(900)
        failed = little.told("replica.failed")
        assert len(failed) >= 10
        assert "no progress for 16 s while it started: /health answered 503 loading" in failed[0].sentence
        begun = [one.at for one in little.told("replica.started")]
        pauses = [later - earlier for earlier, later in pairwise(begun)]
        assert all(later >= earlier - 1.5 for earlier, later in pairwise(pauses))
        assert 75 <= pauses[-1] <= 80  # the longest pause, and the limit
        assert little.shown("m-1")["crashes"] >= 10
        little.manners["m"] = Manner()
        await little.until(little.serving, 90)


# -- C18 --------------------------------------------------------------------------------------------


async def test_a_replica_is_in_the_pool_once_it_answered_and_not_when_it_is_healthy(tmp_path, autojump_clock):
    manners = {"m": Manner(health_after_s=1, ready_after_s=20)}
    async with little_cluster(tmp_path, ONE_GPU, [want()], manners=manners) as little:
        await little.until(lambda: little.now["m-1"].standing == "loading" if "m-1" in little.now else False)
        launched = autojump_clock.current_time()
        await little.until(little.routed)
        assert 19 <= autojump_clock.current_time() - launched <= 31
        assert little.serving() == ["m-1"]
        assert len(little.told("replica.started")) == 1


async def test_while_it_is_healthy_and_answers_nothing_it_says_so(tmp_path, autojump_clock):
    manners = {"m": Manner(health_after_s=1, ready_after_s=500)}
    async with little_cluster(tmp_path, ONE_GPU, [want()], manners=manners) as little:
        await trio.sleep(60)
        shown = little.shown("m-1")
        assert shown["state"] == "loading"
        assert shown["why"] == "no answer to a request for one token within 10 s"
        assert not little.routed()


# -- C36 --------------------------------------------------------------------------------------------


async def test_the_old_one_stays_while_the_new_one_dies_after_five_seconds(tmp_path, autojump_clock):
    manners = {"m-2": Manner(dies_after_s=5)}
    async with little_cluster(tmp_path, {"node-1": 2}, [want()], manners=manners) as little:
        await little.until(little.serving)
        began = autojump_clock.current_time()
        little.want(want(spec=attrs.evolve(SPEC, args=("--new",))))
        await little.until(lambda: len(little.told("replica.failed", since=began)) >= 4, 120)
        assert not little.told("replica.leaving")
        assert "m-1.g1" in little.routed()
        little.manners["m-2"] = Manner()
        await little.until(lambda: little.serving() == ["m-2"], 120)
        [leaving] = little.told("replica.leaving")
        ready = little.told("replica.ready")[-1]
        assert ready.subject == "m-2"
        assert leaving.at - ready.at >= little.limits.healthy_min


async def test_time_out_of_the_pool_does_not_count_as_healthy(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, {"node-1": 2}, [want()]) as little:
        await little.until(little.serving)
        little.want(want(spec=attrs.evolve(SPEC, args=("--new",))))
        await little.until(lambda: little.serving() == ["m-1", "m-2"])
        node, id = little.home("m-2"), little.there.cluster.rows["m-2"].endpoint_id
        proof = little.there.cluster.proofs[id]
        little.there.cluster.proofs[id] = attrs.evolve(proof, failures=2, why="set by the test")
        await little.until(lambda: little.serving() == ["m-1"], 3)
        await little.until(lambda: little.serving() == ["m-1", "m-2"], 5)
        assert little.now["m-2"].healthy_s < 1
        assert node.running()


# -- C35 --------------------------------------------------------------------------------------------


async def test_crash_loops_are_not_busy_and_a_new_spec_is_taken_up_at_once(tmp_path, autojump_clock):
    manners = {"m": Manner(dies_after_s=0.5, ready_after_s=10)}
    async with little_cluster(tmp_path, {"node-1": 3}, [want(n=3)], manners=manners) as little:
        await little.until(lambda: all(little.shown(name)["crashes"] >= 3 for name in little.now) and little.now)
        await little.until(lambda: all(little.shown(name)["state"] == "crash loop" for name in little.now), 120)
        little.manners["m"] = Manner()
        little.want(want(n=3, spec=attrs.evolve(SPEC, args=("--good",))))
        assert await little.until(lambda: len(little.serving()) == 3) < 10
        assert little.serving() == ["m-1", "m-2", "m-3"]


async def test_crash_loops_end_at_once_when_they_are_not_wanted(tmp_path, autojump_clock):
    manners = {"m": Manner(dies_after_s=0.5, ready_after_s=10)}
    async with little_cluster(tmp_path, {"node-1": 3}, [want(n=3)], manners=manners) as little:
        await little.until(lambda: little.now and all(little.shown(name)["crashes"] >= 3 for name in little.now))
        little.want(want(n=0))
        assert await little.until(lambda: not little.there.cluster.rows) < 5


async def test_an_unreachable_engine_is_not_taken_for_idle(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, {"node-1": 1}, [want()]) as little:
        await little.until(little.serving)
        node = little.home("m-1")
        node.leave_network()  # its agent reports, its engine can't be asked
        little.want(want(n=0))
        began = autojump_clock.current_time()
        await little.until(lambda: little.told("replica.leaving"))
        await trio.sleep(60)
        assert not little.told("replica.stopping", since=began)
        assert node.running()
        node.off_network = False
        await little.until(lambda: not node.running(), 10)


# -- C42 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("manner", "when"),
    [
        (Manner(starts_s=5), "starting"),
        (Manner(health_after_s=30, ready_after_s=30), "loading"),
        (Manner(), "serving"),
    ],
)
async def test_a_claim_ends_with_a_crash_in_whatever_phase(tmp_path, autojump_clock, manner, when):
    """The one GPU is free for another model while the one that crashed waits for its next try."""
    manners = {"m": manner}
    limits = ReplicaLimits(restart_backoff=300)
    wants = [want(), want("other", n=0)]
    async with little_cluster(tmp_path, ONE_GPU, wants, limits, manners=manners) as little:
        await little.until(lambda: "m-1" in little.now and little.now["m-1"].standing == when)
        await little.until(lambda: little.nodes["node-1"].shards)
        assert claims(little) == {"GPU-node-1-0": ["m-1.g1.r0"]}
        little.shard("m-1").kill()
        await little.until(lambda: little.told("replica.failed"))
        await little.until(lambda: not claims(little), 5)
        little.want(want("other"))
        await little.until(lambda: little.serving("other"))


@pytest.mark.parametrize("when", ["starting", "loading", "serving"])
async def test_a_claim_ends_with_a_stop_in_whatever_phase(tmp_path, autojump_clock, when):
    manners = {"m": Manner(starts_s=3, health_after_s=3, ready_after_s=3)}
    async with little_cluster(tmp_path, ONE_GPU, [want()], manners=manners) as little:
        await little.until(lambda: "m-1" in little.now and little.now["m-1"].standing == when)
        little.want(want(n=0))
        await little.until(lambda: not little.there.cluster.rows)
        assert not claims(little)
        await little.until(lambda: not little.nodes["node-1"].shards, 5)


async def test_a_claim_stays_until_the_memory_is_back(tmp_path, autojump_clock):
    manners = {"m": Manner(releases_s=20)}
    limits = ReplicaLimits(restart_backoff=300)
    async with little_cluster(tmp_path, ONE_GPU, [want()], limits, manners=manners) as little:
        await little.until(little.serving)
        little.shard("m-1").kill()
        killed = autojump_clock.current_time()
        await little.until(lambda: little.told("replica.failed"))
        assert claims(little)
        assert not little.routed()
        await little.until(lambda: not claims(little))
        assert 20 <= autojump_clock.current_time() - killed <= 23


async def test_why_an_engine_failed_is_told_with_its_last_words_and_they_are_kept(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, {"node-1": 1}, [want()]) as little:
        await little.until(little.serving)
        node = little.there.registry.nodes["node-1"]
        node.said(Tail("m-1.g1.r0", "loading\nlibcuda.so.1: cannot open shared object file\n\n"), trio.current_time())
        little.shard("m-1").kill(Exit(code=127))
        await little.until(lambda: little.told("replica.failed"))
        assert little.told("replica.failed")[0].data["why"] == (
            "on node-1 exited with 127; its last line: libcuda.so.1: cannot open shared object file"
        )
        waiting = attrs.evolve(little.there.cluster.rows["m-1"], generation=1, shards=())
        little.there.cluster.rows["m-1"] = waiting
        assert find_shard(little.there.cluster, "m-1", 0) == ("node-1", "m-1.g1.r0")
        assert "libcuda" in (tail_of(little.there.cluster, "node-1", "m-1.g1.r0") or ("",))[0]
