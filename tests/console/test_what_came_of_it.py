"""What a dialog says: what an act would do, that it is done, that nobody knows, or why it was refused."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from console.acts import VERBS
from console.feed.api import Away, Refused
from console.model import Picture
from console.shown import Line, Tone
from console.views.read import Json
from console.views.said import Answer, before, dry_run, outcome
from tests.console.answers import DRY_RUN, STUCK_MOVE
from tests.console.holes import NAMES, randoms, with_holes

WIDTH = 76
CORDON = {
    "node": "node-1",
    "target": "cordoned",
    "confirmed": True,
    "said": "node-1 is cordoned",
    "may_still_start": [],
}
UNSURE = {**CORDON, "confirmed": False, "said": "node-1 is cordoned, unconfirmed: it has not obeyed rev 4"}
ANSWERS: dict[str, Json] = {
    "cordon": CORDON,
    "uncordon": {"node": "node-1", "target": "schedulable", "confirmed": True, "said": "node-1 is schedulable"},
    "drain": {**CORDON, "target": "drained", "said": "node-1 is draining", "plan": {"moves": []}},
    "move": {"replica": "r-1", "to": ["node-2", "node-3"], "why": "moved by ada"},
    "restart": {"replicas": ["m-1", "m-2"]},
    "scale": {"model": "m", "replicas": 3, "scaled": 3, "min": 0, "max": 8},
    "cancel": {"cancelled": "req_1"},
    "resign": {"resigned": "2.11", "stays_out_s": 10},
}


def says(verb: str, subject: str, answer: Answer) -> list[str]:
    return [str(one) for one in outcome(verb, subject, answer, WIDTH)]


# -- how things stand before ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("leader", "told"),
    [
        ({"standbys": [{"name": "gw-2", "silent": False}, {"name": "gw-3", "silent": True}]}, "now  gw-2 stands by"),
        ({"standbys": [{"name": "gw-2"}, {"name": "gw-3"}]}, "now  gw-2, gw-3 stand by"),
        ({"standbys": [{"name": "gw-3", "silent": True}]}, "! nobody stands by: nobody leads until this one takes the"),
        ({"standbys": None}, "? who stands by is not known: the store was not read lately"),
        ({"standbys": [], "alone": True}, "! nobody else could lead: the store is SQLite"),
    ],
)
def test_before_a_leader_resigns_it_is_told_who_takes_over(leader: Json, told: str) -> None:
    assert str(before("resign", "", Picture(), {}, leader, WIDTH)[0]).startswith(told)


def test_of_a_control_plane_that_does_not_tell_nothing_is_said() -> None:
    assert before("resign", "", Picture(), {}, {"leads": True}, WIDTH) == ()
    assert before("resign", "", Picture(), {}, None, WIDTH) == ()


# -- what was done ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "subject", "told"),
    [
        ("cordon", "node-1", "✓ node-1 is cordoned"),
        ("uncordon", "node-1", "✓ node-1 is schedulable"),
        ("drain", "node-1", "✓ node-1 is draining"),
        ("move", "r-1", "✓ r-1 goes to node-2, node-3, its replacement first"),
        ("restart", "m", "✓ asked for: m-1, m-2 will be replaced"),
        ("scale", "m", "✓ m: 3 replicas wanted now"),
        ("cancel", "req_1", "✓ req_1 is cancelled"),
        ("resign", "", "✓ term 2.11 is given back; it stays out until another leads, at most 10 s"),
    ],
)
def test_each_act_says_in_words_what_came_of_it(verb: str, subject: str, told: str) -> None:
    assert says(verb, subject, ANSWERS[verb]) == [told]


def test_every_act_that_there_is_says_something() -> None:
    assert ANSWERS.keys() == VERBS.keys()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"model": "m", "replicas": 1, "scaled": 1}, "✓ m: 1 replica wanted now"),
        ({"model": "m", "replicas": 0, "scaled": 0}, "✓ m: 0 replicas wanted now"),
        ({"model": "m", "replicas": 2, "scaled": None}, "✓ m: 2 replicas wanted now, as the config says"),
    ],
)
def test_a_model_that_is_scaled_says_whose_number_counts(answer: Json, told: str) -> None:
    assert says("scale", "m", answer) == [told]


@pytest.mark.parametrize("verb", ["cordon", "drain"])
def test_a_node_that_has_not_confirmed_is_not_to_be_touched(verb: str) -> None:
    told = outcome(verb, "node-1", UNSURE, WIDTH)

    assert [str(one) for one in told] == [
        "? node-1 is cordoned, unconfirmed: it has not obeyed rev 4",
        "  not sure yet: do not touch node-1; ask again",
    ]
    assert {told[0].cells[0].tone, told[1].cells[-1].tone} == {Tone.WARN}


@pytest.mark.parametrize("confirmed", [None, "yes", 1])
def test_a_cordon_that_says_nothing_certain_is_not_sure(confirmed: Any) -> None:
    assert says("cordon", "node-1", {**CORDON, "confirmed": confirmed})[1].startswith("  not sure yet")


def test_other_acts_need_no_node_to_confirm_them() -> None:
    assert [
        verb for verb, answer in ANSWERS.items() if says(verb, "x", {**answer, "confirmed": None})[0][0] != "✓"
    ] == [
        "cordon",
        "drain",
    ]


# -- what was not -----------------------------------------------------------------------------------------


def test_a_refusal_says_whose_it_is_why_and_what_to_do() -> None:
    refused = Refused("draining node-1 takes about 900 s, and drain.grace is 60 s", "give --grace", "too_short", 409)
    told = outcome("drain", "node-1", refused, WIDTH)

    assert [str(one) for one in told] == [
        "✗ node-1: draining node-1 takes about 900 s, and drain.grace is 60 s",
        "  give --grace",
    ]
    assert [one.cells[-1].tone for one in told] == [Tone.BAD, Tone.DIM]


def test_a_refusal_without_a_subject_or_a_hint_is_one_line() -> None:
    assert says("resign", "", Refused("vm-2 leads")) == ["✗ vm-2 leads"]


def test_a_change_that_was_sent_and_never_answered_may_have_been_done() -> None:
    lost = Away("http://a is not reachable: reset; it may have been done", "is it running?", unsent=False)

    assert says("cordon", "node-1", lost)[-1] == (
        "  nobody knows whether it was done: look at node-1 before you ask again"
    )
    assert says("cordon", "node-1", lost)[0].startswith("? node-1: http://a is not reachable")
    assert says("drain", "m", {**ANSWERS["drain"], "drain": {"state": "blocked"}})[0].startswith("! ")
    assert len(says("cordon", "node-1", Away("refused", "is it running?", unsent=True))) == 2


# -- what would be ----------------------------------------------------------------------------------------


def test_the_dry_run_of_a_drain_is_its_plan() -> None:
    told = [str(one) for one in dry_run("node-1", {**DRY_RUN, "plan": {"moves": [STUCK_MOVE]}}, WIDTH)]

    assert told[0].startswith("node-1  1 replica")
    assert told[1].startswith("  ✗ demo-model-4 stays")


def test_the_dry_run_of_a_move_is_where_it_would_go_and_why_there() -> None:
    answer = {"replica": "r-1", "to": ["node-2"], "dry_run": True, "why": "apart 1.00, room 0.83"}

    assert [str(one) for one in dry_run("r-1", answer, WIDTH)] == ["  r-1 would go to node-2: apart 1.00, room 0.83"]


def test_a_dry_run_that_would_be_refused_says_so() -> None:
    told = [
        str(one) for one in dry_run("node-1", {"node": "node-1", "plan": None, "refused": "it is too short"}, WIDTH)
    ]

    assert told[-1] == "  ✗ would be refused: it is too short"


def test_a_dry_run_that_is_refused_says_why_and_is_no_doubt_about_what_was_done() -> None:
    told = [str(one) for one in dry_run("r-1", Refused("r-1 fits nowhere else: 2 full", "see `explain`"), WIDTH)]

    assert told == ["✗ r-1: r-1 fits nowhere else: 2 full", "  see `explain`"]
    assert len(dry_run("r-1", Away("reset", unsent=False), WIDTH)) == 1


def test_a_dry_run_that_tells_nothing_does_not_look_like_nothing_would_happen() -> None:
    told = dry_run("node-1", {"dry_run": True}, WIDTH)

    assert str(told[0]).startswith("? node-1: what would happen is not told")


@given(randoms, st.sampled_from(list(ANSWERS)), st.sampled_from(NAMES), st.integers(20, 120))
def test_nothing_that_is_missing_hinders_it_and_every_line_fits(rng: Random, verb: str, name: str, width: int) -> None:
    def all_lines() -> tuple[Line, ...]:
        said = with_holes({**ANSWERS[verb], "said": rng.choice(["", name])}, rng, 0.5)
        refused = Refused(name * rng.randint(0, 5), name)
        return (
            *outcome(verb, name, said, width),
            *outcome(verb, name, refused, width),
            *dry_run(name, with_holes(DRY_RUN, rng), width),
            *dry_run(name, said, width),
        )

    for one in all_lines():
        assert cell_len(str(one)) <= width
        assert not set(str(one)) & {"\x1b", "\n", "\t"}
