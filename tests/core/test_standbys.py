"""Who else could lead, told from counts that rise while one watches."""

from llmgw.core.explain import Considered, Explanation
from llmgw.core.lease_facts import Addresses
from llmgw.core.standbys import BEAT_S, FORGOTTEN_S, NOBODY, SILENT_S, RollCall, Signed, told_with


def row(holder: str, beats: int, name: str = "") -> Signed:
    return Signed(holder, beats, Addresses(name or f"gw-{holder}"))


def told(roll: RollCall, now: float, leader: str = "a") -> list[tuple[str, float | None, bool]] | None:
    found = roll.standbys(leader, now)
    return None if found is None else [(one.name, one.heard_s, one.silent) for one in found]


def test_before_the_store_was_read_nothing_is_known():
    assert told(RollCall("a"), 5.0) is None


def test_who_comes_later_is_heard_at_once():
    roll = RollCall("a").after([row("a", 1)], 0.0).after([row("a", 2), row("b", 1)], 3.0)
    assert told(roll, 4.0) == [("gw-b", 1.0, False)]


def test_a_row_that_was_there_before_is_believed_when_its_count_rises():
    roll = RollCall("a").after([row("a", 1), row("b", 70)], 0.0)
    assert told(roll, 1.0) == [], "its process may have ended long ago"
    roll = roll.after([row("a", 2), row("b", 71)], 3.0)
    assert told(roll, 3.0) == [("gw-b", 0.0, False)]


def test_who_is_not_heard_any_more_is_silent_and_stays_named():
    roll = RollCall("a").after([row("a", 1)], 0.0).after([row("a", 2), row("b", 1)], 3.0)
    for n in range(5):
        roll = roll.after([row("a", 3 + n), row("b", 1)], 6.0 + n * BEAT_S)
    assert told(roll, 18.0) == [("gw-b", 15.0, True)]


def test_a_process_that_ended_before_we_watched_is_silent_and_nobody_knows_for_how_long():
    roll = RollCall("a")
    for n in range(6):
        roll = roll.after([row("a", n), row("b", 70)], n * BEAT_S)
    (one,) = roll.standbys("a", 15.0)
    assert (one.heard_s, one.silent, one.says) == (None, True, "gw-b has not been heard since this one watches")


def test_where_the_store_was_not_read_lately_nobody_is_called_silent():
    roll = RollCall("a").after([row("a", 1)], 0.0).after([row("a", 2), row("b", 1)], 3.0)
    assert told(roll, 3.0 + SILENT_S) is not None
    assert told(roll, 3.1 + SILENT_S) is None


def test_all_but_the_leader_stand_by_ourselves_among_them():
    roll = RollCall("b").after([row("b", 1)], 0.0).after([row("a", 1), row("b", 2), row("c", 1)], 3.0)
    assert [name for name, _, _ in told(roll, 3.0, leader="a") or ()] == ["gw-b", "gw-c"]


def test_a_row_that_stood_still_for_a_day_is_forgotten_and_ours_is_not():
    roll = RollCall("a").after([row("a", 1)], 0.0).after([row("a", 2), row("b", 9)], 3.0)
    late = 4.0 + FORGOTTEN_S
    roll = roll.after([row("a", 3), row("b", 9)], late)
    assert roll.forgotten(late) == (row("b", 9),)


def test_an_explanation_names_them_and_warns_of_nobody():
    said = Explanation("leader", "gw-a leads", (), (Considered("gw-a", True),), (), "llmgw ctl leader")
    watching = RollCall("a").after([row("a", 1)], 0.0).after([row("a", 2), row("b", 1)], 3.0)
    whole = told_with(said, watching.standbys("a", 4.0) or (), leads=True)
    assert [fact.text for fact in whole.because] == ["gw-b stands by"]
    assert [fact.text for fact in told_with(said, (), leads=True).because] == [NOBODY]
    assert told_with(said, (), leads=False).because == (), "a standby knows that it stands by"
