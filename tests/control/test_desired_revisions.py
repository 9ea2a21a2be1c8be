"""What is wanted: revisions, what operators scale over them, and what a change does in sentences."""

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from llmgw.control.desired import SCALE_MAX, Desired, difference, scales_that_stay
from llmgw.core.engine_spec import EngineSpec, OnFull, PlacementRules, Want
from llmgw.core.identity import Declined, Operator, Role
from llmgw.store import audit
from llmgw.store.desired import KEPT, Scale

ANN = Operator("ann", Role.OPERATOR)
WANT = Want("m", EngineSpec("vllm", gpus=1), least=2, most=2)
STOPS = evolve(WANT, rules=PlacementRules(on_full=OnFull.STOP_FIRST))


@pytest.fixture
def store(any_store):
    return any_store


# -- revisions -----------------------------------------------------------------------------------------------


async def test_models_as_before_are_no_new_revision(store):
    desired = await Desired.load(store, lambda: 5.0)

    assert await desired.record([{"name": "m"}], "start", source="a.toml") == 1
    assert await desired.record([{"name": "m"}], "start", source="b.toml") == 1
    assert await desired.record([{"name": "m", "aliases": ["n"]}], "ann", "other names") == 2
    assert await desired.record([{"name": "m", "aliases": ["n"]}], "ann", number=7) == 7, "limits alone changed"

    kept = await desired.history()
    assert [(r.revision, r.who, r.why, r.source) for r in kept] == [
        (7, "ann", "", ""), (2, "ann", "other names", ""), (1, "start", "", "a.toml"),
    ]  # fmt: skip


async def test_the_next_process_goes_on_where_this_one_ended(store):
    desired = await Desired.load(store)
    await desired.record([{"name": "m"}], "start")
    desired.take([WANT])
    await desired.scale(ANN, "m", 5)

    again = await Desired.load(store)
    again.take([WANT])

    assert (again.revision, again.models) == (1, [{"name": "m"}])
    assert again.wants["m"].replicas == 5
    assert await again.record([{"name": "m"}], "start") == 1


async def test_no_model_at_all_is_a_revision_too(store):
    desired = await Desired.load(store)
    assert desired.models is None
    await desired.record([], "start")

    assert (desired.revision, (await Desired.load(store)).models) == (1, [])


async def test_only_the_latest_revisions_are_kept(store):
    desired = await Desired.load(store)
    await desired.record([{"name": "a"}], "ann", number=1)
    await desired.record([{"name": "b"}], "ann", number=KEPT + 1)

    assert isinstance(await desired.find(1), Declined)
    assert [r.revision for r in await desired.history()] == [KEPT + 1]


async def test_an_earlier_revision_is_found_whole_and_recorded_again(store):
    desired = await Desired.load(store)
    await desired.record([{"name": "m", "replicas": 1}], "start")
    await desired.record([{"name": "m", "replicas": 3}], "ann")

    to = await desired.find(1)
    assert to.models == [{"name": "m", "replicas": 1}]
    assert await desired.record(to.models, "ann", "rolled back to revision 1") == 3
    assert (await desired.find(9)).hint == "`llmgw ctl history` lists them"


# -- scaling -------------------------------------------------------------------------------------------------


async def test_what_is_scaled_counts_instead_of_what_is_written_until_it_is_reset(store):
    desired, changes = await Desired.load(store), []
    desired.take([WANT])
    desired.on_change = lambda: changes.append(desired.wants["m"].replicas)

    assert (await desired.scale(ANN, "m", 0, "night")).replicas == 0
    desired.take([evolve(WANT, least=4, most=4)])
    assert desired.wants["m"].replicas == 0, "an apply leaves it"
    assert (await desired.scale(ANN, "m", None)).replicas == 4

    assert changes == [0, 0, 4]
    acts = await store.read(lambda conn: audit.recent(conn, 5))
    assert [(a.what, a.subject, a.why, a.before, a.after) for a in acts] == [
        ("models.scale", "m", "", 0, None), ("models.scale", "m", "night", None, 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("want", "replicas", "code"),
    [
        (WANT, -1, "field"),
        (WANT, SCALE_MAX + 1, "field"),
        (evolve(WANT, least=1, most=4), 5, "over_max"),
    ],
)
async def test_what_can_t_be_scaled_changes_nothing(store, want, replicas, code):
    desired = await Desired.load(store)
    desired.take([want])

    assert (await desired.scale(ANN, "m", replicas)).code == code
    assert (await desired.scale(ANN, "n", 1)).code == "not_found"
    assert desired.wants == {"m": want}
    assert await store.read(lambda conn: audit.recent(conn, 5)) == []


async def test_a_max_that_was_lowered_bounds_what_was_scaled_before(store):
    desired = await Desired.load(store)
    desired.take([evolve(WANT, least=1, most=6)])
    await desired.scale(ANN, "m", 5)

    desired.take([evolve(WANT, least=1, most=3)])

    assert desired.wants["m"].replicas == 3


# -- what a change does --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "says", "restarts"),
    [
        ([], [WANT], ["m: 2 replicas start"], ()),
        ([WANT], [], ["m: 2 replicas end"], ()),
        ([], [evolve(WANT, least=1, most=1)], ["m: 1 replica starts"], ()),
        ([], [evolve(WANT, least=0, most=0)], ["m: no replica starts"], ()),
        ([WANT], [WANT], [], ()),
        (
            [WANT],
            [evolve(WANT, spec=evolve(WANT.spec, args=("--x",), gpu_memory_mib=9))],
            ["m: engines are replaced one by one, replacement first (args, gpu_memory)"],
            ("m",),
        ),
        (
            [WANT],
            [evolve(WANT, spec=evolve(WANT.spec, capacity=9, start_within_s=3))],
            ["m: capacity, start_within changes, no engine restarts"],
            (),
        ),
        ([WANT], [evolve(WANT, most=4)], ["m: replicas 2 -> 2 to 4"], ()),
        (
            [WANT],
            [evolve(WANT, rules=PlacementRules(one_per_node=True, selector={"rack": "a"}))],
            ["m: where it may run changes (selector, one_per_node)"],
            (),
        ),
        (
            [STOPS],
            [evolve(WANT, rules=PlacementRules(one_per_node=True))],
            [
                "m: a replacement that has no room waits, and what runs stays, those that wait now too (on_full)",
                "m: where it may run changes (one_per_node)",
            ],
            (),
        ),
    ],
)
def test_a_change_is_told_in_sentences(before, after, says, restarts):
    found = difference({w.model: w for w in before}, {w.model: w for w in after})

    assert (list(found.changes), found.restarts) == (says, restarts)


@pytest.mark.parametrize(
    ("before", "after", "may_stop"),
    [(WANT, STOPS, ("m",)), (STOPS, WANT, ()), (STOPS, evolve(STOPS, least=1), ()), (None, STOPS, ())],
)
def test_where_replacements_wait_and_stop_running_ones_first_from_now_on_that_is_said(before, after, may_stop):
    found = difference({"m": before} if before else {}, {"m": after})

    assert (found.may_stop, found.restarts) == (may_stop, ())
    stops = "m: a replacement that has no room stops a running replica first, those that wait now too (on_full)"
    assert (stops in found.changes) == bool(may_stop)


SPECS = st.builds(
    EngineSpec, st.just("vllm"), args=st.sampled_from([(), ("--x",)]), gpus=st.integers(0, 2),
    capacity=st.sampled_from([None, 4]), fetch=st.sampled_from([(), ("get",)]),
)  # fmt: skip
WANTS = st.dictionaries(st.sampled_from("abc"), st.builds(Want, st.just(""), SPECS, least=st.just(1), most=st.just(1)))


@given(WANTS, WANTS)
def test_engines_restart_exactly_where_their_revision_changes(before, after):
    found = difference(before, after)

    both = before.keys() & after.keys()
    assert set(found.restarts) == {n for n in both if before[n].spec.revision != after[n].spec.revision}
    differing = {n for n in before.keys() | after.keys() if before.get(n) != after.get(n)}
    assert {sentence.partition(":")[0] for sentence in found.changes} == differing


def test_what_operators_scaled_is_told_of_models_that_stay():
    scales = {"m": Scale("m", 5, 0.0, "ann"), "gone": Scale("gone", 1, 0.0, "ann")}

    assert list(scales_that_stay([WANT], scales)) == [
        "m: scaled to 5 by ann, which stays (`llmgw ctl scale m --reset`)"
    ]
