"""On SQLite agents alone tell of another leader: when a term may be put above theirs, and when it must not."""

from math import inf

import pytest

from llmgw.core.lease_alone import Aside, Hearsay, Lift
from llmgw.core.term import Term

TTL = 10.0
OURS, LATER = Term(0, 5, "ours"), Term(0, 9, "later")


def judged(seen: Term, heard_s: float | None, ours: Term = OURS) -> Lift | Aside:
    return Hearsay(TTL).judge(ours, "node-1", seen, heard_s, 100.0)


@pytest.mark.parametrize("heard_s", [None, 0.0, 3600.0])
def test_a_term_of_postgresql_is_never_lifted_above_by_a_store_from_before(heard_s):
    aside = judged(Term(1, 32, "pg"), heard_s)
    assert isinstance(aside, Aside)
    assert aside.for_s == inf
    assert "node-1 has obeyed term 1.32, of a leader on PostgreSQL; this store, term 0.5, is from before" in aside.why
    assert "[store] url" in aside.way_out


def test_a_store_that_came_from_postgresql_is_lifted_like_any_other():
    assert judged(Term(1, 32, "later"), 60.0, Term(1, 30, "ours")) == Lift(Term(1, 32, "later"))


@pytest.mark.parametrize("seen", [LATER, Term(0, 5, "another nonce")])
def test_what_nobody_heard_for_one_ttl_is_lifted_above(seen):
    assert judged(seen, TTL) == Lift(seen)


def test_who_was_heard_lately_may_live_for_the_rest_of_one_ttl():
    aside = judged(LATER, 3.0)
    assert isinstance(aside, Aside)
    assert aside.for_s == TTL - 3.0
    assert "node-1 heard, 3.0 s ago, the leader of term 0.9, this one's is 0.5" in aside.why


def test_an_agent_that_cannot_tell_is_believed_once_it_came_again_and_again_for_one_ttl():
    hearsay = Hearsay(TTL)
    answers = [hearsay.judge(OURS, "node-1", LATER, None, at) for at in (0.0, 4.0, 10.0)]
    assert [getattr(answer, "for_s", None) for answer in answers] == [TTL, TTL - 4.0, None]
    assert answers[-1] == Lift(LATER)


def test_one_that_was_led_elsewhere_meanwhile_begins_anew():
    hearsay = Hearsay(TTL)
    hearsay.judge(OURS, "node-1", LATER, None, 0.0)
    assert isinstance(hearsay.judge(OURS, "node-1", LATER, None, 60.0), Aside)
    assert isinstance(hearsay.judge(OURS, "node-2", LATER, None, 65.0), Aside)
