"""Cordon, drain, move and purge over a real store, real passes and engines in memory (C26, C29-C33, C36)."""

import math
from functools import partial
from typing import Any

import attrs
import pytest
import trio
from attrs import frozen

from llmgw.core.actions import Plan
from llmgw.core.drain import AtDeadline, DrainLimits, Target
from llmgw.core.drain_plan import Requests
from llmgw.core.gpus import Evidence, Severity
from llmgw.core.identity import Declined, Operator, Role
from llmgw.core.replicas import Phase
from llmgw.nodes.limits import ClusterLimits
from llmgw.store import audit
from tests.control.little_cluster import ANN, SPEC, Little, little_cluster, want
from tests.control.little_nodes import Manner

BEN = Operator("ben", Role.OPERATOR)
TWO = {"node-1": 1, "node-2": 1}
SICK = Evidence("xid 79", Severity.EXCLUDED, "it fell off the bus", 1.0, 1.0, "a reboot")


async def aim(little: Little, node: str, target: Target, why: str = "fans", **more: Any) -> Any:
    return await little.there.targets.aim(ANN, node, target, why, **more)


def drain(little: Little, node: str, **more: Any) -> Any:
    return aim(little, node, Target.DRAINED, **more)


def busy(little: Little, replica: str, number: int, oldest_s: float = 0.0) -> None:
    """Requests of this gateway at a replica, as it would count them."""
    id = little.there.cluster.rows[replica].endpoint_id
    live = little.there.cluster.live.find(id)
    assert live is not None
    live.in_flight = number
    little.there.requests[id] = Requests(number, oldest_s)


def state(little: Little, node: str) -> dict[str, Any]:
    status = little.there.targets.status(node)
    assert status is not None
    return status


# -- drain ------------------------------------------------------------------------------------------


async def test_a_drained_node_ends_with_no_process_and_serving_never_falls(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, TWO, [want()]) as little:
        await little.until(little.serving)
        home = little.home("m-1")
        answer = await drain(little, home.name)
        assert answer["confirmed"]
        assert answer["drain"]["state"] == "draining"
        while state(little, home.name)["left_s"] is not None:
            assert little.serving(), little.story()
            await trio.sleep(0.1)
        assert state(little, home.name)["state"] == "drained"
        assert state(little, home.name)["replaced"] == ["m-1"]
        assert home.running() == []
        assert little.serving() == ["m-2"]
        ended = little.told("node.target")[-1].sentence
        assert ended.startswith(f"{home.name} is drained after ")
        assert ended.endswith("no process is left, 0 requests were cut")


async def test_a_dry_run_names_the_places_that_the_drain_then_takes(tmp_path, autojump_clock):
    many = {f"node-{i}": 2 for i in range(5)}
    wants = [want("a", 2), want("b", 2), want("c", 1, attrs.evolve(SPEC, gpus=2)), want("d", 1)]
    async with little_cluster(tmp_path, many, wants) as little:
        await little.until(lambda: all(len(little.serving(one.model)) == one.replicas for one in wants))
        node = little.home("a-1").name
        here = {name for name, now in little.now.items() if any(s.node == node for s in now.shards)}
        dry = await drain(little, node, dry_run=True)
        assert dry["dry_run"]
        assert little.there.joining.nodes[node].target == "schedulable"
        plan = {move["replica"]: move["to"] for move in dry["plan"]["moves"]}
        assert plan.keys() == here
        assert all(plan.values())
        successors = {}
        await drain(little, node)
        while state(little, node)["left_s"] is not None:
            successors |= {now.replica.replaces: [s.node for s in now.shards] for now in little.now.values() if
                           now.replica.replaces and now.shards}  # fmt: skip
            await trio.sleep(0.1)
        assert successors == plan


async def test_a_drain_waits_for_requests_and_says_for_which(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, TWO, [want()]) as little:
        await little.until(little.serving)
        node = little.home("m-1").name
        busy(little, "m-1", 2, 340)
        await drain(little, node)
        await little.until(lambda: little.now["m-1"].replica.phase is Phase.LEAVING)
        await trio.sleep(30)
        assert state(little, node)["waits_on"] == ["m-1 finishes 2 requests, oldest 340 s"]
        assert little.running() == ["m-1.g1.r0", "m-2.g2.r0"]
        busy(little, "m-1", 0)
        await little.until(lambda: state(little, node)["state"] == "drained")
        assert state(little, node)["cut"] == 0


async def test_a_request_that_never_ends_is_cut_at_the_end_of_the_grace(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, TWO, [want()]) as little:
        await little.until(little.serving)
        node, began = little.home("m-1").name, trio.current_time()
        busy(little, "m-1", 1)
        await drain(little, node, grace_s=60)
        await little.until(lambda: state(little, node)["state"] == "drained", 120)
        assert 60 <= trio.current_time() - began < 75
        assert state(little, node)["cut"] == 1


async def test_the_only_node_that_can_host_serves_says_so_and_is_stopped_at_the_end(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, {"node-1": 1}, [want()]) as little:
        await little.until(little.serving)
        await drain(little, "node-1", grace_s=50, at_deadline=AtDeadline.STOP)
        await little.until(lambda: state(little, "node-1")["state"] == "blocked")
        assert state(little, "node-1")["waits_on"] == ["m-1 is blocked: no node fits: 1 drained"]
        began = trio.current_time()
        while trio.current_time() - began < 40:
            assert little.serving() == ["m-1"]
            await trio.sleep(1)
        await little.until(lambda: state(little, "node-1")["state"] == "drained")
        assert little.running() == []


async def test_or_kept_and_the_drain_ends_blocked(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, {"node-1": 1}, [want()]) as little:
        await little.until(little.serving)
        await drain(little, "node-1", grace_s=50, at_deadline=AtDeadline.KEEP)
        await trio.sleep(200)
        told = state(little, "node-1")
        assert (told["state"], told["left_s"]) == ("blocked", None)
        assert "it stays cordoned: m-1 is blocked: no node fits" in told["said"]
        assert little.serving() == ["m-1"]
        assert len([one for one in little.told("node.target") if "ends blocked" in one.sentence]) == 1
        # Room comes: it is drained when it is asked for again, and not before.
        little.node("node-2")
        await little.leader_dies()
        await little.lead()
        await little.until(little.serving)
        await trio.sleep(60)
        assert little.serving() == ["m-1"]
        await drain(little, "node-1")
        await little.until(lambda: state(little, "node-1")["state"] == "drained")
        assert little.home(little.serving()[0]).name == "node-2"


async def test_a_drain_ends_though_an_engine_does_not(tmp_path, autojump_clock):
    """C31, C26: done is processes gone, and one stuck stop holds up no other."""
    manners = {"a": Manner(stops_s=math.inf)}
    nodes = {"node-1": 2, "node-2": 2}
    async with little_cluster(tmp_path, nodes, [want("a"), want("b")], manners=manners) as little:
        await little.until(lambda: little.serving("a") and little.serving("b"))
        if little.home("a-1") is not little.home("b-2"):
            there = little.home("a-1").name
            await little.acting().move(ANN, "b-2", [there])
            await little.until(lambda: all(little.home(one).name == there for one in little.serving("b")))
        node = little.home("a-1")
        await drain(little, node.name, grace_s=60)
        await little.until(lambda: node.running() == ["a-1.g1.r0"])
        assert state(little, node.name)["waits_on"][0].startswith("a-1 ends")
        await little.until(lambda: state(little, node.name)["left_s"] is None, 200)
        told = state(little, node.name)
        assert told["state"] == "blocked"
        assert "a-1 ends" in told["said"]


async def test_a_drain_outlives_its_control_plane_and_ends_once(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, TWO, [want()], manners={"m-2": Manner(ready_after_s=20)}) as little:
        await little.until(little.serving)
        node = little.home("m-1")
        await drain(little, node.name)
        await little.until(lambda: "m-2" in little.now)
        for _ in range(3):
            await little.leader_dies()
            await trio.sleep(2)
            await little.lead()
            await trio.sleep(3)
        await little.until(lambda: state(little, node.name)["state"] == "drained")
        assert node.running() == []
        assert little.serving() == ["m-2"]
        assert len([one for one in little.told("node.target") if "is drained after" in one.sentence]) == 1
        record = little.there.joining.nodes[node.name]
        assert (record.target, record.target_by, record.target_why) == ("drained", "ann", "fans")


async def test_a_drain_is_undone_at_any_step(tmp_path, autojump_clock):
    for step in (0.0, 1.0, 5.0, 12.0, 20.0, 30.0):
        async with little_cluster(tmp_path / str(step), TWO, [want()]) as little:
            await little.until(little.serving)
            node = little.home("m-1").name
            busy(little, "m-1", 1)
            await drain(little, node)
            began = trio.current_time()
            while trio.current_time() - began < step:
                assert little.serving()
                await trio.sleep(0.1)
            said = await aim(little, node, Target.SCHEDULABLE)
            assert said["said"] == f"{node} is schedulable"
            busy(little, "m-1", 0)
            for _ in range(600):
                assert little.serving()
                await trio.sleep(0.1)
            assert little.serving() == ["m-1"]
            assert [id for id in little.running() if not id.startswith("m-1.g1")] == []
            assert little.there.targets.status(node) is None


async def test_two_nodes_drained_at_once_with_room_for_one_do_not_dead_lock(tmp_path, autojump_clock):
    nodes = {"node-1": 1, "node-2": 1, "node-3": 1}
    async with little_cluster(tmp_path, nodes, [want("a"), want("b")]) as little:
        await little.until(lambda: little.serving("a") and little.serving("b"))
        a, b = little.home("a-1").name, little.home("b-2").name
        await drain(little, a, grace_s=300)
        await drain(little, b, grace_s=300)
        await little.until(lambda: "drained" in (state(little, a)["state"], state(little, b)["state"]))
        await trio.sleep(30)
        assert sorted([state(little, a)["state"], state(little, b)["state"]]) == ["blocked", "drained"]
        assert little.serving("a")
        assert little.serving("b")


async def test_one_whose_estimate_exceeds_the_grace_is_refused_and_both_are_named(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, TWO, [want()]) as little:
        await little.until(little.serving)
        little.there.targets.limits = lambda: DrainLimits(grace=5.0)
        node = little.home("m-1").name
        refused = await drain(little, node)
        assert isinstance(refused, Declined)
        assert refused.code == "too_short"
        assert f"draining {node} takes about " in refused.message
        assert refused.message.endswith("and drain.grace is 5 s")
        assert (await drain(little, node, dry_run=True))["refused"] == refused.message
        assert (await drain(little, node, dry_run=True, grace_s=5))["refused"] == ""
        assert little.there.joining.nodes[node].target == "schedulable"
        assert (await drain(little, node, at_deadline=AtDeadline.STOP))["confirmed"]


async def test_asked_twice_it_is_one_drain(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, TWO, [want()]) as little:
        await little.until(little.serving)
        node = little.home("m-1").name
        busy(little, "m-1", 1)
        first = await drain(little, node, grace_s=500)
        await trio.sleep(20)
        again = await drain(little, node, why="other")
        assert first["drain"]["left_s"] - again["drain"]["left_s"] == pytest.approx(20, abs=0.2)
        # Another grace is another end.
        other = await drain(little, node, grace_s=100)
        assert other["drain"]["left_s"] == 100


async def acts(little: Little) -> list[tuple[str, str]]:
    return [(act.who, act.why) for act in await little.there.store.read(audit.recent) if act.what == "nodes.target"]


@pytest.mark.parametrize("target", [Target.CORDONED, Target.DRAINED])
async def test_the_last_word_counts_and_each_is_audited(target, tmp_path, autojump_clock):
    async with little_cluster(tmp_path, TWO, [want()]) as little:
        await little.until(little.serving)
        node = little.home("m-1").name
        busy(little, "m-1", 1)
        await aim(little, node, target, "one")
        since = little.there.joining.nodes[node].target_at
        await trio.sleep(20)
        for why in ("two", "two", ""):  # the same again, and nothing, are no other words
            await aim(little, node, target, why)
        record = little.there.joining.nodes[node]
        assert (record.target_by, record.target_why, record.target_at) == ("ann", "two", since)
        await little.there.targets.aim(BEN, node, target, "two")
        assert little.there.joining.nodes[node].target_by == "ben"
        assert await acts(little) == [("ben", "two"), ("ann", "two"), ("ann", "one")]


async def test_what_is_not_said_again_leaves_a_drain_as_it_was(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, TWO, [want()]) as little:
        await little.until(little.serving)
        node = little.home("m-1").name
        busy(little, "m-1", 1)
        await drain(little, node, grace_s=500, at_deadline=AtDeadline.KEEP)
        await little.until(lambda: state(little, node)["replaced"] == ["m-1"])
        await drain(little, node, grace_s=100, why="")
        told = state(little, node)
        assert (told["left_s"], told["at_deadline"], told["replaced"]) == (100, "keep", ["m-1"])
        await drain(little, node, at_deadline=AtDeadline.STOP, why="hurry")
        told = state(little, node)
        assert (told["left_s"], told["at_deadline"]) == (100, "stop")
        assert little.there.joining.nodes[node].target_why == "hurry"


async def test_a_silent_node_is_never_said_to_be_drained(tmp_path, autojump_clock):
    """C35: unreachable is not idle."""
    async with little_cluster(tmp_path, TWO, [want()]) as little:
        await little.until(little.serving)
        node = little.home("m-1")
        node.cut = True
        await little.until(lambda: little.there.cluster.nodes(trio.current_time())[node.name].trouble != "")
        answer = await drain(little, node.name, grace_s=60)
        assert not answer["confirmed"]
        await trio.sleep(200)
        told = state(little, node.name)
        assert (told["state"], told["left_s"]) == ("blocked", None)
        assert "what runs there is not known" in told["said"]


# -- cordon -----------------------------------------------------------------------------------------


@frozen
class Holding:
    """A pass stands between its plan and what it does, once."""

    applying: Any
    held: trio.Event
    release: trio.Event

    async def apply(self, plan: Plan, more: Any = ()) -> None:
        if plan.actions and not self.held.is_set():
            self.held.set()
            await self.release.wait()
        await self.applying.apply(plan, more)


async def test_a_cordon_is_answered_after_the_pass_that_was_placing(tmp_path, autojump_clock):
    """A pass held between plan and apply keeps it from answering; a hundred scale-ups after it place nothing there."""
    nodes = {f"node-{i}": 4 for i in range(3)}
    async with little_cluster(tmp_path, nodes, [want()]) as little:
        await little.until(little.serving)
        held, release = trio.Event(), trio.Event()
        little.there.passes.applying = Holding(little.there.passes.applying, held, release)
        little.want(want(n=12))
        await held.wait()
        answered = []

        async def cordon() -> None:
            answered.append(await aim(little, "node-1", Target.CORDONED))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cordon)
            await trio.sleep(3)
            assert answered == []
            release.set()
        assert answered[0]["said"] == "node-1 is cordoned"
        assert answered[0]["confirmed"]
        there = sorted(little.nodes["node-1"].ever)
        for number in range(100):
            little.want(want(n=1 + number % 12))
            await trio.sleep(0.3)
        await little.quiet(within_s=600)
        assert sorted(little.nodes["node-1"].ever) == there


async def test_with_an_agent_that_is_silent_a_cordon_is_answered_within_five_seconds_unconfirmed(
    tmp_path, autojump_clock
):
    async with little_cluster(tmp_path, TWO, [want()], times=ClusterLimits()) as little:
        await little.until(little.serving)
        node = next(one for one in little.nodes.values() if not one.running())
        node.deaf = True
        little.want(want(n=2))
        await little.until(lambda: "m-2" in little.now and little.now["m-2"].shards)
        began = trio.current_time()
        answer = await aim(little, node.name, Target.CORDONED)
        assert 4.9 < trio.current_time() - began < 5.2
        assert not answer["confirmed"]
        assert answer["may_still_start"] == ["m-2.g2.r0"]
        assert answer["said"].startswith(f"{node.name} is cordoned, unconfirmed: it has not obeyed rev ")
        assert answer["said"].endswith("may still start m-2.g2.r0")


async def test_a_cordon_outlives_the_agent_and_the_control_plane(tmp_path, autojump_clock):
    """C29."""
    async with little_cluster(tmp_path, TWO, [want()]) as little:
        await little.until(little.serving)
        await aim(little, "node-1", Target.CORDONED)
        await aim(little, "node-2", Target.CORDONED)
        await little.leader_dies()
        await little.lead()
        for node in little.nodes.values():
            node._link = None
        little.want(want(n=2))
        await trio.sleep(30)
        assert len(little.running()) == 1
        await aim(little, "node-1", Target.SCHEDULABLE)
        await aim(little, "node-2", Target.SCHEDULABLE)
        await little.until(lambda: len(little.serving()) == 2)


# -- sick GPUs ----------------------------------------------------------------------------------------


async def test_sick_gpus_are_left_one_replica_at_a_time_and_serving_never_falls(tmp_path, autojump_clock):
    nodes = {f"node-{i}": 1 for i in range(6)}
    async with little_cluster(tmp_path, nodes, [want(n=3)]) as little:
        await little.until(lambda: len(little.serving()) == 3)
        sick = {little.home(name).name for name in little.serving()}
        for name in sick:
            node = little.nodes[name]
            node.gpus = tuple(attrs.evolve(gpu, evidence=(SICK,)) for gpu in node.gpus)
        most, began = 0, trio.current_time()
        while trio.current_time() - began < 120:
            assert len(little.serving()) >= 3, little.story()
            now = little.now  # one whose old one has left the pool is done
            surges = [one for one in now.values() if (old := now.get(one.replica.replaces)) and old.serving]
            most = max(most, len(surges))
            await trio.sleep(0.1)
        assert most == 1
        assert {little.home(name).name for name in little.serving()}.isdisjoint(sick)
        assert "is excluded: xid 79, it fell off the bus" in little.told("replica.leaving")[0].sentence


async def test_where_that_is_only_to_be_reported_the_replica_stays(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, TWO, [want()]) as little:
        little.there.cluster.moves_off_sick = lambda: False
        await little.until(little.serving)
        node = little.home("m-1")
        node.gpus = tuple(attrs.evolve(gpu, evidence=(SICK,)) for gpu in node.gpus)
        await trio.sleep(60)
        assert little.serving() == ["m-1"]


async def test_a_gpu_that_is_well_again_brings_its_replica_back_to_serving(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, TWO, [want()], manners={"m-2": Manner(ready_after_s=20)}) as little:
        await little.until(little.serving)
        node = little.home("m-1")
        well = node.gpus
        node.gpus = tuple(attrs.evolve(gpu, evidence=(SICK,)) for gpu in node.gpus)
        await little.until(lambda: "m-2" in little.now)
        node.gpus = well
        await little.until(lambda: "m-2" not in little.now)
        assert little.serving() == ["m-1"]


# -- move and purge ----------------------------------------------------------------------------------


async def test_a_move_takes_a_replica_to_another_node_or_to_the_one_that_is_named(tmp_path, autojump_clock):
    nodes = {f"node-{i}": 1 for i in range(4)}
    async with little_cluster(tmp_path, nodes, [want()]) as little:
        await little.until(little.serving)
        first = little.home("m-1").name
        moved = await little.acting().move(ANN, "m-1", why="noise")
        assert (moved["replica"], moved["to"] != [first], moved["why"]) == ("m-1", True, "moved by ann: noise")
        while little.serving() != ["m-2"]:
            assert little.serving()
            await trio.sleep(0.1)
        assert [little.home("m-2").name] == moved["to"]
        other = next(name for name in nodes if name not in (first, moved["to"][0]))
        await little.acting().move(ANN, "m-2", [other])
        await little.until(lambda: little.serving() == ["m-3"])
        assert little.home("m-3").name == other
        # What it was moved to binds it no longer.
        await little.quiet()
        little.nodes[other].cut = True
        await little.until(lambda: little.serving() not in ([], ["m-3"]), 300)


async def test_a_move_that_fits_nowhere_is_refused_with_the_reasons(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, TWO, [want(), want("a")]) as little:
        await little.until(lambda: little.serving() and little.serving("a"))
        move = partial(little.acting().move, ANN)
        for refused in (await move("m-2"), await move("m-2", [little.home("a-1").name])):
            assert isinstance(refused, Declined)
            assert refused.code == "blocked"
            assert "short of GPU memory" in refused.message
        unknown = await move("m-2", ["node-9"])
        assert unknown.code == "not_found"
        assert (await move("m-9")).code == "not_found"
        assert not little.there.cluster.rows["m-2"].leave_why


async def test_a_move_of_what_serves_nobody_leaves_its_place_at_once(tmp_path, autojump_clock):
    nodes = {"node-1": 1, "node-2": 1}
    manners = {"m-1.g1.r0": Manner(ready_after_s=math.inf)}
    async with little_cluster(tmp_path, nodes, [want()], manners=manners) as little:
        await little.until(lambda: little.running())
        first = little.home("m-1").name
        await little.acting().move(ANN, "m-1")
        await little.until(little.serving)
        assert little.home("m-1").name != first


async def test_what_does_not_stop_is_purged_and_stays_in_sight(tmp_path, autojump_clock):
    manners = {"m-1": Manner(stops_s=math.inf)}
    async with little_cluster(tmp_path, TWO, [want()], manners=manners) as little:
        await little.until(little.serving)
        node = little.home("m-1")
        assert (await little.acting().purge(ANN, "m-1")).code == "refused"
        await drain(little, node.name)
        await little.until(lambda: little.now["m-1"].replica.phase is Phase.STOPPING)
        assert (await little.acting().purge(ANN, "m-1")).code == "refused"
        await trio.sleep(60)
        purged = await little.acting().purge(ANN, "m-1", "dead driver")
        assert purged == {"replica": "m-1", "left": ["m-1.g1.r0"], "memory": []}
        assert little.told("operator.acted")[-1].sentence == f"ann purged m-1: m-1.g1.r0 may still run on {node.name}"
        assert "m-1" not in little.now
        # It is no replica any more, and the drain still says what it waits for.
        waits = state(little, node.name)["waits_on"]
        assert waits == ["m-1.g1.r0, which belongs to no replica any more, ends"]
        await trio.sleep(30)
        assert state(little, node.name)["state"] == "draining"


async def test_what_has_ended_and_holds_memory_is_not_said_to_run(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, TWO, [want()], manners={"m-1": Manner(releases_s=300)}) as little:
        await little.until(little.serving)
        node = little.home("m-1")
        await drain(little, node.name)
        await little.until(lambda: little.now["m-1"].replica.phase is Phase.STOPPING)
        await trio.sleep(60)
        purged = await little.acting().purge(ANN, "m-1")
        assert purged == {"replica": "m-1", "left": ["m-1.g1.r0"], "memory": ["m-1.g1.r0"]}
        said = f"ann purged m-1: memory of m-1.g1.r0, which has ended, is not back on {node.name}"
        assert little.told("operator.acted")[-1].sentence == said
