"""Who leads, on a screen."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from console.model import Picture
from console.shown import Tone
from console.views.leader import lines
from tests.console.answers import HEALTHY, LEADER, STATUS, picture
from tests.console.holes import pictures

NOW = 130.0


def told(some: Picture) -> list[str]:
    return [str(line) for line in lines(some, 80, NOW)]


def test_it_says_who_leads_since_when_and_where_it_is_reached() -> None:
    assert told(HEALTHY) == [
        "leads      vm  leading",
        "term       0.1, for 80 s, renewed 0 times",
        "ready      it has somewhere to send requests",
        "clients    http://127.0.0.1:40927",
        "operators  http://127.0.0.1:36601",
        "agents     127.0.0.1:45773",
        "stands by  nobody could: the store is SQLite",
        "told by    http://127.0.0.1:36601, which leads, llmgw 0.5.0",
        "store      answers",
        "cluster    56f14d5f",
    ]


def stand_by(*standbys: Any, **more: Any) -> list[str]:
    leader = {**LEADER, "alone": False, "standbys": list(standbys), **more}
    found = told(picture(leader=leader))
    begins = next(n for n, line in enumerate(found) if line.startswith("stands by"))
    return found[begins : next(n for n, line in enumerate(found) if line.startswith("told by"))]


def test_it_says_who_takes_over_and_who_is_not_heard() -> None:
    ready = {"name": "gw-2", "addresses": {"admin": "http://gw-2:7442"}, "heard_s": 1.5, "silent": False}
    silent = {"name": "gw-3", "addresses": {}, "heard_s": 90.0, "silent": True}

    assert stand_by(ready, silent, {**silent, "heard_s": None}) == [
        "stands by  gw-2  ready to take over  http://gw-2:7442",
        "           gw-3  not heard for 90 s",
        "           gw-3  not heard since who leads does",
    ]
    assert stand_by() == ["stands by  nobody: should the leader end, nobody leads"]
    assert stand_by(standbys=None) == ["stands by  not known: the store was not read lately"]


def test_a_control_plane_of_before_tells_nothing_of_standbys() -> None:
    before = {name: value for name, value in LEADER.items() if name not in ("alone", "standbys")}
    assert not any(line.startswith("stands by") for line in told(picture(leader=before)))


def test_self_doubt_comes_first() -> None:
    assert told(picture(hold="2 of 3 nodes are silent"))[0] == "doubts     it stops nothing: 2 of 3 nodes are silent"


def test_nobody_and_one_who_may_not_act_are_told_apart() -> None:
    nobody = picture(leader={**LEADER, "leader": None, "leads": False})
    late = picture(leader={**LEADER, "acts": False, "leader": {**LEADER["leader"], "state": "suspended"}})

    assert told(nobody)[0] == "leads      nobody, as far as this control plane knows"
    assert told(late)[0] == "leads      vm  suspended"
    assert any("which leads, but may not act now" in line for line in told(late))


def test_a_lease_that_has_run_out_is_bad() -> None:
    some = picture(leader={**LEADER, "leader": {**LEADER["leader"], "state": "run out", "margin_s": 0.0}})
    (lease,) = [line for line in lines(some, 80, NOW) if str(line).startswith("lease")]

    assert str(lease) == "lease      run out"
    assert lease.cells[1].tone is Tone.BAD


def test_a_standby_says_how_old_its_word_is_and_that_the_store_is_away() -> None:
    some = picture(age_s=4.0, leader={**LEADER, "leads": False}, status={**STATUS, "store_away_s": 9.0})

    assert "           as it knew it 4 s ago" in told(some)
    assert "store      has not answered for 9 s" in told(some)
    assert any("which stands by" in line for line in told(some))


def test_spans_are_as_they_were_told_where_nobody_says_what_time_it_is() -> None:
    assert str(lines(HEALTHY, 80)[1]) == "term       0.1, for 50 s, renewed 0 times"


@given(pictures, st.integers(20, 120))
def test_no_line_is_too_wide_and_nothing_that_is_missing_hinders_it(some: Picture, width: int) -> None:
    shown = [str(line) for line in lines(some, width, NOW)]

    assert all(line.isprintable() and cell_len(line) <= width for line in shown)
