"""What an agent does about the whole set of what is wanted."""

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from agent.orders import Forget, Have, Prepare, Recall, Refuse, Stop, fingerprint, orders
from llmgw.core.shards import ENDED, Fetch, Launch, ShardState

STATES = [s for s in ShardState if s not in (ShardState.READY, ShardState.LEAVING)]
ids = st.sampled_from([f"m-{n}.g{n}.r0" for n in range(6)])
launches = st.builds(
    Launch,
    id=ids,
    argv=st.sampled_from([("engine",), ("engine", "--more")]),
    env=st.dictionaries(st.sampled_from("AB"), st.sampled_from("xy")),
    files=st.sampled_from([None, Fetch("/m"), Fetch("/n", ("get",))]),
    key=st.just("k"),
    key_env=st.just("KEY"),
)
haves = st.builds(
    Have,
    state=st.sampled_from(STATES),
    fingerprint=st.sampled_from(["", "other"]),
    stopping=st.booleans(),
    record_lost=st.booleans(),
)


@given(st.lists(launches), st.dictionaries(ids, haves), st.sets(ids))
def test_nothing_that_is_there_is_started_and_only_what_is_wanted_is(wanted, have, reported):
    named = {launch.id for launch in wanted}
    for act in orders(wanted, have, reported):
        match act:
            case Prepare(launch):
                assert launch in wanted
                assert launch.id not in have
            case Stop(id):
                assert id not in named
                assert have[id].state not in ENDED
                assert not have[id].stopping
            case Forget(id):
                assert id not in named
                assert have[id].state in ENDED
                assert id in reported
            case Recall(launch):
                assert have[launch.id].record_lost
            case Refuse(id, why):
                assert id in named
                assert why


@given(st.lists(launches, unique_by=lambda launch: launch.id))
def test_what_was_begun_is_not_begun_again(wanted):
    have = {
        act.launch.id: Have(ShardState.STARTING, fingerprint(act.launch))
        for act in orders(wanted, {})
        if isinstance(act, Prepare)
    }
    assert have.keys() == {launch.id for launch in wanted}
    assert orders(wanted, have) == ()
    assert orders([*wanted, *wanted], have) == ()
    assert {act.id for act in orders((), have) if isinstance(act, Stop)} == have.keys()


@given(launches, launches)
def test_one_id_with_two_launches_starts_neither(one, other):
    other = evolve(other, id=one.id)
    acts = orders([one, other], {})
    assert acts == (Prepare(one),) if fingerprint(one) == fingerprint(other) else isinstance(acts[0], Refuse)


@given(launches, launches)
def test_a_fingerprint_tells_launches_apart(one, other):
    other = evolve(other, id=one.id)
    assert (fingerprint(one) == fingerprint(other)) == (one == other)


def test_a_changed_launch_is_refused_and_nothing_is_done_to_what_runs():
    one = Launch("m-1.g1.r0", ("engine",))
    have = {one.id: Have(ShardState.LOADING, fingerprint(one))}
    (act,) = orders([evolve(one, argv=("other",))], have)
    assert act == Refuse(one.id, "it was started with other settings; these need an id of their own")


def test_what_was_not_looked_at_is_left_alone():
    one = Launch("m-1.g1.r0", ("engine",))
    have = {one.id: Have(ShardState.UNKNOWN)}
    assert orders([one], have) == ()
    assert orders([], have) == ()


def test_a_lost_record_is_told_again():
    one = Launch("m-1.g1.r0", ("engine",))
    assert orders([one], {one.id: Have(ShardState.LOADING, fingerprint(one), record_lost=True)}) == (Recall(one),)


def test_what_runs_without_a_record_is_not_started_beside_itself():
    one = Launch("m-1.g1.r0", ("engine",))
    assert orders([one], {}, strangers={one.id: "pid 7"}) == (Refuse(one.id, "pid 7"),)


def test_a_field_added_later_changes_no_fingerprint_while_it_is_at_its_default():
    one = Launch("m-1.g1.r0", ("engine",))
    assert fingerprint(one) == fingerprint(evolve(one, memory_within_s=120.0))
    assert fingerprint(one) != fingerprint(evolve(one, memory_within_s=121.0))


def test_launches_that_make_no_sense_are_refused():
    for launch, why in (
        (Launch("../x", ("e",)), "its id is no name for a folder"),
        (Launch("m", ()), "it has no command"),
        (Launch("m", ("e",), ports=("http", "http")), "two of its ports have one name"),
        (Launch("m", ("e",), key="k"), "it has a key and no variable to give it in"),
    ):
        assert orders([launch], {}) == (Refuse(launch.id, why),)
