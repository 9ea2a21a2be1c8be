"""What operators type and press, and what is sent for it."""

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from console.acts import VERBS, Act, Call, Wrong, may_act, offered, span_s
from console.commands import Do, Go, Leave, NotUnderstood, completions, meant
from console.model import Picture
from console.shown import Place

PICTURE = Picture(
    you={"name": "ann", "role": "operator"},
    nodes={"node-1": {}, "node-10": {}, "node-2": {}},
    models={"org/model": {}},
    replicas={"org/model-1": {}},
    running=({"id": "req_1"},),
)
VIEWER = Picture(you={"name": "vic", "role": "viewer"}, nodes={"node-1": {}})


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("nodes", Place("nodes")),
        (":nodes", Place("nodes")),
        ("no", None),
        ("eve", Place("events")),
        ("node node-1", Place("node", "node-1")),
        ("replicas org/model", Place("replicas", "org/model")),
        ("placement org/model gpus=2", Place("placement", "org/model gpus=2")),
    ],
)
def test_a_place_is_gone_to_by_its_name_or_the_only_beginning_of_it(line, place):
    found = meant(line, PICTURE, False)
    assert found == Go(place) if place is not None else isinstance(found, NotUnderstood)


def test_an_act_is_typed_with_whom_it_is_done_to_and_each_of_them_once():
    assert meant("drain node-1 node-2 node-1", PICTURE, False) == Do(Act(VERBS["drain"], ("node-1", "node-2")))
    assert meant("scale org/model 3", PICTURE, False) == Do(Act(VERBS["scale"], ("org/model",), {"replicas": "3"}))
    assert meant("resign", PICTURE, False) == Do(Act(VERBS["resign"], ("",)))


@pytest.mark.parametrize("line", ["drain", "node", "placement", "scale a b c", "frobnicate", "", "[bold]\x1b[2J"])
def test_what_can_not_be_understood_says_what_to_type(line):
    found = meant(line, PICTURE, False)
    assert isinstance(found, NotUnderstood)
    assert found.why.isprintable()


def test_a_viewer_and_a_reader_are_offered_no_act():
    for picture, read_only in ((VIEWER, False), (PICTURE, True)):
        assert offered(("cordon", "drain"), picture.role, read_only) == ()
        found = meant("drain node-1", picture, read_only)
        assert isinstance(found, NotUnderstood)
        assert ("read-only" if read_only else "operators") in found.why
        assert "drain" not in completions("dra", picture, read_only)
    assert not may_act("", False)
    assert [verb.name for verb in offered(("cordon",), "admin", False)] == ["cordon"]


def test_it_is_left_by_quit():
    assert meant("q", PICTURE, False) == Leave()
    assert meant("quit", PICTURE, True) == Leave()


def test_words_and_then_names_are_completed_as_people_count():
    assert completions("dra", PICTURE, False) == ["drains", "drain"]
    assert completions("drain node", PICTURE, False) == ["drain node-1", "drain node-2", "drain node-10"]
    assert completions("drain node-1 node", PICTURE, False) == ["drain node-1 node-2", "drain node-1 node-10"]
    assert completions("cancel ", PICTURE, False) == ["cancel req_1"]
    assert completions("nodes x", PICTURE, False) == []


@given(st.text(max_size=40))
def test_anything_may_be_typed(line):
    assert meant(line, PICTURE, False) is not None
    assert all(one.startswith(line.removeprefix(":").split(" ")[0]) for one in completions(line, PICTURE, False))


# -- what is sent ------------------------------------------------------------------------------------------


def only(name: str, subject: str, **values: str) -> Call:
    (call,) = Act(VERBS[name], (subject,)).calls(values)
    return call


def test_a_drain_is_tried_first_with_what_its_fields_hold():
    act = Act(VERBS["drain"], ("node-1", "endpoint/a/b"))
    values = {"why": " new fans ", "grace": "10min", "at_deadline": "keep"}
    body = {"target": "drained", "reason": "new fans", "grace": 600.0, "at_deadline": "keep"}
    assert act.dry_runs(values) == (
        Call("PUT", "/nodes/node-1/target", {**body, "dry_run": True}),
        Call("PUT", "/endpoints/a%2Fb/target", {**body, "dry_run": True}),
    )
    assert act.calls(values)[0] == Call("PUT", "/nodes/node-1/target", body)
    assert only("drain", "node-1").body == {"target": "drained", "reason": ""}


def test_other_acts_say_what_the_management_api_wants():
    assert only("cordon", "n", why="x").body == {"target": "cordoned", "reason": "x"}
    assert only("uncordon", "n").body == {"target": "schedulable", "reason": ""}
    assert only("move", "m-1", to="a, b").body == {"to": ["a", "b"], "reason": ""}
    assert only("restart", "org/model") == Call("POST", "/restart/org/model", {"why": ""})
    assert only("scale", "org/model", replicas="3") == Call(
        "PUT", "/models/org%2Fmodel/scale", {"replicas": 3, "why": ""}
    )
    assert only("scale", "m").body == {"replicas": None, "why": ""}
    assert only("cancel", "req_1", why="x") == Call("DELETE", "/requests/req_1", params={"why": "x"})
    assert only("resign", "") == Call("POST", "/leader/resign", {"why": ""})


def test_a_field_that_can_not_be_sent_is_named():
    for name, values in (("drain", {"grace": "soon"}), ("scale", {"replicas": "-1"}), ("cordon", {"why": "x" * 501})):
        with pytest.raises(Wrong, match=r"grace|replicas|reason"):
            Act(VERBS[name], ("a",)).calls(values)


def test_spans_are_written_as_for_ctl():
    assert [span_s(text) for text in ("90", "90s", "10min", "2h", "1.5 d")] == [90, 90, 600, 7200, 129_600]


def test_a_dialog_names_its_target_in_full_and_many_by_their_number():
    act = Act(VERBS["drain"], ("node-1\x1b[31m",))
    assert act.title == "Drain node-1 [31m"
    assert Act(VERBS["drain"], ("a", "b")).yes == "Yes, drain 2 subjects"
    assert Act(VERBS["resign"], ("",)).title == "Resign"


def test_no_two_verbs_of_one_kind_have_one_key():
    for kind in ("node", "replica", "model", "request", "leader"):
        its = [verb.key for verb in VERBS.values() if kind in verb.of]
        assert len(its) == len(set(its))


def test_what_stands_behind_a_replica_that_is_moved_is_where_to():
    assert meant("move org/model-1 node-1 node-2", PICTURE, False) == Do(
        Act(VERBS["move"], ("org/model-1",), {"to": "node-1 node-2"})
    )


def test_nobody_who_is_not_there_is_acted_on_once_it_is_known_who_is():
    known = evolve(PICTURE, taken_at=1.0)
    for line in ("cordon node-1 because fans", "scale nosuch 1", "move org/model-9"):
        found = meant(line, known, False)
        assert isinstance(found, NotUnderstood)
        assert "is called" in found.why
    assert isinstance(meant("drain endpoint/openai", known, False), Do)
    assert isinstance(meant("cancel req_9", known, False), Do)
