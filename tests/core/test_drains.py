"""Drains and sick GPUs: a replacement serves before anything leaves, everything ends, and all of it can be undone."""

import attrs
from attrs import define, field
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.core.actions import Create, Leave, Return, Start, Stop
from llmgw.core.drain import AtDeadline, Drain, DrainLimits
from llmgw.core.gpus import Evidence, Severity
from llmgw.core.reconcile import Seen, plan
from llmgw.core.replicas import NO_PROOF, Phase
from llmgw.core.standing import stand
from tests.core.test_reconcile import LIMITS, SPEC, Cluster, want

SICK = Evidence("xid 79", Severity.EXCLUDED, "it fell off the bus", 1.0, 1.0, "a reboot")


@define
class Drained(Cluster):
    aims: dict = field(factory=dict)  # node -> Drain, or "cordoned"
    sick: set = field(factory=set)  # UUIDs
    surges_max: int = 4
    start_s: float = 0.0
    began: dict = field(factory=dict)  # instance -> when it was seen first

    def obey(self):
        super().obey()
        for id in self.shards:
            if self.mono - self.began.setdefault(id, self.mono) < self.start_s:
                self.proofs.pop(id, None)

    def drain(self, node, grace_s=600.0, at_deadline=AtDeadline.STOP, planned=None):
        self.aims[node] = Drain(grace_s, self.mono + grace_s, at_deadline, planned or {})

    def node_now(self, name):
        node = super().node_now(name)
        gpus = tuple(attrs.evolve(g, evidence=(SICK,)) if g.uuid in self.sick else g for g in node.gpus)
        aim = self.aims.get(name)
        if aim is None:
            return attrs.evolve(node, gpus=gpus)
        target = "drained" if isinstance(aim, Drain) else aim
        drain = aim if isinstance(aim, Drain) else None
        left = drain.ends_at - self.mono if drain else 0.0
        return attrs.evolve(node, gpus=gpus, target=target, target_why="by ann: fans", drain=drain, drain_left_s=left)

    def seen(self):
        names = [f"node-{i}" for i in range(self.nodes) if f"node-{i}" not in self.removed]
        nodes = {name: self.node_now(name) for name in names}
        now = {
            row.name: stand(
                row, nodes, self.proofs.get(row.instance(0), NO_PROOF), LIMITS, self.mono, self.mono,
                in_flight=self.in_flight.get(row.name, 0), moves_off_sick=True,
            )
            for row in self.rows.values()
        }  # fmt: skip
        return Seen(self.wants, now, nodes, self.mono, self.hold)

    def plan(self):
        return plan(self.seen(), LIMITS, DrainLimits(surges_max=self.surges_max))

    def on(self, node):
        return sorted(r.name for r in self.rows.values() if any(s.node == node for s in r.shards))

    def least(self):
        return min(serving for serving, _ in self.all_seen)


def running(n=2, **more):
    cluster = Drained(wants={"m": want(n)}, **more).run(30)
    cluster.said.clear()
    cluster.all_seen.clear()
    return cluster


def test_a_drained_node_is_left_only_after_a_replacement_serves():
    cluster = running(2, nodes=3)
    home = cluster.rows["m-1"].shards[0].node
    cluster.drain(home)
    cluster.run(40)
    assert cluster.on(home) == []
    assert len(cluster.serving()) == 2
    assert cluster.least() == 2
    leave = cluster.of(Leave)[0]
    assert leave.why == f"m-3 serves in its place: {home} is drained by ann: fans"


def test_a_drained_replica_is_never_stopped_on_the_pass_after_it_was_marked():
    cluster = running(2, nodes=3)
    home = cluster.rows["m-1"].shards[0].node
    cluster.in_flight = {"m-1": 20}
    cluster.drain(home)
    cluster.run(60)
    assert cluster.rows["m-1"].phase is Phase.LEAVING
    assert not cluster.of(Stop)
    cluster.in_flight.clear()
    cluster.run(3)
    assert cluster.on(home) == []


def test_the_replacement_goes_where_the_dry_run_saw_it_go():
    cluster = running(1, nodes=4)
    home = cluster.rows["m-1"].shards[0].node
    cluster.drain(home, planned={"m-1": ("node-3",)})
    cluster.run(30)
    assert cluster.rows["m-2"].shards[0].node == "node-3"


def test_the_only_node_that_can_host_serves_on_and_says_what_is_in_the_way():
    cluster = running(1, nodes=1)
    cluster.drain("node-0", grace_s=300)
    cluster.run(100)
    assert cluster.serving() == ["m-1"]
    assert cluster.rows["m-2"].why == "no node fits: 1 drained"


def test_and_is_stopped_at_the_end_of_the_grace_where_that_was_asked():
    cluster = running(1, nodes=1)
    cluster.in_flight = {"m-1": 2}
    cluster.drain("node-0", grace_s=50, at_deadline=AtDeadline.STOP)
    cluster.run(80)
    assert cluster.on("node-0") == []
    (stop,) = [one for one in cluster.of(Stop) if one.replica == "m-1"]
    assert (stop.cut, stop.why) == (2, "the drain of node-0 has used up its 50 s")


def test_or_kept():
    cluster = running(1, nodes=1)
    cluster.drain("node-0", grace_s=50, at_deadline=AtDeadline.KEEP)
    cluster.run(200)
    assert cluster.serving() == ["m-1"]


def test_a_request_that_never_ends_is_cut_at_the_end_of_the_grace():
    cluster = running(2, nodes=3)
    home = cluster.rows["m-1"].shards[0].node
    cluster.in_flight = {"m-1": 1}
    cluster.drain(home, grace_s=60)
    cluster.run(80)
    assert cluster.on(home) == []
    assert next(one for one in cluster.of(Stop) if one.replica == "m-1").cut == 1


def test_uncordon_while_the_replacement_starts_keeps_what_serves():
    cluster = running(2, nodes=3)
    home = cluster.rows["m-1"].shards[0].node
    cluster.drain(home)
    cluster.run(3)
    assert "m-3" in cluster.rows
    cluster.aims.clear()
    cluster.run(20)
    assert cluster.serving() == ["m-1", "m-2"]
    assert sorted(cluster.rows) == ["m-1", "m-2"]


def test_uncordon_while_the_old_one_leaves_brings_it_back():
    cluster = running(2, nodes=3)
    home = cluster.rows["m-1"].shards[0].node
    cluster.in_flight = {"m-1": 5}
    cluster.drain(home)
    cluster.run(30)
    assert cluster.rows["m-1"].phase is Phase.LEAVING
    cluster.aims.clear()
    cluster.run(20)
    assert [back.replica for back in cluster.of(Return)] == ["m-1"]
    assert cluster.serving() == ["m-1", "m-2"]
    assert cluster.least() == 2


def test_a_replica_of_several_shards_moves_as_one():
    spec = attrs.evolve(SPEC, shards=2, gpus=2)
    cluster = Drained(nodes=4, wants={"m": want(1, spec=spec)}).run(30)
    home = cluster.rows["m-1"].shards[0].node
    cluster.all_seen.clear()
    cluster.drain(home)
    cluster.run(40)
    assert cluster.on(home) == []
    assert cluster.least() == 1


def test_what_does_not_serve_yet_starts_elsewhere_at_once():
    cluster = Drained(nodes=2, wants={"m": want(1)}, broken_specs={SPEC.revision}).run(3)
    cluster.broken_specs.clear()
    home = cluster.rows["m-1"].home[0]
    cluster.drain(home)
    cluster.run(40)
    assert cluster.on(home) == []
    assert cluster.serving() == ["m-1"]


def test_nothing_lands_on_a_cordoned_node_and_what_is_there_stays():
    cluster = running(2, nodes=2)
    cluster.aims["node-0"] = "cordoned"
    cluster.wants["m"] = want(4)
    cluster.run(30)
    assert len(cluster.on("node-0")) == 1
    assert len(cluster.on("node-1")) == 2


def test_a_sick_gpu_is_left_one_replica_at_a_time():
    cluster = running(3, nodes=6, gpus=1)
    cluster.sick = {uuid for row in cluster.rows.values() for shard in row.shards for uuid in shard.gpus}
    most = 0
    for _ in range(60):
        cluster.run(1)
        rows = cluster.rows  # one whose old one has left the pool is done
        surges = [row for row in rows.values() if row.replaces in rows and rows[row.replaces].phase is Phase.WANTED]
        most = max(most, len(surges))
    assert most == 1
    assert cluster.least() == 3
    used = {uuid for row in cluster.rows.values() for shard in row.shards for uuid in shard.gpus}
    assert not used & cluster.sick


def test_drains_share_a_bound_over_all_models_and_one_that_is_blocked_holds_up_nobody():
    big = attrs.evolve(SPEC, gpus=2)
    cluster = Drained(nodes=3, wants={"a": want(1, "a", big), "b": want(1, "b"), "c": want(1, "c")}, surges_max=1)
    cluster.run(30)
    for node in list({s.node for r in cluster.rows.values() for s in r.shards})[:1]:
        cluster.drain(node)
        cluster.run(120)
        assert all(name.startswith("a") for name in cluster.on(node))
    starting = [row for row in cluster.rows.values() if row.replaces and row.phase is Phase.WANTED]
    assert len(starting) <= 1


def test_a_move_goes_where_it_was_sent():
    cluster = running(2, nodes=4)
    cluster.rows["m-1"] = attrs.evolve(cluster.rows["m-1"], leave_why="moved by ann", move_to=("node-3",))
    cluster.run(40)
    moved = next(row for row in cluster.rows.values() if row.name not in ("m-1", "m-2"))
    assert (moved.shards[0].node, "m-1" in cluster.rows) == ("node-3", False)


happenings = st.lists(
    st.one_of(
        st.tuples(st.just("drain"), st.integers(0, 3)),
        st.tuples(st.just("uncordon"), st.integers(0, 3)),
        st.tuples(st.just("kill"), st.integers(0, 5)),
        st.tuples(st.just("scale"), st.integers(1, 3)),
        st.tuples(st.just("sick"), st.integers(0, 7)),
        st.tuples(st.just("busy"), st.integers(0, 3)),
        st.tuples(st.just("wait"), st.integers(1, 30)),
    ),
    max_size=12,
)


@settings(deadline=None)
@given(happenings)
def test_no_planned_step_takes_serving_below_what_is_wanted_and_every_drain_ends(story):
    cluster = Drained(nodes=4, wants={"m": want(2)}).run(30)
    for what, n in story:
        if what == "drain":
            cluster.drain(f"node-{n}", grace_s=200)
        elif what == "uncordon":
            cluster.aims.pop(f"node-{n}", None)
        elif what == "kill" and cluster.shards:
            cluster.kill(sorted(cluster.shards)[n % len(cluster.shards)])
        elif what == "scale":
            cluster.wants["m"] = attrs.evolve(cluster.wants["m"], least=n, most=n)
        elif what == "sick":
            cluster.sick = {f"node-{n // 2}-{n % 2}"}
        elif what == "busy":
            cluster.in_flight = dict.fromkeys(cluster.rows, n)
        steps(cluster, n if what == "wait" else 1)
    cluster.in_flight.clear()
    cluster.sick.clear()
    drained = list(cluster.aims)
    steps(cluster, 260)
    for node in drained:
        assert cluster.on(node) == []
    fit = 2 * (4 - len(drained))  # GPUs of the nodes that are left
    assert len(cluster.serving()) == min(cluster.wants["m"].replicas, fit)


def steps(cluster, count):
    for _ in range(count):
        before, wanted = len(cluster.serving()), cluster.wants["m"].replicas
        cluster.mono += 1
        overdue = {now.name for now in cluster.seen().replicas.values() if now.overdue}
        made = cluster.plan()
        serving = set(cluster.serving())
        ends = [a for a in made.actions if isinstance(a, Leave | Stop)]
        called = {a.replica for a in ends if a.why.startswith("last call")}
        assert not called or serving - called, "nobody is left that serves"
        ended = {a.replica for a in ends} & serving - overdue - called
        assert len(serving - ended) >= min(wanted, before), [str(a) for a in made.actions]
        live = sum(now.live for now in cluster.seen().replicas.values())
        starts = sum(isinstance(a, Start) for a in made.actions)
        assert not starts or live + starts <= wanted + 1 + len(overdue), [str(a) for a in made.actions]
        cluster.pass_()


def test_a_create_for_a_drain_names_what_it_replaces():
    cluster = running(1, nodes=2)
    home = cluster.rows["m-1"].shards[0].node
    cluster.drain(home)
    cluster.pass_()
    (create,) = cluster.of(Create)
    assert (create.replaces, create.why) == ("m-1", f"{home} is drained by ann: fans")
