"""The table of what happened: how it reads, what it finds, where it leads."""

from datetime import UTC, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given

from console.model import Picture
from console.shown import Place, Tone
from console.views.events import detail, listing, place_of, tone_of
from llmgw.control.events import KINDS
from tests.console.answers import EVENTS, HEALTHY, WALL, picture
from tests.console.holes import pictures


def event(kind: str, subject: str = "x", sentence: str = "", **data: Any) -> dict[str, Any]:
    return {"seq": 1, "at": WALL, "kind": kind, "subject": subject, "sentence": sentence, "data": data}


def test_events_stand_in_the_order_of_their_numbers_with_the_newest_last() -> None:
    shown = listing(HEALTHY, zone=UTC)

    assert [row.key for row in shown.rows] == ["31", "32", "33"]
    assert [cell.text for cell in shown.rows[1].cells][:4] == ["32", "17:53:20", "replica.settled", "demo-model-4"]


def test_the_time_is_local_and_another_day_has_its_date() -> None:
    yesterday = {**EVENTS[0], "at": WALL - 86_400}
    shown = listing(picture(events=[yesterday, EVENTS[1]]), zone=timezone(timedelta(hours=2)))

    assert [row.cells[1].text for row in shown.rows] == ["11-29 19:53:43", "19:53:20"]


@pytest.mark.parametrize(
    ("needle", "numbers"),
    [("settled", ["32"]), ("NODE-2", ["31"]), ("fallen off", ["33"]), ("", ["31", "32", "33"]), ("nowhere", [])],
)
def test_a_filter_finds_kind_subject_and_sentence(needle: str, numbers: list[str]) -> None:
    shown = listing(HEALTHY, needle)

    assert [row.key for row in shown.rows] == numbers


def test_a_filter_that_finds_nothing_says_in_how_many() -> None:
    assert listing(HEALTHY, "nowhere").empty == "no event of 3 tells of 'nowhere'"
    assert listing(Picture()).empty.startswith("nothing has happened yet")


@pytest.mark.parametrize(
    ("told", "tone"),
    [
        (event("replica.failed"), Tone.BAD),
        (event("node.lost"), Tone.BAD),
        (event("replica.ready"), Tone.GOOD),
        (event("gpu.cleared"), Tone.GOOD),
        (event("gpu.evidence", sentence="n GPU 0: excluded: xid 79"), Tone.BAD),
        (event("gpu.evidence", sentence="n GPU 0: note: it is hot"), Tone.WARN),
        (event("node.target", target="drained"), Tone.BUSY),
        (event("node.target", ended="drained"), Tone.GOOD),
        (event("node.target", ended="blocked"), Tone.BAD),
        (event("of a newer version"), Tone.PLAIN),
    ],
)
def test_what_an_event_means_has_a_tone(told: dict[str, Any], tone: Tone) -> None:
    assert tone_of(told) is tone


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_that_the_daemon_tells_has_a_tone_and_all_but_one_a_place(kind: str) -> None:
    assert tone_of(event(kind)) is not Tone.PLAIN
    assert (place_of(event(kind)) is None) == (kind == "config.applied")


@pytest.mark.parametrize(
    ("told", "place"),
    [
        (event("node.silent", "node-1"), Place("node", "node-1")),
        (event("node.removed", "node-1"), Place("nodes")),
        (event("gpu.evidence", "node-1/GPU-1"), Place("gpu", "node-1/GPU-1")),
        (event("replica.ready", "m-1"), Place("replica", "m-1")),
        (event("replica.gone", "m-1", model="m"), Place("replicas", "m")),
        (event("model.scaled", "m"), Place("replicas", "m")),
        (event("leader.doubts", "leader"), Place("leader")),
        (event("endpoint.target", "static"), Place("drain", "endpoint/static")),
        (event("operator.acted", "node-1/GPU-1"), Place("gpu", "node-1/GPU-1")),
        (event("operator.acted", "m-1"), Place("replica", "m-1")),
        (event("config.applied", "7"), None),
    ],
)
def test_an_event_leads_to_its_subject(told: dict[str, Any], place: Place | None) -> None:
    assert place_of(told) == place


def test_the_pane_tells_what_the_sentence_leaves_out() -> None:
    told = [str(line) for line in detail(HEALTHY, "", "32", {})]

    assert "demo-model-4 has replaced demo-model-2" in told
    assert "generation: 5" in told
    assert [str(line) for line in detail(HEALTHY, "", "99", {})] == ["it is not remembered any more"]


@given(pictures)
def test_nothing_that_is_missing_hinders_the_table(some: Picture) -> None:
    shown = listing(some)

    assert all(cell.text.isprintable() for row in shown.rows for cell in row.cells)
    assert [detail(some, "", row.key, {}) for row in shown.rows]
    assert tuple(shown.rows[1:]) == tuple(shown.rows)[1:]
