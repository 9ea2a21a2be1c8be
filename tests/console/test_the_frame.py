"""What stands around every place: who leads, what is to be doubted first, where one is, and the keys that fit."""

from random import Random

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from console.acts import VERBS, Verb
from console.model import Link, Picture
from console.shown import Place, Tone
from console.views.frame import Hint, banner, crumbs, head, hints, leads
from console.views.read import Json
from tests.console.answers import LEADER, NODE, NODE_2, picture
from tests.console.holes import NAMES, pictures, randoms, with_holes
from tests.console.scenes import CORDONED, SICK_NODE

NOW = 130.0
DOWN = Link("http://a", 118.0, "connection refused")
KEYS: tuple[Hint, ...] = (("enter", "open"), ("/", "filter"), ("esc", "back"))
verbs = st.lists(st.sampled_from(list(VERBS.values())), unique_by=lambda verb: verb.name)
places = st.builds(Place, st.sampled_from(["nodes", "gpu"]), st.sampled_from(["", *NAMES]))


def of(leader: Json) -> Json:
    return {**LEADER, "leader": leader}


# -- the head ---------------------------------------------------------------------------------------------


def test_the_head_tells_who_leads_how_many_nodes_are_well_and_who_looks() -> None:
    some = picture(nodes={"a": NODE, "b": NODE_2, "c": SICK_NODE, "d": CORDONED})

    assert str(head(some, NOW, False)) == "llmgw  vm leading, term 0.1 for 80 s  3/4 nodes  ada (operator)"
    assert str(head(some, NOW, True)).endswith("ada (operator, read-only)")


def test_a_node_that_fell_silent_since_the_snapshot_is_not_counted_as_well() -> None:
    assert "0/1 nodes" in str(head(picture(nodes={"a": {**NODE, "state": "unreachable"}}), NOW, False))


def test_a_cluster_without_nodes_has_none() -> None:
    assert "no nodes" in str(head(picture(nodes={}), NOW, False))


def test_before_the_first_snapshot_the_head_says_what_is_waited_for() -> None:
    asked = Picture()

    assert str(head(asked, NOW, False)) == "llmgw  asking …"
    assert str(head(evolve(asked, link=DOWN), NOW, False)) == "llmgw  asking for 12 s: connection refused"
    first = evolve(asked, link=Link(heard_at=123.0, asked="http://a"))
    assert str(head(first, NOW, False)) == "llmgw  asking http://a for 7 s …"


@pytest.mark.parametrize(
    ("leader", "says", "tone"),
    [
        ({"who": "a", "state": "leading", "term": "2.11", "since_s": 50.3}, "a leading, term 2.11 for 80 s", Tone.GOOD),
        ({"who": "a", "state": "leading", "term": "2.11", "since_s": None}, "a leading, term 2.11", Tone.GOOD),
        ({"who": "a", "state": "suspended", "term": "2.11"}, "a suspended, term 2.11", Tone.WARN),
        ({"who": "a", "state": "run out", "term": "2.11"}, "nobody leads (lease of a: run out)", Tone.BAD),
        ({"who": "a", "state": "released"}, "nobody leads (lease of a: released)", Tone.BAD),
        ({}, "nobody leads", Tone.BAD),
        ({"state": "leading"}, "somebody leading, term -", Tone.GOOD),
    ],
)
def test_who_leads_is_told_only_of_a_lease_that_holds(leader: Json, says: str, tone: Tone) -> None:
    cell = leads(picture(leader=of(leader)), NOW)

    assert (cell.text, cell.tone) == (says, tone)


# -- the banner -------------------------------------------------------------------------------------------


def test_the_worst_doubt_is_told_first() -> None:
    doubted = picture(hold="3 of 4 nodes are silent")
    standby = evolve(doubted, age_s=9.0)
    stale = evolve(standby, link=DOWN)

    assert [str(banner(one, NOW)) for one in (stale, standby, doubted)] == [
        "stale: no answer for 12 s, trying again: connection refused",
        "who leads does not answer: this the store had 9 s ago",
        "the leader doubts itself and stops nothing: 3 of 4 nodes are silent",
    ]


def test_while_the_link_is_down_nobody_is_said_to_lead_on() -> None:
    told = str(head(picture(link=DOWN), NOW, False))

    assert told.startswith("llmgw  vm led when it answered last, term 0.1")


@pytest.mark.parametrize(
    ("heard_at", "says"), [(126.0, "no answer for 4 s: what is shown may be old"), (128.0, None), (None, None)]
)
def test_who_has_not_answered_for_some_seconds_is_doubted_before_anything_fails(heard_at, says) -> None:
    told = banner(picture(link=Link("http://a", heard_at=heard_at)), NOW)

    assert (told and str(told)) == says


def test_what_can_be_trusted_has_no_banner() -> None:
    assert banner(picture(), NOW) is None


def test_what_was_never_known_is_not_stale() -> None:
    assert banner(Picture(link=DOWN), NOW) is None


# -- the way ----------------------------------------------------------------------------------------------


WAY = [Place("overview"), Place("nodes"), Place("node", "node-1"), Place("gpu", "node-1/GPU-0")]


@pytest.mark.parametrize(
    ("width", "says"),
    [
        (80, "overview → nodes → node node-1 → gpu node-1/GPU-0"),
        (49, "overview → nodes → node node-1 → gpu node-1/GPU-0"),
        (48, "… → nodes → node node-1 → gpu node-1/GPU-0"),
        (40, "… → node node-1 → gpu node-1/GPU-0"),
        (22, "… → gpu node-1/GPU-0"),
        (17, "gpu node-1/GPU-0"),
        (10, "gpu node-…"),
    ],
)
def test_where_one_is_stays_in_sight_when_the_way_is_too_long(width: int, says: str) -> None:
    assert str(crumbs(WAY, width)) == says


def test_where_one_is_stands_out() -> None:
    assert [cell.tone for cell in crumbs(WAY, 80).cells] == [Tone.DIM, Tone.STRONG]


def test_at_no_place_there_is_no_way() -> None:
    assert str(crumbs([], 80)) == ""


@given(st.lists(places, max_size=20), st.integers(1, 200))
def test_the_way_fits_whatever_names_are_in_it(way: list[Place], width: int) -> None:
    told = str(crumbs(way, width))

    assert cell_len(told) <= width
    assert not set(told) & {"\x1b", "\t"}


# -- the hints --------------------------------------------------------------------------------------------


def test_acts_are_hinted_first_then_the_keys_of_the_place() -> None:
    cordon = VERBS["cordon"]

    assert str(hints(KEYS, (cordon,), 80)) == "c cordon  enter open  / filter  esc back  ? all keys  "


@pytest.mark.parametrize(
    ("width", "says"),
    [
        (46, "enter open  / filter  esc back  ? all keys  "),
        (43, "enter open  / filter  ? all keys  "),
        (24, "enter open  ? all keys  "),
        (12, "? all keys  "),
        (11, ""),
    ],
)
def test_as_many_hints_as_fit_and_always_the_key_that_tells_all(width: int, says: str) -> None:
    assert str(hints(KEYS, (), width)) == says


@given(verbs, st.integers(0, 200))
def test_hints_fit(some: list[Verb], width: int) -> None:
    assert cell_len(str(hints(KEYS, some, width))) <= width


@given(pictures, randoms)
def test_nothing_that_is_missing_hinders_the_frame(some: Picture, rng: Random) -> None:
    some = evolve(some, you=with_holes(dict(some.you), rng, 0.5))

    assert str(head(some, NOW, read_only=True)).startswith("llmgw")
    told = banner(some, NOW)
    assert told is None or str(told)


def test_what_is_not_measured_is_told_with_the_reason() -> None:
    some = picture(unmeasured={"queues": (110.0, "gw-1: HTTP 500"), "pools": (118.0, "another reason")})
    assert str(banner(some, 130.0)) == "queues, pools not measured for 20 s, shown as before: gw-1: HTTP 500"
