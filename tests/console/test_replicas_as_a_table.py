"""Models, replicas and shards as an operator reads them: how they do, why, and the end of an engine's log."""

from random import Random
from typing import Any

import pytest
from hypothesis import given

from console.model import Picture
from console.shown import Line, Listing, Place, Row, Tone
from console.views import replicas
from console.views.read import Json
from console.views.replicas import LOG_BYTES, LOG_LINES
from console.views.view import Question
from tests.console.answers import CRASHING, HEALTHY, MODEL, NODE, REPLICA, SHARD, STATIC_MODEL, picture
from tests.console.holes import pictures, randoms, with_holes
from tests.console.scenes import BLOCKED_MODEL, LOG, SICK_NODE, STRANGE

RUN: Any = MODEL["replicas"]
TWO_SHARDS = {**REPLICA, "shards": [SHARD, {**SHARD, "id": "demo-model-3.g4.r1", "rank": 1, "node": "node-2"}]}


def told(row: Row) -> list[str]:
    return [cell.text for cell in row.cells]


def lines(told: tuple[Line, ...]) -> list[str]:
    return [str(one) for one in told]


def model_row(model: Json) -> Row:
    return replicas.models(picture(models={"m": model})).rows[0]


def about_model(model: Json, asked: Json | None = None) -> tuple[Line, ...]:
    return replicas.model_detail(picture(models={"m": model}), "", "m", asked or {}, 80)


def replica_row(replica: Json) -> Row:
    return replicas.replicas(picture(replicas={"r": replica})).rows[0]


def about(replica: Json, asked: Json | None = None) -> tuple[Line, ...]:
    return replicas.replica_detail(picture(replicas={"r": replica}), "", "r", asked or {}, 80)


def names(listing: Listing) -> list[str]:
    return [row.key for row in listing.rows]


# -- models -----------------------------------------------------------------------------------------------


def test_a_model_is_told_with_what_serves_and_what_is_wanted() -> None:
    row = model_row(MODEL)

    assert told(row) == ["m", "2", "2", "5%", "3", "2 ready", ""]
    assert (row.faulty, row.leads_to) == (False, Place("replicas", "m"))


def test_a_model_that_agents_do_not_run_tells_its_endpoints_and_leads_to_its_queue() -> None:
    row = model_row(STATIC_MODEL)

    assert told(row) == ["m", "1", "-", "0%", "0", "1 of 1 endpoints usable", ""]
    assert row.leads_to == Place("queues", "m")


@pytest.mark.parametrize(
    ("model", "tone"),
    [
        (MODEL, Tone.GOOD),
        ({**MODEL, "replicas": {**RUN, "serving": 1}}, Tone.WARN),
        ({**MODEL, "replicas": {**RUN, "serving": 0}}, Tone.BAD),
        ({**MODEL, "replicas": {**RUN, "serving": 0, "desired": 0}}, Tone.GOOD),  # nobody wants one
        ({**STATIC_MODEL, "usable": 0}, Tone.BAD),
        ({**MODEL, "replicas": {**RUN, "serving": None}}, Tone.DIM),
    ],
)
def test_a_model_with_too_few_is_a_fault(model: Json, tone: Tone) -> None:
    row = model_row(model)

    assert (row.cells[1].tone, row.faulty) == (tone, tone in (Tone.WARN, Tone.BAD))


def test_what_blocks_replicas_is_told_once_however_many_wait_for_it() -> None:
    row = model_row(
        {**BLOCKED_MODEL, "replicas": {**BLOCKED_MODEL["replicas"], "blocked": ["full", "full", "cordoned"]}}
    )

    assert row.cells[-1].text == "full; cordoned"


def test_a_full_model_is_red_at_its_limit_and_not_before() -> None:
    assert [model_row({**MODEL, "saturation": full}).cells[3].tone for full in (0.99, 1.0)] == [Tone.PLAIN, Tone.BAD]


def test_a_model_that_says_nothing_is_dashes_and_no_fault() -> None:
    row = model_row({})

    assert (told(row), row.faulty) == (["m", "-", "-", "-", "-", "-", ""], False)


def test_the_pane_of_a_model_tells_whose_wish_counts_and_leads_to_where_it_is_decided() -> None:
    model = {
        **BLOCKED_MODEL, "aliases": ["gpt-4", "chat"], "fallback": ["small"],
        "replicas": {**BLOCKED_MODEL["replicas"], "scaled": 1, "max": 4, "out_of_date": 2, "blocked": ["full"]},
    }  # fmt: skip
    told = about_model(model, {"queue": {"verdict": "nobody waits"}})

    assert lines(told) == [
        "m  also gpt-4, chat",
        "replicas: 0 serve, 1 wanted (an operator said 1, the config 1 to 4)",
        "2 replicas not of revision 7f6a92fae519: to be replaced",
        "waits: full",
        "falls back on small",
        "queue: nobody waits",
    ]
    assert [one.leads_to for one in told if one.leads_to] == [Place("placement", "m"), Place("queues", "m")]


def test_scaled_to_none_is_told_too() -> None:
    assert "an operator said 0" in lines(about_model({**MODEL, "replicas": {**RUN, "scaled": 0}}))[1]


def test_without_models_it_is_said_how_one_is_configured() -> None:
    assert "llmgw ctl apply" in replicas.models(picture(models={})).empty


# -- replicas ---------------------------------------------------------------------------------------------


def test_a_replica_is_told_with_its_nodes_and_leads_to_its_shards() -> None:
    row = replica_row(TWO_SHARDS)

    assert told(row) == ["r", "demo-model", "ready", "node-1, node-2", "2", "35 s", "0", ""]
    assert (row.faulty, row.leads_to) == (False, Place("replica", "r"))


@pytest.mark.parametrize("state", ["failed", "crash loop", "waiting", "unknown", "gone"])
def test_a_replica_that_does_not_come_by_itself_is_a_fault_with_a_red_reason(state: str) -> None:
    row = replica_row({**REPLICA, "state": state, "why": "because"})

    assert (row.faulty, row.cells[-1].text, row.cells[-1].tone) == (True, "because", Tone.BAD)


@pytest.mark.parametrize("state", ["starting", "loading", "ready", "leaving", "stopping"])
def test_a_replica_on_its_way_is_none(state: str) -> None:
    assert not replica_row({**REPLICA, "state": state}).faulty


def test_a_replica_that_leaves_says_why_where_nothing_else_is_wrong() -> None:
    assert replica_row({**REPLICA, "leaves_because": "node-1 drains"}).cells[-1].text == "node-1 drains"


def test_crashes_stand_out() -> None:
    cell = replica_row(CRASHING).cells[6]

    assert (cell.text, cell.tone) == ("7", Tone.WARN)


def test_a_place_shows_the_replicas_of_its_model_its_node_or_all() -> None:
    other = {**REPLICA, "model": "other", "shards": [{**SHARD, "node": "node-2"}]}
    some = picture(replicas={"a": REPLICA, "b": other, "c": TWO_SHARDS})

    assert names(replicas.replicas(some)) == ["a", "b", "c"]
    assert names(replicas.replicas(some, "demo-model")) == ["a", "c"]
    assert names(replicas.replicas(some, "node:node-2")) == ["b", "c"]
    assert replicas.replicas(some, "nope") == Listing(replicas.REPLICAS, (), "no replica runs here")


def test_the_place_of_a_gpu_shows_who_is_on_it_and_what_speaks_against_it() -> None:
    on_it = {**REPLICA, "shards": [{**SHARD, "node": "node-3", "gpus": ["GPU-node-3-0"]}]}
    some = picture(nodes={"node-3": SICK_NODE}, replicas={"a": REPLICA, "b": on_it})
    listing = replicas.on_gpu(some, "node-3/GPU-node-3-0")

    assert names(listing) == ["b"]
    assert listing.note == "xid 79: the card has fallen off the bus; clears: a reboot of the node"
    assert replicas.on_gpu(some, "node-9/").rows == ()


def test_a_strange_name_and_reason_are_harmless() -> None:
    row = replica_row(STRANGE)

    assert row.cells[1].text == "wide-模型"
    assert row.cells[-1].text == "no node fits: 2 with [red]GPUs[/red] claimed, 1 cordoned [31m"


def test_the_pane_of_a_replica_tells_all_that_is_against_it_and_leads_to_why_it_has_no_place() -> None:
    sick = {
        **CRASHING, "leaves_because": "moved by ada", "up_to_date": False,
        "canary": {"failures": 3, "why": "no answer in 5 s", "age_s": 1.0},
    }  # fmt: skip
    told = about(sick)

    assert lines(told) == [
        "r  crash loop  generation 4, revision 7f6a92fae519",
        "why     the engine ended with status 1",
        "leaves  moved by ada",
        "before  exited with 1 after 2 s",
        "canary  3 failures: no answer in 5 s",
        "it is to be replaced: another revision is wanted",
    ]
    assert told[1].leads_to == Place("placement", "r")


def test_a_replica_that_is_well_is_told_in_one_line() -> None:
    assert lines(about(REPLICA)) == ["r  ready  generation 4, revision 7f6a92fae519"]


# -- the end of a log -------------------------------------------------------------------------------------


def test_the_end_of_a_log_is_told_with_its_age_and_whose_it_is() -> None:
    assert lines(about(REPLICA, {"log": LOG}))[1:] == [
        "log of demo-model-3.g4.r0 on node-1, 3 s old",
        "  loading weights",
        "  CUDA graphs captured",
        "  listening on http://127.0.0.1:21051",
    ]


def test_an_old_log_says_why_there_is_no_newer_one() -> None:
    told = tuple(replicas.log_tail({**LOG, "error": "node-1 does not answer", "age_s": 300.0}))

    assert str(told[0]) == "log of demo-model-3.g4.r0 on node-1, 5 min old (node-1 does not answer)"


def test_of_a_long_log_the_last_lines_are_shown() -> None:
    told = lines(tuple(replicas.log_tail({**LOG, "text": "".join(f"{at}\n" for at in range(100))})))

    assert told[1:] == [f"  {at}" for at in range(100 - LOG_LINES, 100)]


def test_a_bar_that_draws_over_itself_is_lines_and_escapes_move_nothing() -> None:
    told = lines(tuple(replicas.log_tail({**LOG, "text": "10%\r100%\r\n\tat\x1b[2J\n"})))

    assert told[1:] == ["  10%", "  100%", "      at [2J"]


def test_nobody_has_answered_yet_is_no_log() -> None:
    assert not tuple(replicas.log_tail({}))


@pytest.mark.parametrize(
    ("key", "params"),
    [
        ("demo-model-3.g4.r1", {"bytes": LOG_BYTES, "shard": "1"}),
        ("odd", {"bytes": LOG_BYTES}),
    ],
)
def test_the_log_of_a_shard_is_asked_for_by_its_rank(key: str, params: Json) -> None:
    assert replicas.ask_shard("a/b", key) == {"log": Question("/replicas/a%2Fb/logs", params)}


# -- shards -----------------------------------------------------------------------------------------------


def test_a_shard_is_told_with_its_gpus_by_number_and_leads_to_its_requests() -> None:
    row = replicas.shards(HEALTHY, "demo-model-3").rows[0]

    assert told(row) == ["demo-model-3.g4.r0", "node-1", "ready", "0", "20.0", "4096", "34 s", ""]
    assert (row.faulty, row.leads_to) == (False, Place("requests", "demo-model-3"))


def test_a_gpu_that_its_node_does_not_tell_of_is_told_by_its_uuid() -> None:
    some = picture(nodes={"node-1": {**NODE, "gpus": []}})

    assert told(replicas.shards(some, "demo-model-3").rows[0])[3] == "GPU-node-1-0"


def test_a_shard_that_has_not_started_has_dashes_and_is_a_fault_where_it_failed() -> None:
    shard = {**SHARD, "state": "failed", "why": "no such image", "gpu_mib": None, "pid": None}
    row = replicas.shards(picture(replicas={"r": {**REPLICA, "shards": [shard]}}), "r").rows[0]

    assert told(row)[4:] == ["-", "-", "34 s", "no such image"]
    assert (row.faulty, row.cells[-1].tone) == (True, Tone.BAD)


def test_a_replica_without_a_place_says_why_it_has_none() -> None:
    listing = replicas.shards(picture(replicas={"r": {**STRANGE, "why": "no node fits"}}), "r")

    assert (listing.rows, listing.empty, listing.note) == ((), "it has no place now: no node fits", "no node fits")


def test_what_is_gone_is_said_and_where_to_look() -> None:
    assert (
        replicas.shards(HEALTHY, "x").empty == "no replica is called x any more; :replicas shows those that there are"
    )
    gone = [replicas.replica_detail, replicas.model_detail, replicas.shard_detail]
    assert [lines(view(HEALTHY, "demo-model-3", "x", {}, 80)) for view in gone] == [["it is not there any more"]] * 3


def test_the_pane_of_a_shard_tells_memory_as_claimed_on_gpus_and_on_the_host() -> None:
    some = picture(replicas={"r": {**REPLICA, "shards": [{**SHARD, "adopted": True, "why": "slow"}]}})

    assert lines(replicas.shard_detail(some, "r", "demo-model-3.g4.r0", {"log": LOG}, 80))[:5] == [
        "demo-model-3.g4.r0  ready, adopted",
        "127.0.0.1: http 21051, peer 21053",
        "memory: claims 20.0 GiB, GPU 20.0, host 0.0",
        "why     slow",
        "log of demo-model-3.g4.r0 on node-1, 3 s old",
    ]


@given(pictures, randoms)
def test_nothing_that_is_missing_hinders_the_tables(some: Picture, rng: Random) -> None:
    asked = {"log": with_holes(LOG, rng), "queue": with_holes({"verdict": "x"}, rng)}
    listed: list[tuple[Listing, Any, str]] = [
        (replicas.models(some), replicas.model_detail, ""),
        (replicas.replicas(some), replicas.replica_detail, ""),
        *((replicas.shards(some, one), replicas.shard_detail, one) for one in some.replicas),
        *((replicas.on_gpu(some, f"{one}/GPU-node-1-0"), replicas.replica_detail, "") for one in some.nodes),
    ]
    for shown, detail, subject in listed:
        for row in shown.rows:
            assert len(row.cells) == len(shown.columns)
            assert detail(some, subject, row.key, asked, 80)
