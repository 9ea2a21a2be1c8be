"""What a drain is told to wait for: where successors are, and what would help."""

import trio

from llmgw.control.explaining_drains import ExplainingDrains
from llmgw.core.drain import Target
from llmgw.core.explain import Explanation
from tests.control.little_cluster import ANN, Little, little_cluster, want
from tests.control.test_endpoints_out_of_service import control, drain

TWO = {"node-1": 1, "node-2": 1}


def explained(little: Little, node: str) -> Explanation:
    told = ExplainingDrains(little.there.targets, little.there.endpoint_targets).drain(node)
    assert isinstance(told, Explanation)
    return told


async def test_a_successor_that_has_its_place_is_told_there_and_not_looked_for_once_more(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, TWO, [want()]) as little:
        await little.until(little.serving)
        node = little.home("m-1").name
        (other,) = set(TWO) - {node}
        await little.there.targets.aim(ANN, node, Target.DRAINED)
        await little.until(lambda: "m-2" in little.now and little.now["m-2"].shards)
        (move,) = explained(little, node).candidates
        assert move.name == f"m-1 -> {other}"
        assert move.reasons[0] == f"m-2 is {little.now['m-2'].standing} there"
        assert little.shown("m-1")["why"] == f"{node} is drained by ann"


async def test_what_would_help_a_blocked_drain_names_its_model(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, {"node-1": 1}, [want()]) as little:
        await little.until(little.serving)
        await little.there.targets.aim(ANN, "node-1", Target.DRAINED)
        await little.until(lambda: (little.there.targets.status("node-1") or {})["state"] == "blocked")
        changes = explained(little, "node-1").would_change_it
        assert changes[0] == "room elsewhere: llmgw ctl explain placement m tells what is in the way"


async def test_an_endpoint_that_is_alone_is_helped_by_another_one(tmp_path, autojump_clock):
    async with control(tmp_path) as made:
        await drain(made, "one/0")
        await trio.sleep(1)
        told = ExplainingDrains(made.targets, made.endpoint_targets).drain("endpoint/one/0")
        assert isinstance(told, Explanation)
        helps = "another endpoint that serves: llmgw ctl endpoints --model one tells what is in the way"
        assert (told.verdict.partition(",")[0], told.would_change_it[0]) == ("blocked", helps)
