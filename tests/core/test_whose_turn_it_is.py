"""Replacements take turns: one a model, and a bound over all. One that has no place holds up no other."""

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.core.actions import Start
from llmgw.core.drain import AtDeadline
from llmgw.core.drain_plan import drain_plan, is_blocked, state_of_drain, waits_on
from llmgw.core.engine_spec import OnFull
from llmgw.core.replicas import Phase
from tests.core.test_drains import Drained
from tests.core.test_reconcile import LIMITS, SPEC, want

KEEP = AtDeadline.KEEP
BIG = attrs.evolve(SPEC, gpus=2)


def moved(cluster, name, *to):
    cluster.rows[name] = attrs.evolve(cluster.rows[name], leave_why="moved by ann", move_to=to)


def home(cluster, name):
    return cluster.rows[name].shards[0].node


def says(cluster, node):
    seen = cluster.seen()
    return list(waits_on(seen, seen.nodes[node], {}))


def state(cluster, node):
    seen = cluster.seen()
    return state_of_drain(seen, seen.nodes[node])


def starting(cluster):
    """Replacements for drains and sick GPUs that start."""
    starts = [one for one in cluster.seen().replicas.values() if one.replica.replaces_for in ("drain", "gpu")]
    return [one.name for one in starts if one.replica.phase in (Phase.WANTED, Phase.RESTARTING) and not one.serving]


def test_a_move_that_finds_no_place_holds_up_no_drain_of_its_model():
    cluster = Drained(nodes=3, gpus=2, wants={"m": want(2)}).run(30)
    first, second = home(cluster, "m-1"), home(cluster, "m-2")
    (third,) = {"node-0", "node-1", "node-2"} - {first, second}
    cluster.aims[third] = "cordoned"
    moved(cluster, "m-1", third)
    cluster.run(5)
    cluster.drain(second)
    cluster.run(40)
    assert cluster.on(second) == []
    assert len(cluster.serving()) == 2


def test_a_node_where_no_replica_of_a_model_can_go_is_blocked_however_many_there_are():
    cluster = Drained(nodes=1, gpus=3, wants={"m": want(3)}).run(30)
    cluster.drain("node-0", at_deadline=KEEP)
    cluster.run(10)
    assert state(cluster, "node-0") == "blocked"
    assert says(cluster, "node-0") == [f"m-{n} is blocked: no node fits: 1 drained" for n in (1, 2, 3)]


def test_and_so_are_two_nodes_at_once():
    cluster = Drained(nodes=2, gpus=1, wants={"m": want(2)}).run(30)
    cluster.drain("node-0", at_deadline=KEEP)
    cluster.drain("node-1", at_deadline=KEEP)
    cluster.run(10)
    assert [state(cluster, node) for node in ("node-0", "node-1")] == ["blocked", "blocked"]


def test_many_that_find_a_place_at_once_take_turns_all_the_same():
    models = [f"m{n}" for n in range(6)]
    cluster = Drained(nodes=2, gpus=6, wants={m: want(1, m) for m in models}, surges_max=2, start_s=3)
    cluster.aims["node-1"] = "cordoned"
    cluster.run(30)
    cluster.drain("node-0", at_deadline=KEEP)
    cluster.run(20)
    assert state(cluster, "node-0") == "blocked"
    del cluster.aims["node-1"]
    most = 0
    while len(cluster.on("node-0")) > 1:
        cluster.run(1)
        most = max(most, len(starting(cluster)))
        assert state(cluster, "node-0") == "draining"
    cluster.run(30)
    assert most == 2
    assert cluster.on("node-0") == []


def test_what_waits_says_whose_turn_it_is():
    cluster = Drained(nodes=2, gpus=4, wants={"a": want(2, "a"), "b": want(1, "b")}, surges_max=1)
    cluster.aims["node-1"] = "cordoned"
    cluster.run(30)
    del cluster.aims["node-1"]
    cluster.drain("node-0")
    cluster.run(1)
    successor = next(name for name, row in cluster.rows.items() if row.replaces)
    assert says(cluster, "node-0") == [
        f"a-1 waits for a place for {successor}",
        "a-2 waits for its turn, after a-1",
        "b-3 waits for its turn: 1 other replacement starts",
    ]


def test_one_that_leaves_with_long_requests_holds_up_no_other_of_its_model():
    cluster = Drained(nodes=2, gpus=2, wants={"m": want(2)})
    cluster.aims["node-1"] = "cordoned"
    cluster.run(30)
    del cluster.aims["node-1"]
    cluster.in_flight = {"m-1": 1}
    cluster.drain("node-0")
    cluster.run(60)
    assert cluster.on("node-0") == ["m-1"]
    assert cluster.rows["m-1"].phase is Phase.LEAVING
    assert len(cluster.serving()) == 2
    assert cluster.least() == 0 or min(cluster.all_seen[40:])[0] == 2


def test_a_replacement_that_crashes_again_and_again_gives_its_place_in_the_row_to_others():
    bad = attrs.evolve(SPEC, args=("--bad",))
    cluster = Drained(nodes=2, gpus=2, wants={"a": want(1, "a", bad), "b": want(1, "b")}, surges_max=1)
    cluster.aims["node-1"] = "cordoned"
    cluster.run(30)
    del cluster.aims["node-1"]
    cluster.drain("node-0", at_deadline=KEEP)
    for _ in range(90):
        for row in list(cluster.rows.values()):
            if row.model == "a" and row.replaces:
                for id in row.instances:
                    cluster.kill(id)
        cluster.run(1)
    assert cluster.on("node-0") == ["a-1"]


def test_two_of_a_model_never_make_room_at_the_same_time():
    """Where policy lets the old one go first, and both find out at once that this would help."""
    cluster = Drained(nodes=2, gpus=1, wants={"m": want(2, on_full=OnFull.STOP_FIRST)}).run(30)
    for name in ("m-1", "m-2"):
        moved(cluster, name)
    for _ in range(60):
        cluster.run(1)
        assert len(cluster.serving()) >= 1
    assert len(cluster.serving()) == 2


def test_a_silent_node_says_what_its_drain_waits_for():
    cluster = Drained(nodes=2, wants={"m": want(1)}).run(30)
    node = home(cluster, "m-1")
    cluster.silent[node] = cluster.mono
    cluster.run(8)
    cluster.drain(node)
    cluster.run(1)
    assert says(cluster, node)[1] == (
        f"m-1 waits until {node} reports, or for 51 s (cluster.node_grace), or for `llmgw ctl nodes lost {node}`"
    )
    seen = cluster.seen()
    (move,) = drain_plan(seen, node, LIMITS, {"m": 1.0}, {}).moves
    assert move.blocked
    assert move.why.startswith(f"{node} is unreachable, silent for 9 s: ")


WANTS = {"a": want(2, "a"), "b": want(1, "b", BIG), "c": want(2, "c"), "d": want(1, "d")}
happenings = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["drain", "drain", "uncordon", "cordon"]), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("move"), st.integers(0, 5), st.integers(0, 3)),
        st.tuples(st.just("kill"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("busy"), st.integers(0, 5), st.integers(0, 1)),
        st.tuples(st.just("wait"), st.integers(1, 20), st.just(0)),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=settings().max_examples // 4)  # each is a whole cluster's life
@given(happenings, st.integers(1, 3), st.integers(3, 4), st.sampled_from([0, 3]))
def test_at_rest_every_drain_is_over_or_blocked_and_no_bound_was_passed(story, surges_max, gpus, start_s):
    cluster = Drained(nodes=4, gpus=gpus, wants=dict(WANTS), surges_max=surges_max, start_s=start_s).run(30)
    for what, n, to in story:
        rows = sorted(cluster.rows)
        if what == "drain":
            cluster.drain(f"node-{n}", grace_s=100_000.0, at_deadline=KEEP)
        elif what == "uncordon":
            cluster.aims.pop(f"node-{n}", None)
        elif what == "cordon":
            cluster.aims[f"node-{n}"] = "cordoned"
        elif what == "move" and not any(row.replaces == rows[n] for row in cluster.rows.values()):
            moved(cluster, rows[n], f"node-{to}")
        elif what == "kill" and cluster.shards:
            cluster.kill(sorted(cluster.shards)[n % len(cluster.shards)])
        elif what == "busy":
            cluster.in_flight[rows[n]] = to
        watched(cluster, n if what == "wait" else 1)
    cluster.in_flight.clear()
    watched(cluster, 400)
    seen = cluster.seen()
    for node in seen.nodes.values():
        if node.draining:
            assert not cluster.on(node.name) or is_blocked(seen, node), says(cluster, node.name)


def watched(cluster, passes):
    for _ in range(passes):
        cluster.mono += 1
        before = len(starting(cluster))
        made = cluster.pass_()
        assert len(starting(cluster)) <= max(before, cluster.surges_max), [str(a) for a in made.actions]
        for model, wish in cluster.wants.items():
            its = [now for now in cluster.seen().replicas.values() if now.replica.model == model]
            begun = any(isinstance(a, Start) and a.replica in {now.name for now in its} for a in made.actions)
            assert not begun or sum(now.live for now in its) <= wish.replicas + 1


@pytest.mark.parametrize(
    ("wants", "surges_max"),
    [
        ({f"m{n}": want(1, f"m{n}") for n in range(8)}, 2),
        ({f"m{n}": want(1, f"m{n}") for n in range(8)}, 4),
        ({"a": want(4, "a"), "b": want(1, "b")}, 4),
        ({"a": want(3, "a"), "b": want(2, "b"), "c": want(1, "c")}, 1),
    ],
)
def test_a_drain_without_requests_takes_no_longer_than_its_dry_run_says(wants, surges_max):
    cluster = Drained(nodes=2, gpus=8, wants=wants, surges_max=surges_max, start_s=4)
    cluster.aims["node-1"] = "cordoned"
    cluster.run(40)
    del cluster.aims["node-1"]
    starts = dict.fromkeys(wants, 4.0)
    plan = drain_plan(cluster.seen(), "node-0", LIMITS, starts, {}, surges_max)
    cluster.drain("node-0")
    took = 0
    while cluster.on("node-0"):
        cluster.run(1)
        took += 1
    assert took <= plan.estimate_s <= took * 1.5
