"""The tables of requests: which are shown for whom, and that what they say is not."""

from datetime import UTC
from typing import Any

import pytest
from hypothesis import given

from console.model import Picture
from console.shown import Listing, Place, Tone
from console.views.requests import detail, is_id, latest, recent, replica_of, running, tone_of
from tests.console.answers import BROKE, HEALTHY, NOT_FOUND, QUEUED, RECENT, RUNNING, picture
from tests.console.holes import pictures

SECRET = "my dear diary"


def texts(shown: Listing) -> list[list[str]]:
    return [[cell.text for cell in row.cells] for row in shown.rows]


def test_a_running_request_says_where_it_is_and_how_long() -> None:
    streaming, queued = texts(running(HEALTHY))

    assert streaming == [
        "req_40ae84120f5800000321", "demo-model", "demo", "gold", "streaming", "demo-model-4.g5", "1 s", "0 ms",
        "100 ms", "55",
    ]  # fmt: skip
    assert queued[4:] == ["queued", "-", "1 s", "0 ms", "-", "0"]


def test_one_that_failed_says_how_and_why() -> None:
    _, broke, slow = texts(recent(HEALTHY, zone=UTC))

    assert broke[5:] == ["engine broke", "502", "12 s", "-", "the engine closed the connection"]
    assert slow[1] == "17:53:23"
    assert slow[5:] == ["ok", "200", "12 s", "80 ms", "waited 3 s in queues"]


@pytest.mark.parametrize(
    ("subject", "running_ids", "recent_ids"),
    [
        ("", ["321", "325"], ["323", "324", "320"]),
        ("demo-model", ["321", "325"], ["324", "320"]),
        ("nope", [], ["323"]),
        ("demo-model-4.g5", ["321"], ["324", "320"]),
        ("demo-model-4", ["321"], ["324", "320"]),
        ("demo-model-3", [], ["324"]),  # an attempt was there
        ("demo-model-4.g", [], []),
    ],
)
def test_a_subject_is_a_model_an_endpoint_or_a_replica(
    subject: str, running_ids: list[str], recent_ids: list[str]
) -> None:
    assert [row.key[-3:] for row in running(HEALTHY, subject).rows] == running_ids
    assert [row.key[-3:] for row in recent(HEALTHY, subject).rows] == recent_ids


def test_an_endpoint_with_a_number_after_g_is_a_replicas() -> None:
    assert [replica_of(name) for name in ("m-1.g7", "m.g2.g7", "static", "big.gpu", "m.g")] == [
        "m-1",
        "m.g2",
        "",
        "",
        "",
    ]


@pytest.mark.parametrize(
    ("outcome", "tone"),
    [
        ("ok", Tone.GOOD),
        ("model_not_found", Tone.DIM),
        ("engine_broke", Tone.BAD),
        ("queue_full", Tone.BAD),
        ("of a newer version", Tone.WARN),
    ],
)
def test_a_tone_says_whose_fault_it_was(outcome: str, tone: Tone) -> None:
    assert tone_of(outcome) is tone


def test_another_name_of_a_model_is_told_beside_it() -> None:
    rows: list[dict[str, Any]] = [{**RUNNING, "asked": "gpt-4"}, {**RUNNING, "model": "", "asked": "nope"}]

    assert [row[1] for row in texts(running(picture(running=rows)))] == ["demo-model (gpt-4)", "nope?"]


def test_what_a_request_says_is_never_shown() -> None:
    more = dict.fromkeys(("messages", "prompt", "body", "content", "label", "key"), SECRET)
    some = picture(
        running=[{**RUNNING, **more}, {**QUEUED, **more}],
        recent=[{**one, **more} for one in (RECENT, BROKE, NOT_FOUND)],
    )

    shown = [cell for listing in (running(some), recent(some)) for row in texts(listing) for cell in row]
    shown += [str(line) for row in (*some.running, *some.recent) for line in detail(some, "", row["id"], {})]
    assert not [text for text in shown if SECRET in text]


def test_the_pane_of_a_running_one_leads_to_its_replica_and_of_a_queued_one_to_the_queue() -> None:
    places = [
        line.leads_to for one in (RUNNING, QUEUED) for line in detail(HEALTHY, "", one["id"], {}) if line.leads_to
    ]

    assert places == [Place("replica", "demo-model-4"), Place("queues", "demo-model")]


def test_the_pane_of_one_that_has_ended_tells_its_explanation_and_attempts() -> None:
    said = {"subject": "request 324", "verdict": "engine broke after 12.5 s"}
    told = [str(line) for line in detail(HEALTHY, "", BROKE["id"], {"request": said})]

    assert told == [
        "request 324",
        "  engine broke after 12.5 s",
        "attempt 1 at demo-model-3.g4: engine broke (reset) after 500 ms",
    ]


@given(pictures)
def test_nothing_that_is_missing_hinders_the_tables(some: Picture) -> None:
    for shown in (running(some), recent(some), latest(some)):
        for row in shown.rows:
            assert len(row.cells) == len(shown.columns)
            assert detail(some, "", row.key, {"request": {}})


def test_of_all_that_have_ended_each_leads_to_its_explanation() -> None:
    shown = latest(picture(latest=[RECENT, BROKE]))

    assert [(row.key, row.leads_to) for row in shown.rows] == [
        (one["id"], Place("request", one["id"])) for one in (RECENT, BROKE)
    ]
    assert [row.key for row in latest(picture(latest=[RECENT, BROKE]), "demo-model-3").rows] == [BROKE["id"]]
    assert latest(picture(), "m").empty == "no request has ended lately for m"


def test_the_pane_tells_the_attempts_of_one_that_went_well() -> None:
    well = {**RECENT, "id": "req_well", "tries": [{"endpoint": "m-1.g1", "outcome": "ok", "seconds": 1.0}]}
    told = [str(line) for line in detail(picture(latest=[well]), "", "req_well", {})]

    assert told == ["attempt 1 at m-1.g1: ok after 1 s"]


def test_an_id_is_told_from_a_model_that_is_called_like_one() -> None:
    some = picture(models={"req_me": {}})

    assert [is_id(name, some) for name in ("req_40ae", "req_me", "demo-model", "")] == [True, False, False, False]
