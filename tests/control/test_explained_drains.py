"""What a drain is told to wait for: where successors are, and what would help."""

import trio

from llmgw.control.explaining_drains import ExplainingDrains
from llmgw.core.drain import AtDeadline, Target
from llmgw.core.explain import Explanation
from llmgw.core.identity import Declined
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


def texts(told: Explanation | Declined) -> list[str]:
    assert isinstance(told, Explanation)
    return [fact.text for fact in told.because]


async def test_of_what_nobody_drained_it_tells_what_a_drain_would_do_and_no_time_where_nothing_can_go(
    tmp_path, autojump_clock
):
    async with little_cluster(tmp_path, {**TWO, "node-3": 1}, [want("a", 2)]) as little:
        await little.until(lambda: len(little.serving("a")) == 2)
        home = little.home("a-1").name
        (free,) = {"node-1", "node-2", "node-3"} - {little.home(name).name for name in little.serving("a")}
        assert "no replica is on it" in texts(explained(little, free))
        told = explained(little, home)
        assert (told.verdict, told.candidates[0].name) == ("it is not drained", f"a-1 -> {free}")
        assert texts(told)[1].startswith("to drain it takes about ")
        await little.there.targets.aim(ANN, free, Target.CORDONED)
        told = explained(little, home)
        assert texts(told)[1:] == ["1 of 1 replicas on it can go nowhere now, and would serve on"]
        assert told.candidates[0].reasons[0].startswith("no node fits: ")


async def test_an_endpoint_that_nobody_drained_is_explained_and_one_that_is_not_there_is_not(tmp_path, autojump_clock):
    async with control(tmp_path) as made:
        explaining = ExplainingDrains(made.targets, made.endpoint_targets)
        told = explaining.drain("endpoint/m/0")
        assert texts(told) == ["m/1 serves on: it would get no new request at once", "it has no request"]
        assert isinstance(told, Explanation)
        assert (told.verdict, told.next_command) == (
            "it is not drained",
            "llmgw ctl drain endpoint/m/0 --dry-run",
        )
        alone = "no other endpoint of one serves: it would serve on until another does"
        assert texts(explaining.drain("endpoint/one/0"))[0] == alone
        unknown = explaining.drain("endpoint/m/7")
        assert isinstance(unknown, Declined)
        assert (unknown.code, unknown.message) == ("not_found", "no endpoint is called 'm/7'")
        assert "did you mean 'm/" in unknown.hint


async def test_a_drain_that_ended_blocked_is_helped_by_another_ask(tmp_path, autojump_clock):
    async with little_cluster(tmp_path / "nodes", {"node-1": 1}, [want()]) as little:
        await little.until(little.serving)
        await little.there.targets.aim(ANN, "node-1", Target.DRAINED, "", 10, AtDeadline.KEEP)
        await little.until(lambda: (little.there.targets.status("node-1") or {})["left_s"] is None)
        told = explained(little, "node-1")
        assert told.would_change_it == (
            "room elsewhere, and `llmgw ctl drain node-1` begins anew: llmgw ctl explain placement m tells what is in "
            "the way",
            "llmgw ctl uncordon node-1 brings it back into service",
        )
        assert told.next_command == "llmgw ctl drain node-1 --dry-run"
    async with control(tmp_path) as made:
        await drain(made, "one/0", grace_s=1, at_deadline=AtDeadline.KEEP)
        await trio.sleep(5)
        ended = ExplainingDrains(made.targets, made.endpoint_targets).drain("endpoint/one/0")
        assert isinstance(ended, Explanation)
        assert ended.would_change_it[-1] == "llmgw ctl uncordon endpoint/one/0 forgets the drain; it serves as it is"


async def test_the_answer_to_a_drain_tells_where_replicas_go_now(tmp_path, autojump_clock):
    """What was planned when it was asked for first is old by then."""
    async with little_cluster(tmp_path, {"node-1": 1, "node-2": 1}, [want()]) as little:
        await little.until(little.serving)
        node = little.home("m-1").name
        (other,) = {"node-1", "node-2"} - {node}
        first = await little.there.targets.aim(ANN, node, Target.DRAINED, "", 900)
        assert [move["to"] for move in first["plan"]["moves"]] == [[other]]
        await little.until(lambda: "m-2" in little.now and little.now["m-2"].shards)
        again = await little.there.targets.aim(ANN, node, Target.DRAINED)
        assert [(move["to"], move["why"]) for move in again["plan"]["moves"]] == [
            ([other], f"m-2 is {little.now['m-2'].standing} there")
        ]
        await little.until(lambda: "m-1" not in little.now)
        last = await little.there.targets.aim(ANN, other, Target.DRAINED, "", 900)
        assert [(move["to"], move["blocked"]) for move in last["plan"]["moves"]] == [([], True)]
