"""What an operator is told is wrong, and in which order."""

from datetime import datetime
from typing import Any

import pytest
from hypothesis import given

from console.model import Link, Picture
from console.shown import Place, Tone
from console.traffic import Rates
from console.views.wrong import LOOKS, SHOWN_MAX, wrong
from tests.console.answers import (
    BLOCKED_DRAIN,
    CRASHING,
    EVIDENCE,
    GPU,
    HEALTHY,
    LEADER,
    MODEL,
    NODE,
    POOL,
    REMOVED_POOL,
    REPLICA,
    SEATS,
    STATIC_MODEL,
    STATUS,
    WAITING_QUEUE,
    WALL,
    picture,
)  # fmt: skip
from tests.console.holes import pictures

NOW = 130.0
RUN: Any = MODEL["replicas"]
NOBODY = {**LEADER, "leader": {**LEADER["leader"], "state": "run out"}}
DOWN = {**MODEL, "replicas": {**RUN, "serving": 0, "states": {"waiting": 2}, "blocked": ["no node fits: 2 full"]}}
SHORT = {**MODEL, "name": "short", "replicas": {**RUN, "serving": 1, "states": {"ready": 1, "loading": 1}}}
SICK = {**NODE, "gpus": [{**GPU, "evidence": [EVIDENCE], "usable": False}]}
SILENT = {**LEADER, "alone": False, "standbys": [{"name": "gw-2", "heard_s": 90.0, "silent": True}]}
LATE = {**WAITING_QUEUE, "oldest_s": 31.0}

# One of each kind, in the order of their importance: what is changed, where it leads, what it says.
TROUBLES: list[tuple[dict[str, Any], Place, str]] = [
    ({"leader": NOBODY}, Place("leader"), "nobody leads: the lease of vm is run out"),
    ({"link": Link("http://a", 118.0, "refused")}, Place("leader"), "http://a has not answered for 12 s"),
    ({"hold": "2 of 3 nodes are silent"}, Place("leader"), "stops nothing: 2 of 3 nodes are silent"),
    ({"status": {**STATUS, "store_away_s": 7.0}}, Place("leader"), "the store has not answered for 7 s"),
    ({"models": {"m": DOWN}}, Place("placement", "m"), "no replica of m serves: no node fits: 2 full"),
    (
        {"nodes": {"n": {**NODE, "state": "unreachable", "trouble": "unreachable: silent for 9 s"}}},
        Place("node", "n"),
        "node n is unreachable: silent for 9 s",
    ),
    ({"nodes": {"node-1": SICK}}, Place("gpu", "node-1/GPU-node-1-0"), "GPU 0 of node-1 is excluded: the card has"),
    ({"replicas": {"r": CRASHING}}, Place("replica", "r"), "in a crash loop, crashed 7 times: exited with 1"),
    ({"replicas": {"r": {**REPLICA, "state": "failed", "why": "x"}}}, Place("replica", "r"), "replica r has failed: x"),
    ({"models": {"short": SHORT}}, Place("replicas", "short"), "1 of 2 replicas serve for short: 1 loading"),
    ({"pools": {"demo-model": {**POOL, "saturation": 1.25}}}, Place("queues", "demo-model"), "is full, 1.25 of 1"),
    ({"seats": [{**SEATS[1], "waiting": 1000}]}, Place("queues"), "the queues of gold take nobody: all 1,000 seats"),
    ({"queues": [LATE]}, Place("queues", "demo-model"), "for demo-model in gold for 31 s: 2 wait, each for 60 s"),
    ({"drains": {"node-1": BLOCKED_DRAIN}}, Place("drain", "node-1"), "drain of node-1 is blocked: demo-model-3 is"),
    ({"leader": SILENT}, Place("leader"), "control plane gw-2 has not been heard for 90 s: it takes over nothing"),
    ({"status": {**STATUS, "usage_rows_dropped": 4}}, Place("leader"), "4 usage rows dropped"),
    ({"rates": Rates(9.0, 1.0, 0.023, None, {"m": Rates(1.0, 1.0, 0.5)})}, Place("recent"), "2.3% of requests fail"),
]  # fmt: skip


def test_where_nothing_is_wrong_one_line_says_so() -> None:
    told = wrong(HEALTHY, NOW)

    assert [str(line) for line in told] == ["✓ nothing is wrong"]


@pytest.mark.parametrize(("changes", "place", "says"), TROUBLES)
def test_each_kind_of_trouble_says_what_and_why_and_leads_there(
    changes: dict[str, Any], place: Place, says: str
) -> None:
    (told,) = wrong(picture(**changes), NOW)

    assert says in str(told)
    assert told.leads_to == place


def test_the_more_important_comes_first() -> None:
    changes: dict[str, Any] = {}
    for change, _, _ in TROUBLES:
        for name, value in change.items():
            both = isinstance(changes.get(name), dict) and isinstance(value, dict)
            changes[name] = {**changes[name], **value} if both else value
    changes["status"] = {**STATUS, "store_away_s": 7.0, "usage_rows_dropped": 4}
    changes["leader"] = {**SILENT, "leader": NOBODY["leader"]}
    changes["replicas"] = {"q": CRASHING, **changes["replicas"]}

    places = [line.leads_to for line in wrong(picture(**changes), NOW)]

    assert places == [place for _, place, _ in TROUBLES[:7]] + [Place("replica", "q")] + [p for _, p, _ in TROUBLES[8:]]


@given(pictures)
def test_the_order_holds_for_any_picture_and_nothing_that_is_missing_hinders_it(some: Picture) -> None:
    found = [list(look.finds(some, NOW)) for look in LOOKS]

    told = wrong(some, NOW)

    kinds = [kind for line in told for kind, lines in enumerate(found) if line in lines]
    assert told
    assert kinds == sorted(kinds)
    assert not some.known or len(kinds) == sum(min(SHOWN_MAX, len(lines)) for lines in found)
    assert all(str(line).isprintable() for line in told)


def test_a_node_that_is_set_aside_is_told_after_all_else_and_is_no_fault() -> None:
    target = {"target": "cordoned", "by": "ann", "at": WALL, "why": "new fans"}
    since = f"{datetime.fromtimestamp(WALL):%m-%d %H:%M:%S}"  # where the tests run
    well, aside = wrong(picture(nodes={"n": {**NODE, "target": target}}), NOW)

    assert str(well) == "✓ nothing is wrong"
    assert str(aside) == f"· n is cordoned by ann since {since}: new fans"
    assert aside.leads_to == Place("node", "n")
    assert Tone.BAD not in {cell.tone for cell in aside.cells}


def test_the_same_kind_is_summed_beyond_five() -> None:
    told = wrong(picture(replicas={f"r-{number}": CRASHING for number in range(17)}), NOW)

    assert len(told) == SHOWN_MAX + 1
    assert str(told[-1]) == "  and 12 more replicas in a crash loop"
    assert told[-1].leads_to == Place("replicas")


def test_six_of_a_kind_leave_one_more() -> None:
    told = wrong(picture(replicas={f"r-{number}": CRASHING for number in range(6)}), NOW)

    assert str(told[-1]) == "  and 1 more replica in a crash loop"


def test_before_anything_is_known_nothing_is_said_to_be_well() -> None:
    assert "nothing is known yet" in str(wrong(Picture(), NOW)[0])
    assert "http://a has not answered" in str(wrong(Picture(link=Link("http://a", 1.0, "refused")), NOW)[0])


def test_a_pool_of_a_model_that_nothing_serves_is_told_once() -> None:
    empty = {**POOL, "saturation": None, "why": "no endpoint is usable"}

    assert len(wrong(picture(models={"demo-model": DOWN}, pools={"demo-model": empty}), NOW)) == 1


def test_a_pool_that_has_left_the_configuration_is_no_trouble() -> None:
    assert "nothing is wrong" in str(wrong(picture(pools={"gone": REMOVED_POOL}), NOW)[0])


def test_a_model_without_agents_is_told_by_its_endpoints() -> None:
    (told,) = wrong(picture(models={"elsewhere": {**STATIC_MODEL, "usable": 0}}), NOW)

    assert str(told) == "✗ no endpoint of elsewhere is usable"
    assert told.leads_to == Place("queues", "elsewhere")


def test_a_model_scaled_to_nothing_is_as_it_should_be() -> None:
    asleep = {**MODEL, "replicas": {**RUN, "desired": 0, "serving": 0}, "usable": 0}

    assert "nothing is wrong" in str(wrong(picture(models={"demo-model": asleep}), NOW)[0])


def test_whoever_waits_less_than_half_of_the_time_is_no_trouble() -> None:
    assert "nothing is wrong" in str(wrong(picture(queues=[{**WAITING_QUEUE, "oldest_s": 29.0}]), NOW)[0])


def test_a_leader_that_is_not_ready_is_trouble_and_a_standby_that_is_not_is_none() -> None:
    waits = {**STATUS, "ready": False, "not_ready_because": "no endpoint is usable"}

    assert str(wrong(picture(status=waits), NOW)[0]) == "✗ balancers send nothing here: no endpoint is usable"
    assert "nothing is wrong" in str(wrong(picture(status={**waits, "leads": False}), NOW)[0])


def test_a_suspended_leader_leads_and_does_nothing() -> None:
    suspended = {**LEADER, "leader": {**LEADER["leader"], "state": "suspended"}}

    assert "vm leads, but does nothing" in str(wrong(picture(leader=suspended), NOW)[0])
