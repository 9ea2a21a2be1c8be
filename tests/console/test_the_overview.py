"""The first screen: what stands on it, in which order, and that it fits."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from console.model import Link, Picture
from console.shown import Place, Tone
from console.traffic import Rates
from console.views.overview import overview
from tests.console.answers import (
    GPU,
    HEALTHY,
    LEADER,
    MODEL,
    NODE,
    POOL,
    QUEUE,
    SEATS,
    picture,
)  # fmt: skip
from tests.console.holes import pictures

NOW = 130.0
RUN: Any = MODEL["replicas"]


def told(some: Picture, width: int = 80) -> list[str]:
    return [str(line) for line in overview(some, NOW, width)]


def test_a_healthy_cluster_reads_so() -> None:
    assert told(HEALTHY) == [
        "leads    vm   term 0.1   since 80 s   llmgw 0.5.0",
        "nodes    2 ready   2 GPUs",
        "traffic  12.5 requests/s   errors 0.2%   340 tokens/s   first token p99 ≤ 250 ms",
        "",
        "models   demo-model    2/2 █░░░░░░░░░░░░░░░░░░░░░    5%                   ▁▁▁▁",
        "",
        "waiting  platinum        0",
        "         gold            0",
        "         silver          0",
        "         bronze          0",
        "",
        "✓ nothing is wrong",
    ]


def test_four_models_with_something_wrong_fit_a_small_terminal() -> None:
    models = {f"a-model-with-a-rather-long-name-{n}": {**MODEL, "saturation": 1.2} for n in range(4)}
    sick = {**NODE, "state": "unreachable"}
    shown = told(picture(models=models, nodes={"node-1": NODE, "node-2": sick}, hold="2 of 3 nodes are silent"))

    assert len(shown) <= 20
    assert max(map(cell_len, shown)) <= 80


def test_self_doubt_comes_first() -> None:
    first = overview(picture(hold="2 of 3 nodes are silent"), NOW, 80)[0]

    assert str(first) == "THE LEADER DOUBTS ITSELF AND STOPS NOTHING: 2 of 3 nodes are silent"
    assert {cell.tone for cell in first.cells} == {Tone.BAD}


def test_of_many_models_the_worst_are_shown_and_the_others_counted() -> None:
    models = {f"m-{n}": MODEL for n in range(9)}
    models["m-7"] = {**MODEL, "replicas": {**RUN, "serving": 0}}
    models["m-5"] = {**MODEL, "replicas": {**RUN, "serving": 1}}
    lines = overview(picture(models=models, pools={"m-8": {**POOL, "saturation": 0.9}}), NOW, 80)
    shown = [line for line in lines if " m-" in str(line) and "/2" in str(line)]

    assert [str(line)[9:12] for line in shown] == ["m-7", "m-5", "m-8", "m-0"]
    assert [line.leads_to for line in shown][:2] == [Place("replicas", "m-7"), Place("queues", "m-5")]
    assert [line.leads_to for line in lines if "and 5 more" in str(line)] == [Place("models")]


def test_nodes_are_counted_by_state_with_bad_ones_first() -> None:
    broken = {**NODE, "state": "lost", "gpus": [{**GPU, "usable": False}]}
    nodes = {"a": NODE, "b": NODE, "c": broken, "d": {**NODE, "state": "draining"}}

    assert told(picture(nodes=nodes))[1] == "nodes    1 lost   2 ready   1 draining   4 GPUs, 1 not usable"


def test_ready_nodes_with_a_fault_are_told_and_cordoned_ones_are_not_ready() -> None:
    sick = {**NODE, "gpus": [{**GPU, "usable": False}], "healthy": False}
    cordoned = {**NODE, "target": {"target": "cordoned", "by": "ada", "at": None, "why": "fans"}}
    line = "nodes    2 ready, 1 of them with a fault   1 cordoned   3 GPUs, 1 not usable"

    assert told(picture(nodes={"a": NODE, "b": sick, "c": cordoned}))[1] == line
    assert told(picture(nodes={"b": sick}))[1].startswith("nodes    1 ready, with a fault ")


def test_who_waits_is_counted_by_band_with_the_oldest_of_all_pools() -> None:
    queues = [{**QUEUE, "oldest_s": 4.0}, {**QUEUE, "model": "other", "oldest_s": 41.0}]
    shown = told(picture(seats=[{**SEATS[1], "waiting": 1234}], queues=queues))

    assert "waiting  gold        1,234   oldest 41 s" in shown


def test_nobody_leads_is_said_where_the_leader_stands() -> None:
    assert told(picture(leader={**LEADER, "leader": None}))[0].startswith("leads    nobody")


def test_what_is_not_measured_yet_is_a_dash() -> None:
    shown = told(picture(rates=Rates(), seats=[]))

    assert "traffic  - requests/s   errors -   - tokens/s   first token p99 -" in shown
    assert "waiting  not known yet" in shown


def test_the_answer_of_a_standby_says_how_old_it_is() -> None:
    assert "as a standby knew it 3 s ago" in told(picture(age_s=3.0))[0]


def test_why_something_is_wrong_is_told_in_full_however_narrow_the_screen() -> None:
    why = "no node fits: 2 short of GPU memory, 1 whose driver does not answer"
    models = {"m": {**MODEL, "replicas": {**RUN, "serving": 0, "blocked": [why]}}}

    shown = " ".join(" ".join(told(picture(models=models), 40)).split())
    assert f"no replica of m serves: {why}" in shown


def test_before_the_first_answer_there_is_a_screen_too() -> None:
    shown = told(Picture())

    assert shown[-1] == "… nothing is known yet"
    assert [one for one in shown if "not known yet" in one] == [
        f"{label:<9}not known yet" for label in ("leads", "nodes", "models", "waiting")
    ]


def test_who_led_before_the_link_was_lost_does_not_lead_on() -> None:
    lost = picture(link=Link("http://a", 120.0, "refused"))

    assert told(lost)[0] == "leads    vm   term 0.1   when it answered last   llmgw 0.5.0"


@given(pictures, st.integers(10, 200))
def test_no_line_is_wider_than_the_screen_whatever_is_missing(some: Picture, width: int) -> None:
    shown = told(some, width)

    assert all(cell_len(line) <= width for line in shown)
    assert all(line.isprintable() for line in shown)


def test_the_line_of_the_traffic_is_whole_in_a_narrow_terminal() -> None:
    rates = Rates(1234.0, 123_456.0, 0.123, 0.5)
    assert "traffic  1,234 requests/s  errors 12.3%  123k tokens/s  first token p99 ≤ 500 ms" in told(
        picture(rates=rates)
    )
