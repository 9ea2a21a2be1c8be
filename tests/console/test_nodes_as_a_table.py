"""Nodes and GPUs as an operator reads them: how they are, why, how much memory is whose, and what clears a fault."""

from datetime import datetime
from random import Random

import pytest
from hypothesis import given

from console.model import Picture
from console.shown import Place, Row, Tone
from console.views import nodes
from console.views.read import Json
from console.views.view import Question
from tests.console.answers import EVIDENCE, FREE_GPU, GPU, HEALTHY, NODE, NODE_2, WALL, picture
from tests.console.holes import pictures, randoms, with_holes
from tests.console.scenes import CORDONED, SICK_GPU, SICK_NODE, explanation

NOTED = {**GPU, "evidence": [{**EVIDENCE, "severity": "note", "cause": "ecc"}]}
STALE_GPU = {**FREE_GPU, "usable": False, "read_age_s": 45.0}
SLICED_GPU = {**FREE_GPU, "usable": False, "sliced": True}
UNTOLD_GPU = {key: value for key, value in FREE_GPU.items() if key != "usable"}
SINCE = f"{datetime.fromtimestamp(WALL - 60):%m-%d %H:%M:%S}"  # where the tests run


def told(row: Row) -> list[str]:
    return [cell.text for cell in row.cells]


def row_of(node: Json) -> Row:
    return nodes.nodes(picture(nodes={"n": node})).rows[0]


def about(node: Json, asked: Json | None = None) -> list[str]:
    return [str(one) for one in nodes.node_detail(picture(nodes={"n": node}), "", "n", asked or {}, 80)]


def about_gpu(gpu: Json) -> list[str]:
    some = picture(nodes={"n": {**NODE, "gpus": [gpu]}})
    return [str(one) for one in nodes.gpu_detail(some, "", f"n/{gpu['uuid']}", {}, 80)]


# -- the table of nodes -----------------------------------------------------------------------------------


def test_a_node_is_told_with_its_gpus_its_room_and_why_nothing_lands_there() -> None:
    assert [told(row) for row in nodes.nodes(HEALTHY).rows] == [
        ["node-1", "ready", "1/1", "4.0", "1", "700 ms", "full: 1 of 1 GPUs claimed"],
        ["node-2", "ready", "1/1", "24.0", "0", "700 ms", ""],
    ]


def test_enter_leads_from_a_node_to_its_gpus_and_from_a_gpu_to_what_is_on_it() -> None:
    assert [row.leads_to for row in nodes.nodes(HEALTHY).rows] == [Place("node", "node-1"), Place("node", "node-2")]
    assert nodes.gpus(HEALTHY, "node-1").rows[0].leads_to == Place("gpu", "node-1/GPU-node-1-0")


def test_a_cordoned_node_is_no_fault_and_says_who_wanted_it_and_why() -> None:
    row = row_of(CORDONED)

    assert (row.cells[1].tone, row.faulty, row.cells[-1].text) == (Tone.WARN, False, "cordoned by bob: new fans 新しい")


@pytest.mark.parametrize(
    ("target", "replicas", "shards", "state"),
    [
        ("cordoned", ["r"], ["r.g1.r0"], "cordoned"),
        ("drained", ["r"], ["r.g1.r0"], "draining"),
        ("drained", [], ["r.g1.r0"], "draining"),
        ("drained", [], [], "drained"),
        ("schedulable", [], [], "ready"),
    ],
)
def test_a_ready_node_that_an_operator_has_set_aside_is_told_as_that(
    target: str, replicas: list[str], shards: list[str], state: str
) -> None:
    node = {**NODE, "target": {"target": target, "by": "ada"}, "replicas": replicas, "shards": shards}

    assert (told(row_of(node))[1], row_of(node).faulty) == (state, False)
    assert f"  {state}  " in about(node)[0]
    assert told(row_of({**node, "state": "lost"}))[1] == "lost"


def test_a_sick_gpu_makes_its_node_a_fault_with_the_cause_and_takes_its_room_away() -> None:
    row = row_of(SICK_NODE)

    assert (told(row)[2], told(row)[3], row.cells[-1].text) == ("0/1", "0.0", "GPU 0: xid 79")
    assert (row.faulty, row.cells[2].tone, row.cells[-1].tone) == (True, Tone.BAD, Tone.BAD)


@pytest.mark.parametrize("state", ["unreachable", "lost", "blocked"])
def test_a_node_in_a_bad_state_is_a_fault_before_its_health_is_known(state: str) -> None:
    assert row_of({**NODE, "state": state}).faulty


def test_everything_that_is_wrong_is_a_reason_what_an_operator_wants_first() -> None:
    node = {
        **NODE, "trouble": "obeys nothing for 20 s", "driver": "nvml is gone", "gpus": [SICK_GPU],
        "target": {"target": "drained", "by": "ada", "at": None, "why": ""},
    }  # fmt: skip

    assert nodes.reason(node) == "draining, asked by ada; obeys nothing for 20 s; nvml is gone; GPU 0: xid 79"


def test_nodes_sort_by_their_free_memory_and_not_known_is_least() -> None:
    unsaid = {**NODE, "gpus": [{**GPU, "free_mib": None}]}

    orders = [row_of(node).cells[3].order for node in (unsaid, NODE, NODE_2)]
    assert orders == sorted(orders)
    assert row_of(unsaid).cells[3].text == "-"


def test_a_gpu_cut_in_slices_is_no_fault_of_its_node() -> None:
    row = row_of({**NODE, "gpus": [SLICED_GPU, FREE_GPU]})

    assert (row.faulty, told(row)[2], row.cells[2].tone) == (False, "1/2", Tone.PLAIN)


def test_a_node_that_says_nothing_is_dashes_and_no_fault() -> None:
    row = row_of({})

    assert told(row) == ["n", "-", "-", "-", "-", "-", ""]
    assert not row.faulty


def test_without_nodes_it_is_said_how_one_joins() -> None:
    assert "llmgw agent --join" in nodes.nodes(picture(nodes={})).empty


# -- the pane of a node -----------------------------------------------------------------------------------


def test_memory_is_told_as_what_there_is_and_claimed_ours_and_foreign() -> None:
    lines = about({**NODE, "gpu_memory": {**NODE["gpu_memory"], "ours_mib": 19456, "foreign_mib": 512}})

    assert "memory: 23.5 GiB, reserved 1.0, free 22.5" in lines
    assert "GPU memory: 24.0 GiB, claimed 20.0, ours 19.0, foreign 0.5" in lines


def test_evidence_is_told_with_its_age_its_count_and_what_clears_it() -> None:
    lines = about(SICK_NODE)

    at = lines.index(f"GPU 0 xid 79 (excluded, 2x, since {SINCE}): the card has fallen off the bus")
    assert lines[at + 1] == "  clears: a reboot of the node"
    assert lines[at + 2] == "  by hand: llmgw ctl gpus clear n 0 'xid 79' --why WHY"
    assert lines[at + 2] in about_gpu(SICK_GPU)


def test_only_evidence_that_keeps_replicas_away_is_red() -> None:
    tones = [next(nodes.evidence(gpu)).cells[0].tone for gpu in (SICK_GPU, NOTED)]

    assert tones == [Tone.BAD, Tone.WARN]


def test_a_time_that_no_calendar_has_is_left_out() -> None:
    gpu = {**GPU, "evidence": [{**EVIDENCE, "first_at": 1e18}]}

    assert "(excluded, 2x): the card" in str(next(nodes.evidence(gpu)))


@pytest.mark.parametrize(
    ("agent", "says"),
    [
        ({"linked": True, "link_age_s": 49.0}, "linked for 49 s"),
        ({"linked": False, "last_end": "reset by peer"}, "not linked: reset by peer"),
        ({"linked": False, "last_end": ""}, "not linked"),
        ({}, "linked or not, nobody says"),
    ],
)
def test_the_agents_link_is_told_or_why_there_is_none(agent: Json, says: str) -> None:
    assert about({**NODE, "agent": agent})[1] == f"agent -, {says}, obeys 3/3"


def test_orphans_and_labels_are_told() -> None:
    lines = about(
        {**NODE, "orphans": [{"id": "a.g1.r0", "why": "nobody wants it"}], "labels": {"zone": "b", "rack": 7}}
    )

    assert lines[-2:] == ["orphan  a.g1.r0: nobody wants it", "labels  zone=b, rack=7"]


def test_what_would_change_it_comes_with_its_explanation() -> None:
    said = {**explanation("full"), "would_change_it": ["one GPU less claimed"]}

    assert about(NODE, {"node": said})[-1] == "would change it: one GPU less claimed"


def test_a_name_with_a_slash_is_asked_about_in_one_part_of_the_path() -> None:
    assert nodes.ask_node("", "a/b") == {"node": Question("/explain/node/a%2Fb")}
    assert nodes.ask_gpu("", "n/GPU 1") == {"gpu": Question("/explain/gpu/n/GPU%201")}


# -- the GPUs of a node -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "state", "why", "faulty"),
    [
        (GPU, "ok", "", False),
        (NOTED, "ok", "", True),  # it is something to look at
        (SICK_GPU, "excluded", "xid 79", True),
        ({**SICK_GPU, "evidence": [*NOTED["evidence"], EVIDENCE]}, "excluded", "xid 79", True),
        (STALE_GPU, "stale", "not read for 45 s", True),
        ({**STALE_GPU, "read_age_s": None}, "stale", "not read lately", True),
        ({**NOTED, "usable": False, "read_age_s": None}, "stale", "not read lately", True),
        (SLICED_GPU, "sliced", "cut in slices", False),
        (UNTOLD_GPU, "-", "", False),
    ],
)
def test_a_gpu_says_whether_something_lands_there_and_why_not(gpu: Json, state: str, why: str, faulty: bool) -> None:
    row = nodes.gpus(picture(nodes={"n": {**NODE, "gpus": [gpu]}}), "n").rows[0]

    assert (told(row)[2], told(row)[-1], row.faulty) == (state, why, faulty)


def test_a_gpu_is_told_with_its_memory_its_load_and_whose_replicas_are_on_it() -> None:
    claims = [{"instance": f"{name}.r0"} for name in ("b.g2", "a.g1", "a.g1")]
    gpu = {**GPU, "foreign_mib": 512, "claims": claims}
    row = nodes.gpus(picture(nodes={"n": {**NODE, "gpus": [gpu]}}), "n").rows[0]

    assert told(row) == ["0", "Simulated", "ok", "20.0", "0.5", "4.0", "50%", "40", "a, b", ""]
    assert row.cells[4].tone is Tone.WARN


def test_the_reason_of_the_node_stands_above_its_gpus() -> None:
    assert nodes.gpus(picture(nodes={"n": SICK_NODE}), "n").note == "GPU 0: xid 79"


def test_a_node_that_is_not_there_is_said_and_where_to_look() -> None:
    assert nodes.gpus(HEALTHY, "nope\x1b").empty == "no node is called nope ; :nodes shows those that there are"
    assert str(nodes.node_detail(HEALTHY, "", "nope", {}, 80)[0]) == "it is not there any more"
    assert str(nodes.gpu_detail(HEALTHY, "", "node-1/nope", {}, 80)[0]) == "it is not there any more"


def test_the_pane_of_a_gpu_tells_the_three_numbers_and_every_process() -> None:
    foreign = {"pid": 7, "mib": 512, "name": "a \x1b[31mbad one", "instance": ""}

    assert about_gpu({**GPU, "processes": [*GPU["processes"], foreign], "slice_of": "GPU-0"}) == [
        "GPU 0 Simulated  GPU-node-1-0",
        "memory: 24.0 GiB, claimed 20.0, ours 20.0, foreign 0.0",
        "read 200 ms ago, 200 W",
        "a slice of GPU-0",
        "process 4096 python, 20.0 GiB, demo-model-3",
        "process 7 a  [31mbad one, 0.5 GiB, foreign",
    ]


@given(pictures, randoms)
def test_nothing_that_is_missing_hinders_the_tables(some: Picture, rng: Random) -> None:
    asked = {"node": with_holes(explanation("x"), rng), "gpu": with_holes(explanation("x"), rng)}
    listed = [
        (nodes.nodes(some), nodes.node_detail),
        *((nodes.gpus(some, one), nodes.gpu_detail) for one in some.nodes),
    ]
    for shown, detail in listed:
        for row in shown.rows:
            assert len(row.cells) == len(shown.columns)
            assert detail(some, "", row.key, asked, 80)


@given(randoms)
def test_no_answer_moves_a_cursor_or_breaks_a_line(rng: Random) -> None:
    node = with_holes({**SICK_NODE, "trouble": "\x1b[2J", "orphans": [{"id": "\n", "why": "\u202e"}]}, rng, 0.3)
    some = picture(nodes={"n": node})
    cells = [cell for row in (*nodes.nodes(some).rows, *nodes.gpus(some, "n").rows) for cell in row.cells]
    cells += [cell for one in nodes.node_detail(some, "", "n", {}, 80) for cell in one.cells]

    assert not [cell.text for cell in cells if set(cell.text) & {"\x1b", "\n", "\t", "\u202e"}]
