"""A plan brings what runs to what is wanted, replacement first. A small cluster plays the agents' part."""

import attrs
import pytest
from attrs import define, field
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.core.actions import Blocked, Create, Fail, Forget, Leave, Return, Start, Stop, StopFirst
from llmgw.core.applied import applied, slug
from llmgw.core.claims import board_of
from llmgw.core.engine_spec import EngineSpec, OnFull, PlacementRules, Want
from llmgw.core.gpus import Gpu
from llmgw.core.node_life import NodeNow, doubts
from llmgw.core.placement import ShardPlace
from llmgw.core.reconcile import Seen, plan
from llmgw.core.replicas import NO_PROOF, Phase, Proof, Replica, ReplicaLimits, ReplicaNow, Standing
from llmgw.core.shards import Exit, ShardSeen, ShardState
from llmgw.core.standing import stand

SPEC = EngineSpec("sim", gpus=1, gpu_memory_mib=20_000)
LIMITS = ReplicaLimits(healthy_min=10, restart_backoff=1, crash_loop=3)


def want(n=2, model="m", spec=SPEC, **rules):
    return Want(model, spec, PlacementRules(**rules), n, n)


@define
class Cluster:
    """Nodes that obey at once, engines that come up unless told otherwise, and the leader's rows."""

    nodes: int = 2
    gpus: int = 2
    wants: dict = field(factory=dict)
    rows: dict = field(factory=dict)
    shards: dict = field(factory=dict)  # instance -> ShardSeen
    proofs: dict = field(factory=dict)
    silent: dict = field(factory=dict)  # node -> since
    in_flight: dict = field(factory=dict)
    broken_specs: set = field(factory=set)  # revisions whose engines crash
    removed: set = field(factory=set)
    mono: float = 1000.0
    number: int = 0
    generation: int = 0
    hold: str = ""
    said: list = field(factory=list)
    all_seen: list = field(factory=list)  # of each pass: serving, live

    def pass_(self):
        """observe, plan, apply; then the agents obey."""
        made = self.plan()
        for action in made.actions:
            self.number += isinstance(action, Create)
            self.generation += isinstance(action, Start)
            self.rows = applied(self.rows, action, self.mono, self.number, self.generation)
            self.said.append(action)
        self.obey()
        return made

    def plan(self):
        return plan(self.seen(), LIMITS)

    def obey(self):
        wanted = {}
        for row in self.rows.values():
            if row.phase in (Phase.WANTED, Phase.LEAVING):
                wanted |= {row.instance(place.rank): place.node for place in row.shards}
        for id in list(self.shards):
            node = self.shards[id][0]
            if node not in self.silent and id not in wanted:
                del self.shards[id]
        for id, node in wanted.items():
            if node not in self.silent and id not in self.shards:
                self.shards[id] = (node, ShardSeen(id, ShardState.LOADING, ports={"http": 1}))
        for row in self.rows.values():
            if row.phase is Phase.WANTED and row.revision in self.broken_specs:
                for id in row.instances:
                    self.kill(id)
            elif row.phase is Phase.WANTED and all(self.runs(id) for id in row.instances):
                self.proofs.setdefault(row.instance(0), Proof(self.mono))

    def runs(self, id):
        return id in self.shards and self.shards[id][1].state is ShardState.LOADING

    def kill(self, id):
        if id in self.shards:
            node, seen = self.shards[id]
            self.shards[id] = (node, attrs.evolve(seen, state=ShardState.FAILED, exit=Exit(signal=9)))

    def node_now(self, name):
        here = {id: seen for id, (node, seen) in self.shards.items() if node == name}
        cards = tuple(Gpu(f"{name}-{i}", i, "", 24_576) for i in range(self.gpus))
        silent = self.mono - self.silent[name] if name in self.silent else 0.1
        return NodeNow(name, heard_s=silent, shards=here, gpus=cards, obeys=1, rev=1, memory_mib=65536)

    def seen(self):
        names = [f"node-{i}" for i in range(self.nodes) if f"node-{i}" not in self.removed]
        nodes = {name: self.node_now(name) for name in names}
        now = {
            row.name: stand(
                row, nodes, self.proofs.get(row.instance(0), NO_PROOF), LIMITS, self.mono, self.mono,
                in_flight=self.in_flight.get(row.name, 0),
            )
            for row in self.rows.values()
        }  # fmt: skip
        return Seen(self.wants, now, nodes, self.mono, self.hold)

    def run(self, passes=20, step=1.0):
        for _ in range(passes):
            self.mono += step
            self.pass_()
            now = self.seen().replicas.values()
            self.all_seen.append((sum(one.serving for one in now), sum(one.live for one in now)))
        return self

    def serving(self):
        return sorted(name for name, now in self.seen().replicas.items() if now.serving)

    def of(self, kind):
        return [action for action in self.said if isinstance(action, kind)]


def running(n=2, **more):
    cluster = Cluster(wants={"m": want(n)}, **more).run(30)
    cluster.said.clear()
    cluster.all_seen.clear()
    return cluster


# -- stories ----------------------------------------------------------------------------------------


def test_two_replicas_come_up_on_two_nodes_and_then_there_is_nothing_to_do():
    cluster = Cluster(wants={"m": want(2)}).run(30)
    assert cluster.serving() == ["m-1", "m-2"]
    assert {row.shards[0].node for row in cluster.rows.values()} == {"node-0", "node-1"}
    assert str(cluster.pass_()) == "nothing to do"


def test_nothing_happens_before_every_node_has_reported():
    cluster = Cluster(wants={"m": want(2)})
    assert plan(attrs.evolve(cluster.seen(), settled=False), LIMITS).actions == ()


def test_an_engine_that_dies_is_replaced_by_the_next_generation_of_the_same_replica():
    cluster = running()
    before = cluster.rows["m-1"].generation
    cluster.kill(cluster.rows["m-1"].instance(0))
    cluster.run(5)
    assert cluster.serving() == ["m-1", "m-2"]
    assert cluster.rows["m-1"].generation > before
    assert cluster.of(Fail)[0].why == "on node-0 killed by signal 9"


def test_all_shards_of_a_replica_die_together_and_start_together():
    cluster = Cluster(wants={"m": want(1, spec=attrs.evolve(SPEC, shards=2, gpus=2))}).run(10)
    row = cluster.rows["m-1"]
    assert len({shard.node for shard in row.shards}) == 2
    cluster.kill(row.instance(1))
    cluster.run(5)
    again = cluster.rows["m-1"]
    assert again.generation > row.generation
    assert all(cluster.runs(id) for id in again.instances)
    assert not any(id in cluster.shards for id in row.instances)


def test_pauses_grow_while_an_engine_crashes_and_nobody_calls_that_busy():
    cluster = Cluster(wants={"m": want(1)}, broken_specs={SPEC.revision}).run(60)
    pauses = [action.pause_s for action in cluster.of(Fail)]
    assert pauses[:4] == [1, 2, 4, 8]
    cluster.broken_specs.clear()
    cluster.run(40)
    assert cluster.serving() == ["m-1"]


def test_a_crash_loop_takes_up_a_new_spec_at_once():
    cluster = Cluster(wants={"m": want(3)}, broken_specs={SPEC.revision}).run(40)
    cluster.wants["m"] = want(3, spec=attrs.evolve(SPEC, args=("--good",)))
    cluster.run(4)
    assert len(cluster.serving()) == 3


def test_a_changed_spec_replaces_first_one_at_a_time():
    cluster = running(2)
    cluster.wants["m"] = want(2, spec=attrs.evolve(SPEC, args=("--new",)))
    cluster.run(80)
    assert cluster.serving() == ["m-3", "m-4"]
    assert min(serving for serving, _ in cluster.all_seen) >= 2
    assert max(live for _, live in cluster.all_seen) <= 3


def test_the_old_one_stays_until_the_new_one_has_served_for_the_least_time():
    """The new one lives five seconds, again and again."""
    cluster = running(1)
    cluster.wants["m"] = want(1, spec=attrs.evolve(SPEC, args=("--new",)))
    cluster.run(3)
    for _ in range(4):
        cluster.run(5)
        cluster.kill(cluster.rows["m-2"].instance(0))
        cluster.run(3)
    assert "m-1" in cluster.serving()
    assert not cluster.of(Leave)
    cluster.run(60)
    assert cluster.serving() == ["m-2"]


def test_a_leaving_replica_serves_to_the_end_of_its_requests():
    cluster = running(2)
    cluster.in_flight = {"m-1": 3, "m-2": 5}
    cluster.wants["m"] = want(1)
    cluster.run(20)
    assert [leave.replica for leave in cluster.of(Leave)] == ["m-1"]  # the one with the least in flight
    assert cluster.rows["m-1"].phase is Phase.LEAVING
    cluster.in_flight["m-1"] = 0
    cluster.run(3)
    assert list(cluster.rows) == ["m-2"]


def test_scaling_up_again_takes_a_leaving_one_back():
    cluster = running(2)
    cluster.in_flight = {"m-1": 3, "m-2": 5}
    cluster.wants["m"] = want(1)
    cluster.run(3)
    cluster.wants["m"] = want(2)
    cluster.run(3)
    assert [back.replica for back in cluster.of(Return)] == ["m-1"]
    assert cluster.serving() == ["m-1", "m-2"]


def test_a_request_that_never_ends_does_not_hold_a_leaving_replica_for_ever():
    cluster = running(2)
    cluster.in_flight = {"m-1": 1, "m-2": 5}
    cluster.wants["m"] = want(1)
    cluster.run(10, step=LIMITS.leave_within / 4)
    assert "gave up after" in cluster.of(Stop)[0].why
    assert "1 requests in flight" in cluster.of(Stop)[0].why


def test_a_silent_nodes_replica_is_replaced_after_the_grace_and_leaves_when_the_new_one_serves():
    cluster = running(2, nodes=3)
    gone = cluster.rows["m-1"].shards[0].node
    cluster.silent[gone] = cluster.mono
    cluster.run(50)
    assert not cluster.of(Create)
    cluster.run(40)
    assert cluster.of(Create)[0].replaces == "m-1"
    assert "m-3" in cluster.serving()
    assert cluster.rows["m-1"].phase in (Phase.LEAVING, Phase.STOPPING)
    del cluster.silent[gone]
    cluster.run(5)
    assert sorted(cluster.rows) == ["m-2", "m-3"]
    assert len(cluster.shards) == 2


def test_a_node_that_comes_back_before_its_replacement_serves_keeps_its_replica():
    cluster = running(2, nodes=3)
    gone = cluster.rows["m-1"].shards[0].node
    cluster.silent[gone] = cluster.mono
    cluster.run(62)
    surge = cluster.of(Create)[0]
    assert surge.replaces == "m-1"
    del cluster.silent[gone]
    cluster.rows["m-3"] = attrs.evolve(cluster.rows["m-3"])
    cluster.proofs.pop(cluster.rows["m-3"].instance(0), None)
    assert cluster.pass_().actions[0].replica == "m-3"
    cluster.run(5)
    assert cluster.serving() == ["m-1", "m-2"]


def test_what_fits_nowhere_is_told_and_waits():
    cluster = Cluster(nodes=1, wants={"m": want(3)}).run(5)
    assert len(cluster.serving()) == 2
    blocked = cluster.of(Blocked)[-1]
    assert blocked.why == "no node fits: 1 short of GPU memory"


def full_node(on_full):
    spec = attrs.evolve(SPEC, gpus=2)
    cluster = Cluster(nodes=1, wants={"m": want(1, spec=spec, on_full=on_full)}).run(30)
    cluster.said.clear()
    new = attrs.evolve(spec, args=("--new",))
    cluster.wants["m"] = want(1, spec=new, on_full=on_full)
    return cluster, spec, new


def test_on_a_full_node_a_change_waits_and_says_so():
    cluster, *_ = full_node(OnFull.WAIT)
    cluster.run(60)
    assert cluster.serving() == ["m-1"]
    assert "no node fits" in cluster.rows["m-2"].why


def test_where_policy_allows_the_old_one_goes_first():
    cluster, _, new = full_node(OnFull.STOP_FIRST)
    cluster.run(30)
    assert cluster.of(StopFirst)
    assert cluster.serving() == ["m-2"]
    assert cluster.rows["m-2"].revision == new.revision


def test_and_the_old_spec_is_restored_when_the_new_one_does_not_come_up():
    cluster, old, new = full_node(OnFull.STOP_FIRST)
    cluster.broken_specs.add(new.revision)
    cluster.run(80)
    assert cluster.serving() == ["m-2"]
    assert cluster.rows["m-2"].revision == old.revision
    assert cluster.rows["m-2"].gave_up_on == new.revision
    assert str(cluster.pass_()) == "nothing to do"


def test_nothing_is_stopped_for_a_change_that_would_not_fit_even_then():
    cluster, spec, _ = full_node(OnFull.STOP_FIRST)
    cluster.wants["m"] = want(1, spec=attrs.evolve(spec, gpus=4), on_full=OnFull.STOP_FIRST)
    cluster.run(30)
    assert cluster.serving() == ["m-1"]


def test_while_the_leader_doubts_itself_nothing_stops_and_it_says_what_it_holds_back():
    cluster = running(2, nodes=3)
    cluster.hold = "3 of 5 nodes are silent"
    cluster.wants["m"] = want(1)
    made = cluster.pass_()
    assert not made.actions
    assert "leaves the pool" in str(made)
    assert "3 of 5 nodes are silent" in str(made)


def test_a_model_that_is_taken_out_ends():
    cluster = running(2)
    cluster.wants.clear()
    cluster.run(5)
    assert not cluster.rows
    assert not cluster.shards


def test_an_operators_restart_replaces_first():
    cluster = running(2)
    cluster.rows["m-1"] = attrs.evolve(cluster.rows["m-1"], leave_why="restart asked by ann")
    cluster.run(30)
    assert cluster.serving() == ["m-2", "m-3"]
    assert min(serving for serving, _ in cluster.all_seen) >= 2
    assert cluster.of(Leave)[0].why == "m-3 serves in its place: restart asked by ann"


def test_an_ill_engine_restarts_but_never_two_of_a_model_at_once():
    cluster = running(2)
    for row in cluster.rows.values():
        cluster.proofs[row.instance(0)] = Proof(cluster.mono, failures=9, why="5 canary requests failed")
    made = cluster.pass_()
    assert [action.replica for action in made.actions] == ["m-1"]
    assert made.held == ("restart of m-2 (unwell: 5 canary requests failed): another of its model restarts",)


def test_a_node_that_does_not_obey_gets_its_replica_taken_away():
    cluster = Cluster(nodes=2, wants={"m": want(1)})
    cluster.pass_()
    cluster.mono += 1
    cluster.pass_()
    row = cluster.rows["m-1"]
    cluster.shards.clear()
    home = row.shards[0].node
    deaf = attrs.evolve(cluster.node_now(home), rev=5, obeys=4, behind_s=12.0)
    now = stand(row, {home: deaf}, NO_PROOF, LIMITS, 0, 0)
    assert now.standing is Standing.GONE
    assert now.why == f"{home} did not take it in for 12 s: withdrawn"
    assert deaf.trouble == "it has not obeyed for 12 s"


@pytest.mark.parametrize(
    ("heard", "late", "store", "doubt"),
    [
        ([0.1, 0.1, 0.1, 0.1, 0.1], 0, "", ""),
        ([99, 0.1, 0.1], 0, "", ""),
        ([99, 99, 0.1], 0, "", "2 of 3 nodes are silent"),
        ([99], 0, "", ""),
        ([400, 400, 400, 400, 400], 360, "", "5 of 5 nodes are silent, and this process was not awake for 360 s"),
        ([0.1], 0, "disk full", "the store is away: disk full"),
    ],
)
def test_a_leader_doubts_itself_before_it_believes_most_nodes_dead(heard, late, store, doubt):
    nodes = [NodeNow(f"n{i}", heard_s=age) for i, age in enumerate(heard)]
    assert doubts(nodes, late, store) == doubt


@pytest.mark.parametrize(("model", "name"), [("Qwen/Qwen3-32B", "qwen-qwen3-32b"), ("a:b", "a-b"), ("///", "model")])
def test_a_replicas_name_is_fit_for_a_directory(model, name):
    assert slug(model) == name


# -- properties -------------------------------------------------------------------------------------

happenings = st.lists(
    st.one_of(
        st.tuples(st.just("scale"), st.integers(0, 3)),
        st.tuples(st.just("spec"), st.integers(0, 2)),
        st.tuples(st.just("kill"), st.integers(0, 5)),
        st.tuples(st.just("silent"), st.integers(0, 2)),
        st.tuples(st.just("back"), st.integers(0, 2)),
        st.tuples(st.just("busy"), st.integers(0, 3)),
        st.tuples(st.just("wait"), st.integers(1, 30)),
    ),
    max_size=12,
)


def happen(cluster, what, n):
    old = cluster.wants["m"]
    if what == "scale":
        cluster.wants["m"] = attrs.evolve(old, least=n, most=n)
    elif what == "spec":
        cluster.wants["m"] = attrs.evolve(old, spec=attrs.evolve(SPEC, args=(f"--v{n}",)))
    elif what == "kill" and cluster.shards:
        cluster.kill(sorted(cluster.shards)[n % len(cluster.shards)])
    elif what == "silent" and not cluster.silent:
        cluster.silent[f"node-{n}"] = cluster.mono
    elif what == "back":
        cluster.silent.pop(f"node-{n}", None)
    elif what == "busy":
        cluster.in_flight = dict.fromkeys(cluster.rows, n)
    cluster.run(n if what == "wait" else 1)


@settings(max_examples=60, deadline=None)
@given(happenings)
def test_whatever_happens_it_ends_with_what_is_wanted_and_nothing_to_do(story):
    cluster = Cluster(nodes=3, wants={"m": want(2)}).run(5)
    for what, n in story:
        happen(cluster, what, n)
    cluster.silent.clear()
    cluster.in_flight.clear()
    cluster.run(200)
    wanted = cluster.wants["m"]
    assert len(cluster.serving()) == wanted.replicas
    assert all(row.revision == wanted.spec.revision for row in cluster.rows.values())
    assert len(cluster.rows) == wanted.replicas
    assert str(cluster.pass_()) == "nothing to do"


@settings(max_examples=60, deadline=None)
@given(happenings)
def test_no_card_is_claimed_twice_and_no_more_live_than_one_above_what_is_wanted(story):
    cluster = Cluster(nodes=3, wants={"m": want(2)}).run(5)
    highest = 2
    for what, n in story:
        highest = max(highest, cluster.wants["m"].replicas, n if what == "scale" else 0)
        happen(cluster, what, n)
        now = cluster.seen().replicas.values()
        held = [one.replica.shards[i] for one in now for i, shard in enumerate(one.shards) if not shard.ended]
        cards = [uuid for shard in held for uuid in shard.gpus]
        assert len(cards) == len(set(cards))
        assert all(live <= highest + 1 for _, live in cluster.all_seen)
    starts = [start.replica for start in cluster.of(Start)]
    generations = [row.generation for row in cluster.rows.values() if row.generation]
    assert len(generations) == len(set(generations))
    assert starts


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.one_of(st.tuples(st.just("spec"), st.integers(0, 2)), st.tuples(st.just("wait"), st.integers(1, 40))))
)
def test_changes_alone_never_take_serving_below_what_is_wanted(story):
    cluster = running(2, nodes=3)
    for what, n in story[:8]:
        happen(cluster, what, n)
    cluster.run(60)
    assert min(serving for serving, _ in cluster.all_seen) >= 2


def test_a_pass_names_itself_in_one_sentence():
    cluster = Cluster(wants={"m": want(1)})
    assert str(cluster.pass_()) == "m: one more replica, 1 are wanted, 0 are there"


def test_a_replica_that_waits_for_its_place_is_forgotten_when_it_is_not_wanted():
    cluster = Cluster(nodes=0, wants={"m": want(1)}).run(3)
    cluster.wants["m"] = want(0)
    assert isinstance(cluster.pass_().actions[0], Forget)


def test_standing_is_told_with_its_age():
    assert ReplicaNow(Cluster(wants={"m": want(1)}).run(2).rows["m-1"], Standing.UNKNOWN).live


# -- found by stories of the whole control plane ------------------------------------------------------


def now_of(name, standing, phase=Phase.WANTED, healthy_s=5.0, **row):
    return ReplicaNow(Replica(name, "m", row.pop("spec", SPEC), phase, **row), standing, healthy_s=healthy_s)


def planned(*replicas, n=1, **rules):
    return plan(Seen({"m": want(n, **rules)}, {one.name: one for one in replicas}, {}, 100.0), LIMITS).actions


def test_a_slot_is_worth_as_much_as_the_better_of_a_replica_and_its_successor():
    gone, successor = now_of("m-1", Standing.GONE), now_of("m-3", Standing.SERVING, replaces="m-1")
    acts = planned(gone, now_of("m-2", Standing.LOADING), successor)
    assert {action.replica for action in acts} == {"m-2"}


def test_the_old_one_stays_while_more_are_wanted_than_serve():
    old = now_of("m-1", Standing.SERVING, leave_why="restart asked by ann")
    new = now_of("m-2", Standing.SERVING, replaces="m-1", healthy_s=60)
    assert Leave not in map(type, planned(old, new, now_of("m-3", Standing.LOADING), n=2))
    assert Leave in map(type, planned(old, new, now_of("m-3", Standing.SERVING), n=2))


def test_of_a_replica_without_a_place_and_its_successor_one_is_enough():
    waiting = now_of("m-1", Standing.WAITING, Phase.WAITING, healthy_s=0, retry_at=1000)
    comes = now_of("m-2", Standing.STARTING, replaces="m-1", healthy_s=0)
    waits = now_of("m-2", Standing.WAITING, Phase.WAITING, healthy_s=0, replaces="m-1")
    assert [(type(a), a.replica) for a in planned(waiting, comes)] == [(Forget, "m-1")]
    assert [(type(a), a.replica) for a in planned(waiting, waits)] == [(Forget, "m-2")]


def test_nothing_starts_while_more_live_than_are_wanted():
    """Both had been given up and count again."""
    back, starting = now_of("m-1", Standing.UNKNOWN), now_of("m-2", Standing.STARTING, replaces="m-1", healthy_s=0)
    waiting = now_of("m-3", Standing.WAITING, Phase.WAITING, healthy_s=0, replaces="m-2")
    assert not [act for act in planned(back, starting, waiting) if isinstance(act, Start)]


def test_memory_of_a_shard_that_nobody_claims_is_not_free():
    cluster = Cluster(nodes=1, gpus=1)
    stray = {"x-9.g1.r0": ShardSeen("x-9.g1.r0", ShardState.LOADING, gpu_mib={"node-0-0": 16_000})}
    card = Gpu("node-0-0", 0, "", 24_576, 16_600, 16_000)
    node = attrs.evolve(cluster.node_now("node-0"), shards=stray, gpus=(card,))
    board = board_of({"node-0": node}, ())
    board.claim(Replica("m-1", "m", SPEC), ShardPlace(0, "node-0", ("node-0-0",), 4_000), "m-1 (starting)")
    assert board.offer("node-0").gpus[0].free_mib == 24_576 - 16_600 - 4_000


def test_without_a_replica_its_measured_memory_is_free_too():
    cluster = running(1, nodes=1, gpus=1)
    id = cluster.rows["m-1"].instance(0)
    node, seen = cluster.shards[id]
    cluster.shards[id] = node, attrs.evolve(seen, gpu_mib={"node-0-0": 19_000})
    here = attrs.evolve(cluster.node_now("node-0"), gpus=(Gpu("node-0-0", 0, "", 24_576, 19_500, 19_000),))
    replicas = cluster.seen().replicas.values()
    assert board_of({"node-0": here}, replicas).offer("node-0").gpus[0].free_mib == 24_576 - 20_000 - 500
    assert board_of({"node-0": here}, replicas, frozenset({"m-1"})).offer("node-0").gpus[0].free_mib == 24_576 - 500


def test_a_silent_node_is_not_called_disobedient():
    silent = NodeNow("node-0", heard_s=8.0, rev=5, obeys=4, behind_s=12.0)
    row = Replica("m-1", "m", SPEC, Phase.WANTED, 1, (ShardPlace(0, "node-0"),))
    assert stand(row, {"node-0": silent}, NO_PROOF, LIMITS, 0, 0).standing is Standing.UNKNOWN


def test_who_slept_gives_every_node_its_grace_anew():
    asleep = NodeNow("node-0", heard_s=360.0, awake_s=3.0)
    assert not asleep.gone
    assert attrs.evolve(asleep, awake_s=61.0).gone == "node-0 silent for 360 s"


def test_a_leader_that_has_yet_to_hear_most_of_its_nodes_doubts_itself_once_they_had_the_time():
    nodes = [NodeNow(f"n{i}", heard_s=None if i else 0.1, silent_for=9.0) for i in range(3)]
    assert doubts(nodes, 0, "") == "2 of 3 nodes are silent"
    assert doubts([attrs.evolve(node, silent_for=3.0) for node in nodes], 0, "") == ""


def test_a_crash_loop_goes_to_another_node():
    cluster = Cluster(nodes=2, wants={"m": want(1)}, broken_specs={SPEC.revision}).run(60)
    nodes = [start.placed.nodes[0] for start in cluster.of(Start)]
    assert nodes[:3] == ["node-0"] * 3
    assert set(nodes[3:6]) == {"node-0", "node-1"}


def test_a_rolling_change_keeps_replicas_apart():
    cluster = running(2)
    for version in range(3):
        cluster.wants["m"] = want(2, spec=attrs.evolve(SPEC, args=(f"--v{version}",)))
        cluster.run(80)
        assert {row.shards[0].node for row in cluster.rows.values()} == {"node-0", "node-1"}


def test_one_a_node_and_as_many_nodes_as_replicas_still_changes():
    cluster = Cluster(wants={"m": want(2, one_per_node=True)}).run(30)
    new = attrs.evolve(SPEC, args=("--new",))
    cluster.wants["m"] = want(2, spec=new, one_per_node=True)
    cluster.run(80)
    assert {row.revision for row in cluster.rows.values()} == {new.revision}
    assert {row.shards[0].node for row in cluster.rows.values()} == {"node-0", "node-1"}
