"""One control plane's part in leadership, rule by rule: what was answered and when, and what follows."""

from collections.abc import Callable

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core import lease
from llmgw.core.lease_explained import changes, explain, has_handed_over, leader, readiness
from llmgw.core.lease_facts import (
    Acquire,
    Acquired,
    Addresses,
    Answer,
    Call,
    Failed,
    Happening,
    LeaseLimits,
    LeaseRow,
    Lift,
    Lifted,
    Look,
    Looked,
    Nudged,
    Refused,
    Release,
    Released,
    Renew,
    Renewed,
    Resign,
    Rest,
    Right,
    Serving,
    Stop,
    Ticked,
    Told,
    WorkEnded,
)
from llmgw.core.lease_moves import next_move
from llmgw.core.lease_state import TICK_S, Leadership, Role
from llmgw.core.term import Term

LIMITS = LeaseLimits()
TTL = LIMITS.ttl
T0 = 1000.0
OTHERS = LeaseRow(
    "south-id", Term(1, 7, "s"), seq=50, released=False, remaining_s=9.0, timeline=1, written=1,
    addresses=Addresses("south", admin="https://south:7442"),
)  # fmt: skip
FREE = evolve(OTHERS, released=True, remaining_s=-1.0)


class Part:
    """One process's, told things in the order of its clock. It ticks in between, as the real one does."""

    def __init__(self, now: float = T0) -> None:
        self.now = now
        self.it = Leadership("north-id", LIMITS, Addresses("north"))
        self.tell(Ticked())

    def tell(self, fact: Answer | Happening) -> "Part":
        self.it = lease.after(self.it, fact, self.now)
        return self

    def wait(self, seconds: float) -> "Part":
        end = self.now + seconds
        while self.now + TICK_S < end:
            self.now += TICK_S
            self.tell(Ticked())
        self.now = end
        return self.tell(Ticked())

    def stall(self, seconds: float) -> "Part":
        self.now += seconds
        return self

    def send(self, kind: type[Call], nonce: str = "fresh") -> Call:
        call = next_move(self.it, self.now)
        assert isinstance(call, kind), call
        self.it = lease.begun(self.it, call, self.now, nonce)
        return call

    def does(self, kind: type[Call], answer: Answer, after_s: float = 0.0) -> "Part":
        self.send(kind)
        return self.wait(after_s).tell(answer)

    def sees(self, row: LeaseRow) -> "Part":
        return self.does(Look, Looked(row))

    def leads(self) -> "Part":
        """A leader since now."""
        self.sees(FREE).does(Acquire, Acquired(Term(1, 8, "fresh"), 51))
        assert self.may_act
        return self

    @property
    def next(self):
        return next_move(self.it, self.now)

    @property
    def may_act(self) -> bool:
        return self.it.may_act(self.now)

    def watch(self, row: LeaseRow, seconds: float) -> "Part":
        """Sees the same row at each look for so long."""
        end = self.now + seconds
        while True:
            move = self.next
            if isinstance(move, Look):
                self.sees(evolve(row, remaining_s=row.remaining_s - (seconds - (end - self.now))))
            elif isinstance(move, Rest) and move.until < end:
                self.wait(move.until - self.now)
            else:
                return self.wait(max(0.0, end - self.now)) if isinstance(move, Rest) else self


# -- trust ------------------------------------------------------------------------------------------------------


@given(answer_s=st.floats(0, 7.5), act_s=st.floats(0, 20))
def test_trust_counts_from_before_the_statement_however_late_the_answer(answer_s, act_s):
    part = Part().sees(FREE)
    sent = part.now
    part.does(Acquire, Acquired(Term(1, 8, "fresh"), 51), answer_s)
    part.it = evolve(part.it, ticked_at=part.now + act_s)

    assert part.it.may_act(part.now + act_s) == (part.now + act_s < sent + TTL - LIMITS.margin)


def test_a_slow_renewal_makes_trust_no_longer():
    part = Part().leads().wait(2)
    sent = part.now
    part.does(Renew, Renewed(52), after_s=1.5)
    assert part.it.trusted_until == sent + LIMITS.trusted


def test_a_success_that_comes_after_its_trust_has_ended_is_renewed_before_anything_is_done():
    part = Part().sees(FREE).does(Acquire, Acquired(Term(1, 8, "fresh"), 51), after_s=9)
    assert not part.may_act
    assert part.next == Renew(Term(1, 8, "fresh"), False, part.next.why)
    part.does(Renew, Renewed(52))
    assert part.may_act


def test_a_leader_renews_every_two_seconds():
    part = Part().leads()
    for seq in range(52, 60):
        assert part.next == Rest(part.now + LIMITS.renew, "the next renewal")
        part.wait(LIMITS.renew).does(Renew, Renewed(seq))
    assert part.it.renewals == 8


def test_no_answer_is_asked_again_until_trust_ends_and_then_it_steps_down():
    part, began = Part().leads(), T0
    tries = 0
    while part.it.leads:
        move = part.next
        if isinstance(move, Rest):
            part.wait(move.until - part.now)
        else:
            tries += 1
            part.does(Renew, Failed("no answer"), after_s=LIMITS.call_within)

    assert part.it.since == began + LIMITS.trusted
    assert tries == 3
    assert part.it.held
    assert "not renewed for 8 s: no answer" in part.it.why


def test_no_row_is_no_and_nothing_is_released():
    part = Part().leads().wait(2).does(Renew, Refused())
    assert (part.it.role, part.it.held, part.may_act) == (Role.STANDBY, False, False)
    part.tell(WorkEnded())
    assert isinstance(part.next, Look)


def test_its_own_lease_that_nobody_took_is_led_again_under_the_same_term_once_its_tasks_have_ended():
    part = Part().leads().wait(2).does(Renew, Failed("away"), after_s=7)
    assert not part.it.leads
    assert not isinstance(part.wait(2).next, Renew)
    part.tell(WorkEnded()).does(Renew, Renewed(52))
    assert part.may_act
    assert part.it.term == Term(1, 8, "fresh")


def test_its_own_lease_that_somebody_took_is_not():
    part = Part().leads().wait(2).does(Renew, Failed("away"), after_s=7).tell(WorkEnded()).wait(2)
    part.does(Renew, Refused()).sees(evolve(OTHERS, seq=60))
    assert not part.it.leads
    assert isinstance(part.next, Rest)


# -- a standby ---------------------------------------------------------------------------------------------------


def test_what_was_released_is_taken_at_once():
    part = Part().sees(FREE)
    assert part.next == Acquire(Right.RELEASED, FREE, Right.RELEASED.value)


def test_a_nudge_makes_it_look_at_once():
    part = Part().sees(OTHERS)
    assert isinstance(part.wait(0.1).next, Rest)
    assert isinstance(part.tell(Nudged()).next, Look)


@pytest.mark.parametrize(
    ("remaining_s", "takes_s", "right"),
    [
        (9.5, TTL, Right.EXPIRED),
        (-3600.0, TTL, Right.EXPIRED),
        (12.0, 12.0, Right.EXPIRED),
        (3609.0, 2 * TTL, Right.UNCHANGED),
    ],
    ids=["clocks agree", "the database's jumped ahead", "a little back", "the database's jumped back"],
)
def test_a_lease_nobody_renews_is_taken_at_exactly_the_moment_it_may_be(remaining_s, takes_s, right):
    row = evolve(OTHERS, remaining_s=remaining_s)
    part, wakes = Part().sees(row), []
    while not isinstance(part.next, Acquire):
        wakes.append(part.next)
        part.watch(row, 0.1) if not isinstance(part.next, Rest) else part.wait(part.next.until - part.now)
        if isinstance(part.next, Look):
            part.sees(evolve(row, remaining_s=remaining_s - (part.now - T0)))

    assert part.next.right is right
    assert part.now - T0 == pytest.approx(takes_s, abs=0.002)


def test_a_renewal_that_is_seen_starts_the_watch_anew():
    part = Part().watch(OTHERS, 9)
    part.watch(evolve(OTHERS, seq=51), 9)
    assert not isinstance(part.next, Acquire)


def test_what_was_not_watched_for_a_ttl_is_watched_anew():
    part = Part().sees(OTHERS)
    part.stall(2 * TTL + 5).tell(Ticked())
    part.sees(evolve(OTHERS, remaining_s=-16))
    assert isinstance(part.next, Rest)
    assert part.it.takes_at() == (part.now + TTL, Right.EXPIRED)


@pytest.mark.parametrize("lost", ["a promotion", "a restore"])
def test_released_counts_for_nothing_while_the_store_may_have_lost_a_leader(lost):
    part = Part().sees(evolve(OTHERS, seq=60)).wait(1)
    row = evolve(FREE, seq=60, timeline=2) if lost == "a promotion" else FREE
    part.sees(row)
    assert isinstance(part.next, Rest)
    assert part.it.takes_at() == (part.now + TTL, Right.RELEASED)
    assert part.it.doubt
    assert "leader.store_back" in [told.kind for told in changes(Part().it, part.it)]


def test_a_fresh_store_is_not_doubted():
    part = Part().sees(LeaseRow(timeline=3, written=3))
    assert isinstance(part.next, Acquire)


def test_who_is_refused_looks_before_it_tries_again():
    part = Part().sees(FREE).does(Acquire, Refused())
    assert isinstance(part.next, Look)


def test_a_lease_that_was_taken_though_the_answer_was_lost_is_found_and_trusted_from_before():
    part = Part().sees(FREE)
    sent = part.now
    part.send(Acquire, "mine")
    part.wait(2).tell(Failed("no answer")).wait(1.2)
    part.sees(evolve(OTHERS, holder="north-id", term=Term(1, 8, "mine"), seq=51))
    assert part.may_act
    assert part.it.trusted_until == sent + LIMITS.trusted


def test_one_that_is_found_too_late_is_renewed_first():
    part = Part().sees(FREE)
    part.send(Acquire, "mine")
    part.wait(2).tell(Failed("no answer")).wait(7)
    part.sees(evolve(OTHERS, holder="north-id", term=Term(1, 8, "mine"), seq=51))
    assert not part.may_act
    part.does(Renew, Renewed(52))
    assert part.may_act


def test_an_attempt_without_an_answer_is_repeated_under_the_same_nonce():
    part = Part().sees(FREE)
    part.send(Acquire, "first")
    part.wait(2).tell(Failed("no answer")).wait(1.2).sees(FREE)
    part.send(Acquire, "second")
    assert part.it.sent.nonce == "first"


def test_the_lease_of_this_host_before_it_was_started_again_is_anothers():
    part = Part().sees(evolve(OTHERS, holder="north-before"))
    assert isinstance(part.next, Rest)
    assert part.it.takes_at() == (part.now + TTL, Right.EXPIRED)


# -- stalls ----------------------------------------------------------------------------------------------------------


def test_a_stall_longer_than_the_margin_suspends_before_anything_is_done():
    part = Part().leads().stall(TICK_S + LIMITS.margin + 0.1)
    assert not part.may_act
    part.tell(Ticked())
    assert part.it.role is Role.SUSPENDED
    assert not part.may_act
    part.does(Renew, Renewed(52))
    assert (part.it.role, part.may_act, part.it.term) == (Role.LEADING, True, Term(1, 8, "fresh"))


def test_a_shorter_one_does_not():
    part = Part().leads().stall(LIMITS.margin).tell(Ticked())
    assert part.may_act


def test_a_renewal_sent_before_the_stall_does_not_end_the_suspension():
    part = Part().leads().wait(2)
    part.send(Renew)
    part.stall(3).tell(Renewed(52))
    assert part.it.role is Role.SUSPENDED
    part.does(Renew, Renewed(53))
    assert part.may_act


def test_who_stood_still_beyond_its_trust_leads_no_more():
    part = Part().leads().stall(2 * TTL)
    assert not part.may_act
    part.tell(Ticked())
    assert part.it.role is Role.STANDBY
    part.tell(WorkEnded()).does(Renew, Refused())
    assert not part.may_act


# -- giving back -----------------------------------------------------------------------------------------------------


def test_who_resigns_acts_no_more_releases_once_its_tasks_have_ended_and_stays_out_for_one_ttl():
    part = Part().leads().tell(Resign("an operator asked"))
    assert not part.may_act
    assert isinstance(part.next, Rest)
    part.tell(WorkEnded()).does(Release, Released())
    own = evolve(FREE, holder="north-id", term=Term(1, 8, "fresh"), seq=51)
    resigned = part.now
    part.watch(own, TTL - 0.1)
    assert isinstance(part.next, Rest)
    part.watch(own, 1)
    assert isinstance(part.next, Acquire)
    assert part.now - resigned >= TTL


def test_who_resigned_takes_over_at_once_from_somebody_who_has_led_since_and_gives_it_back():
    part = Part().leads().tell(Resign("an operator asked")).tell(WorkEnded()).does(Release, Released())
    part.sees(evolve(OTHERS, seq=52, term=Term(1, 9, "s")))
    part.wait(1)
    part.sees(evolve(OTHERS, seq=53, term=Term(1, 9, "s"), released=True))
    assert isinstance(part.next, Acquire)


def test_whom_it_took_the_lease_from_is_not_told_to_lead_once_it_has_ended_itself():
    part, row = Part(), evolve(OTHERS, remaining_s=-1.0)
    while not isinstance(part.next, Acquire):
        part.sees(row) if isinstance(part.next, Look) else part.wait(0.1)
    part.does(Acquire, Acquired(Term(1, 8, "fresh"), 51))
    before = part.wait(1).it
    part.tell(Stop())
    assert [(told.kind, told.sentence) for told in changes(before, part.it)] == [
        ("leader.ended", "north leads no more, term 1.8: this process ends")
    ]

    part.tell(WorkEnded()).does(Release, Released())
    before = part.it
    part.sees(evolve(OTHERS, seq=52, term=Term(1, 9, "s")))
    assert [told.sentence for told in changes(before, part.it)] == ["south leads, term 1.9"]


def test_a_term_that_was_to_be_released_is_never_renewed_even_if_the_answer_is_lost():
    part = Part().leads().tell(Resign("an operator asked")).tell(WorkEnded())
    part.does(Release, Failed("no answer"), after_s=2)
    moves = []
    for _ in range(12):
        move = part.next
        moves.append(type(move))
        if isinstance(move, Rest):
            part.wait(max(0.01, move.until - part.now))
        else:
            part.does(type(move), Failed("no answer"), after_s=1.5)
    assert Release in moves
    assert Renew not in moves


def test_who_stops_takes_nothing_any_more_and_goes_on_watching():
    part = Part().leads().tell(Stop()).tell(WorkEnded()).does(Release, Released())
    part.watch(evolve(FREE, holder="north-id", term=Term(1, 8, "fresh"), seq=51), 3 * TTL)
    assert not isinstance(part.next, Acquire)
    assert part.it.row_at > part.now - 2 * LIMITS.poll


def test_a_lease_taken_while_this_process_was_told_to_stop_is_given_back():
    part = Part().sees(FREE)
    part.send(Acquire)
    part.tell(Stop()).tell(Acquired(Term(1, 8, "fresh"), 51))
    assert not part.may_act
    assert isinstance(part.next, Release)


# -- what agents tell ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seen", [Term(1, 9, "x"), Term(2, 1, "x"), Term(1, 8, "x")], ids=["later", "n", "conflict"])
@pytest.mark.parametrize("heard_s", [None, 2 * TTL + 1])
def test_a_leader_told_of_a_later_term_lifts_its_own_if_nobody_heard_that_leader_lately(seen, heard_s):
    part = Part().leads().tell(Told("node-1", seen, heard_s))
    assert not part.may_act
    assert part.send(Lift) == Lift(Term(1, 8, "fresh"), seen, f"an agent has obeyed term {seen}")
    before = part.it
    part.tell(Lifted(Term(max(1, seen.n), max(8, seen.epoch) + 1, "lifted")))
    assert part.may_act
    assert part.it.term.is_newer_than(seen)
    assert [told.kind for told in changes(before, part.it)] == ["leader.lifted"]


@pytest.mark.parametrize("heard_s", [None, 3.0])
def test_another_leader_of_the_same_number_is_an_alarm_once_whether_the_term_is_lifted_or_not(heard_s):
    before = Part().leads().it
    part = Part().leads().tell(Told("node-1", Term(1, 8, "x"), heard_s))
    told = [one for one in changes(before, part.it) if one.kind == "leader.store_back"]
    assert [one.sentence for one in told] == [
        "node-1 has obeyed another leader under this one's number, term 1.8: the store went back in time"
    ]
    again = part.it
    part.tell(Told("node-2", Term(1, 8, "x"), heard_s))
    assert "leader.store_back" not in [one.kind for one in changes(again, part.it)]


def test_it_steps_down_and_stays_out_if_an_agent_did():
    part = Part().leads().tell(Told("node-1", Term(2, 1, "x"), 5.0))
    assert part.it.role is Role.LEAVING
    part.tell(WorkEnded()).does(Release, Released())
    assert part.it.out_until == pytest.approx(T0 + 2 * TTL - 5.0)


def test_one_agent_that_did_is_enough_while_the_lift_is_under_way():
    part = Part().leads().tell(Told("node-1", Term(2, 1, "x"), None)).tell(Told("node-2", Term(2, 1, "x"), 1.0))
    assert part.it.role is Role.LEAVING


def test_a_lift_without_an_answer_is_looked_for_and_led_under_if_it_came_through():
    part = Part().leads().tell(Told("node-1", Term(1, 9, "x"), None))
    part.send(Lift, "lifted")
    part.wait(2).tell(Failed("no answer")).wait(0.3)
    part.sees(evolve(OTHERS, holder="north-id", term=Term(1, 10, "lifted"), seq=51))
    assert part.may_act
    assert part.it.term == Term(1, 10, "lifted")


def test_a_lift_that_did_not_come_through_is_asked_again_under_the_same_nonce():
    part = Part().leads().tell(Told("node-1", Term(1, 9, "x"), None))
    part.send(Lift, "lifted")
    part.wait(1).tell(Failed("no answer")).wait(0.3)
    part.sees(evolve(OTHERS, holder="north-id", term=Term(1, 8, "fresh"), seq=51))
    part.send(Lift, "again")
    assert part.it.sent.nonce == "lifted"


@pytest.mark.parametrize("seen", [Term(1, 7, "x"), Term(1, 8, "fresh"), Term(0, 99, "sqlite")])
def test_a_term_that_ours_is_above_changes_nothing(seen):
    part = Part().leads().tell(Told("node-1", seen, 0.1))
    assert part.may_act


# -- what is shown -----------------------------------------------------------------------------------------------------


def test_ready_is_said_in_the_row_at_once():
    part = Part().leads().wait(0.5).tell(Serving(True))
    assert part.next == Renew(Term(1, 8, "fresh"), True, "it is ready now")
    part.does(Renew, Renewed(52))
    assert isinstance(part.next, Rest)


def test_who_led_last_is_ready_while_the_store_is_away_for_the_grace():
    part = Part().leads().wait(2).does(Renew, Failed("away"), after_s=7).tell(WorkEnded())
    assert readiness(part.it, part.now, 300).ready
    assert readiness(part.it, T0 + 2 + 300, 300).ready
    assert not readiness(part.it, T0 + 2 + 301, 300).ready


def test_who_saw_another_leader_is_not():
    part = Part().leads().wait(2).does(Renew, Refused()).tell(WorkEnded()).sees(evolve(OTHERS, seq=60))
    assert not readiness(part.it, part.now, 300).ready


def test_who_handed_over_is_ready_until_the_next_leader_is_or_has_had_its_time():
    part = Part().leads().tell(Resign("an operator asked")).tell(WorkEnded()).does(Release, Released())
    assert readiness(part.it, part.now, 300).ready
    row = evolve(OTHERS, seq=60)
    part.sees(row)
    assert readiness(part.it, part.now, 300).ready
    assert not has_handed_over(part.it, part.now)
    assert not readiness(part.it, part.now + LIMITS.handover, 300).ready
    part.wait(1.2).sees(evolve(row, ready=True))
    assert not readiness(part.it, part.now, 300).ready
    assert has_handed_over(part.it, part.now)


def test_a_standby_that_never_led_is_not_ready():
    assert not readiness(Part().sees(OTHERS).it, T0, 300).ready


def test_who_leads_is_shown_with_term_margin_and_renewals():
    part = Part().leads().wait(2).does(Renew, Renewed(52)).wait(1)
    shown = leader(part.it, part.now)
    assert (shown.who, shown.here, shown.state, shown.term, shown.renewals) == (
        "north", True, "leading", Term(1, 8, "fresh"), 1,
    )  # fmt: skip
    assert shown.margin_s == pytest.approx(7)
    assert shown.since_s == pytest.approx(3)


def test_who_led_last_is_shown_while_the_store_does_not_answer():
    part = Part().leads()
    while part.it.leads:
        part.does(type(part.next), Failed("refused")) if not isinstance(part.next, Rest) else part.wait(0.1)
    shown = leader(part.wait(5).it, part.now)
    assert (shown.who, shown.here, shown.state, shown.term) == ("north", True, "run out", Term(1, 8, "fresh"))
    assert shown.margin_s == pytest.approx(-5, abs=0.2)
    assert "lease row" not in str(explain(part.it, part.now).because)


def test_a_leader_says_nothing_of_a_row_that_it_read_before_it_led():
    part = Part().leads().wait(2).does(Renew, Renewed(52))
    said = [fact.text for fact in explain(part.it, part.now).because]
    assert said == ["it took the lease, term 1.8", "its lease is good for 8.0 s more, after 1 renewal"]


def test_how_long_nothing_ran_is_said_as_well_as_ticks_know_it():
    part = Part().leads().stall(3).tell(Ticked())
    assert part.it.why == "nothing ran here for 2.5 to 3.0 s"


def test_another_leader_is_shown_with_its_addresses_and_when_it_was_seen():
    shown = leader(Part().sees(OTHERS).wait(1).it, T0 + 1)
    assert (shown.who, shown.here, shown.state) == ("south", False, "leading")
    assert shown.addresses.admin == "https://south:7442"
    assert shown.margin_s == pytest.approx(8)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Part(), "nobody leads, as far as this control plane knows"),
        (lambda: Part().leads(), "north, this control plane, leads, term 1.8"),
        (lambda: Part().leads().stall(3).tell(Ticked()), "does nothing until it has renewed"),
        (lambda: Part().sees(OTHERS), "south leads, term 1.7"),
        (lambda: Part().sees(OTHERS).wait(9.5), "the lease of south, term 1.7, has run out"),
        (lambda: Part().leads().tell(Resign("asked")), "gives term 1.8 back"),
    ],
    ids=["at first", "leads", "suspended", "another", "run out", "leaving"],
)
def test_the_explanation_says_who_leads(make: Callable[[], Part], says):
    part = make()
    told = explain(part.it, part.now)
    assert says in told.verdict
    assert sum(one.chosen for one in told.candidates) <= 1


def test_the_explanation_says_why_this_one_does_not_take_over():
    part = Part().sees(OTHERS).wait(1)
    told = explain(part.it, part.now)
    assert told.candidates[0].reasons == (f"it may take the lease in 9.0 s at the earliest: {Right.EXPIRED.value}",)
    assert "nobody writes the lease for 9.0 s more" in told.would_change_it


def test_settings_that_do_not_go_together_are_refused_in_words():
    assert LeaseLimits().problem() == ""
    assert "lease.ttl (5 s)" in LeaseLimits(ttl=5).problem()
