"""Drains on a screen: how far they are, and what one would do before it is asked."""

from datetime import UTC
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from console.model import Picture
from console.shown import Place, Tone
from console.views.drains import detail, drain_lines, listing, plan_lines, planned_apart, would_block
from tests.console.answers import BLOCKED_DRAIN, DRAIN, DRY_RUN, MOVE, PROGRESS, STUCK_MOVE, picture
from tests.console.holes import pictures, randoms, with_holes

BOTH = {**DRY_RUN, "plan": {"estimate_s": 14.0, "moves": [MOVE, STUCK_MOVE]}}
EMPTY = {**DRY_RUN, "node": "node-2", "plan": {"estimate_s": 0.0, "moves": []}}
ENDPOINT = {
    "dry_run": True, "endpoint": "static", "target": "drained", "refused": "",
    "plan": {"estimate_s": 0.0, "moves": [{**MOVE, "replica": "static", "to": [], "why": "b serves", "takes_s": 0.0}]},
}  # fmt: skip
REFUSED = {"node": "node-9", "error": {"message": "no node is called 'node-9'", "code": "not_found", "hint": "node-1?"}}


def told(answer: Any, width: int = 100) -> list[str]:
    return [str(line) for line in plan_lines(answer, width)]


def test_a_drain_says_how_far_it_is_and_what_it_waits_for() -> None:
    (row,) = listing(picture(drains={"node-1": DRAIN})).rows

    assert [cell.text for cell in row.cells] == [
        "node-1", "draining", "1 of 2", "0", "44 min", "demo-model-3 finishes 2 requests, oldest 9 s", "ada",
        "fans are loud",
    ]  # fmt: skip
    assert not row.faulty


def test_a_blocked_one_is_a_fault() -> None:
    (row,) = listing(picture(drains={"node-1": BLOCKED_DRAIN})).rows

    assert row.faulty
    assert row.cells[5].tone is Tone.BAD


def test_time_that_is_over_is_said_to_be_so() -> None:
    late = {**DRAIN, "drain": {**PROGRESS, "left_s": -30.0}}

    assert listing(picture(drains={"node-1": late})).rows[0].cells[4].text == "over by 30 s"


def test_one_that_has_ended_says_how_and_no_time() -> None:
    said = "node-1 is drained after 11 s: no process is left, 0 requests were cut"
    ended = {**PROGRESS, "state": "drained", "left": [], "waits_on": [], "left_s": None, "said": said}
    some = picture(drains={"node-1": {**DRAIN, "drain": ended}})

    assert [cell.text for cell in listing(some).rows[0].cells][4:6] == ["-", said]
    assert said in [str(line) for line in detail(some, "", "node-1", {})]
    assert not any("time left" in str(line) for line in detail(some, "", "node-1", {}))


def test_the_pane_tells_of_each_replica_and_what_comes_at_the_deadline() -> None:
    assert [str(line) for line in drain_lines(picture(drains={"node-1": DRAIN}), "node-1", UTC)] == [
        "node-1  draining",
        "asked by ada at 17:52:53: fans are loud",
        "… demo-model-3 → node-2  still there",
        "✓ demo-model-5 → node-3  replaced",
        "process of demo-model-3.g4.r0 is there",
        "waits  demo-model-3 finishes 2 requests, oldest 9 s",
        "time left  44 min of 45 min; then what is left is stopped, and its requests are cut",
        "0 requests cut",
    ]


def test_a_drain_that_is_over_and_gone_is_no_error() -> None:
    assert [str(line) for line in detail(picture(), "", "node-1", {})] == ["node-1 is not drained any more"]


def test_a_dry_run_tells_each_move_and_why_and_what_it_takes() -> None:
    assert told(DRY_RUN) == [
        "node-1  1 replica, 2 requests, about 14 s and as long as its requests last",
        "  ✓ demo-model-3 → node-2, 2 requests, oldest 9 s, about 12 s",
        "      apart 1.00, room 0.83",
    ]


def test_a_move_without_a_place_is_marked_and_leads_to_why() -> None:
    stuck = [line for line in plan_lines(BOTH, 100) if "demo-model-4" in str(line)]

    assert [str(line) for line in stuck] == ["  ✗ demo-model-4 stays, 2 requests, oldest 9 s, about 12 s"]
    assert stuck[0].cells[0].tone is Tone.BAD
    assert stuck[0].leads_to == Place("placement", "demo-model")
    assert told(BOTH)[0].startswith("node-1  2 replicas, 4 requests, 1 blocked")


def test_where_nothing_runs_there_is_nothing_to_wait_for() -> None:
    assert told(EMPTY) == ["node-2  nothing runs there: it is drained at once"]


def test_of_several_it_is_said_that_each_was_planned_alone() -> None:
    assert [str(line) for line in planned_apart([DRY_RUN, BOTH])] == [
        "! each is planned by itself: together they may find less room than this says"
    ]
    assert planned_apart([DRY_RUN]) == planned_apart([DRY_RUN, EMPTY, REFUSED]) == ()


def test_what_would_be_refused_says_why() -> None:
    slow = {**DRY_RUN, "refused": "draining node-1 takes about 9000 s, and drain.grace is 2700 s"}

    assert told(slow)[-1].startswith("  ✗ would be refused: draining node-1 takes")
    assert told(REFUSED) == ["node-9", "  ✗ refused: no node is called 'node-9'", "    node-1?"]


def test_an_endpoint_goes_nowhere_and_gets_nothing_new() -> None:
    assert told(ENDPOINT)[1] == "  ✓ static gets no new request, 2 requests, oldest 9 s"


def test_a_dialog_knows_whether_all_of_it_would_go_well() -> None:
    assert [would_block([one]) for one in (DRY_RUN, EMPTY, ENDPOINT, BOTH, REFUSED, {**DRY_RUN, "refused": "x"})] == [
        False, False, False, True, True, True,
    ]  # fmt: skip
    assert would_block([DRY_RUN, BOTH])


@given(pictures, randoms, st.integers(10, 100))
def test_no_line_is_too_wide_and_nothing_that_is_missing_hinders_them(some: Picture, rng: Random, width: int) -> None:
    for row in listing(some).rows:
        assert len(row.cells) == 8
        assert detail(some, "", row.key, {"drain": {}})
    answers = [with_holes(one, rng, 0.3) for one in (BOTH, EMPTY, ENDPOINT, REFUSED)]
    told = [str(line) for answer in answers for line in plan_lines(answer, width)]
    assert all(line.isprintable() and cell_len(line) <= width for line in told)
    assert would_block(answers) in (True, False)
