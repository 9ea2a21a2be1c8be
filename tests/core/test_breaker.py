"""When an endpoint is left alone, and who may try it again."""

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.breaker import Breaker, BreakerLimits, State

LIMITS = BreakerLimits(failures=3, open_for=5.0, open_max=20.0, share=0.5, window=10.0, share_least=10)


def failed(breaker: Breaker, now: float, why: str = "reset") -> None:
    breaker.bad(now, why, breaker.take(now))


def opened(now: float = 0.0) -> Breaker:
    breaker = Breaker(LIMITS)
    for _ in range(LIMITS.failures):
        failed(breaker, now)
    assert breaker.state(now) is State.OPEN
    return breaker


def test_failures_in_a_row_open_it_and_a_good_answer_between_them_starts_the_count_again():
    breaker = Breaker(evolve(LIMITS, share=1.0))
    for _ in range(5):
        failed(breaker, 0.0)
        failed(breaker, 0.0)
        breaker.good(breaker.take(0.0))
    assert breaker.state(0.0) is State.CLOSED

    for _ in range(3):
        failed(breaker, 100.0, "connection refused")

    assert breaker.state(100.0) is State.OPEN
    assert breaker.why == "connection refused"
    assert not breaker.may_try(104.9)


def test_an_endpoint_that_fails_two_requests_of_three_is_taken_out_though_never_three_in_a_row():
    breaker, sent = Breaker(LIMITS), 0
    while breaker.may_try(sent * 0.1) and sent < 100:
        ticket = breaker.take(sent * 0.1)
        if sent % 3 == 2:
            breaker.good(ticket)
        else:
            breaker.bad(sent * 0.1, "500", ticket)
        sent += 1
    assert LIMITS.share_least <= sent < 2 * LIMITS.share_least


def test_a_share_of_one_never_opens_it():
    breaker = Breaker(evolve(LIMITS, share=1.0, failures=1000))
    for _ in range(500):
        failed(breaker, 0.0)
    assert breaker.state(0.0) is State.CLOSED


def test_an_hour_of_good_answers_does_not_hide_a_bad_ten_seconds():
    breaker = Breaker(LIMITS)
    for second in range(3600):
        breaker.good(breaker.take(float(second)))
    now = 3600.0
    for n in range(15):
        now = 3600.0 + n / 2
        ticket = breaker.take(now)
        if n % 3 == 2:
            breaker.good(ticket)
        else:
            breaker.bad(now, "500", ticket)
        if breaker.state(now) is State.OPEN:
            break
    assert breaker.state(now) is State.OPEN


def test_half_open_lets_one_request_through_and_its_good_end_closes_it():
    breaker = opened()
    assert breaker.state(5.0) is State.HALF_OPEN

    ticket = breaker.take(5.0)

    assert not breaker.may_try(5.0)
    assert not breaker.may_try(1000.0)
    assert breaker.state(1000.0) is State.HALF_OPEN
    breaker.good(ticket)
    assert breaker.state(6.0) is State.CLOSED
    assert breaker.why == ""


def test_each_failed_try_doubles_the_pause_up_to_its_limit_and_a_good_one_takes_it_back():
    breaker, now, pauses = opened(), 0.0, []
    for _ in range(4):
        began = now
        while not breaker.may_try(now):
            now += 0.5
        pauses.append(now - began)
        failed(breaker, now)
    assert pauses == [5.0, 10.0, 20.0, 20.0]

    now += 20.0
    breaker.good(breaker.take(now))
    for _ in range(3):
        failed(breaker, now)

    assert not breaker.may_try(now + 4.9)
    assert breaker.may_try(now + 5.0)


def test_a_try_that_ends_without_a_verdict_gives_its_permit_back():
    breaker = opened()
    ticket = breaker.take(5.0)

    breaker.unknown(ticket)

    assert breaker.state(5.0) is State.HALF_OPEN
    assert breaker.may_try(5.0)


def test_what_was_sent_before_it_opened_neither_closes_it_nor_hands_out_a_second_permit():
    breaker = Breaker(LIMITS)
    old = [breaker.take(0.0) for _ in range(6)]
    for _ in range(3):
        failed(breaker, 0.0)

    breaker.good(old[0])
    assert breaker.state(1.0) is State.OPEN
    trying = breaker.take(5.0)
    breaker.good(old[1])
    breaker.unknown(old[2])
    assert not breaker.may_try(5.0)
    breaker.bad(5.0, "late", old[3])
    assert breaker.state(5.0) is State.HALF_OPEN
    breaker.good(trying)

    for ticket in old[4:]:
        breaker.bad(6.0, "late", ticket)
    assert breaker.failures == 0


def test_who_knows_that_all_is_well_closes_it_without_a_ticket():
    breaker = opened()
    trying = breaker.take(5.0)

    breaker.good()
    breaker.bad(5.0, "of the process before", trying)

    assert breaker.state(5.0) is State.CLOSED
    assert breaker.failures == 0


def ended(breaker: Breaker, step: str, now: float, ticket: int) -> None:
    match step:
        case "good":
            breaker.good(ticket)
        case "bad":
            breaker.bad(now, "why", ticket)
        case "unknown":
            breaker.unknown(ticket)


steps = st.lists(
    st.tuples(st.sampled_from(["take", "good", "bad", "unknown", "wait"]), st.integers(0, 30)), max_size=120
)


@given(steps)
def test_it_stays_open_for_its_pause_and_never_has_two_tries_under_way(todo: list[tuple[str, int]]):
    breaker, now = Breaker(LIMITS), 0.0
    under_way: list[tuple[int, bool]] = []  # ticket, whether it is a try
    for step, number in todo:
        before = breaker.state(now)
        match step:
            case "wait":
                now += number / 2
                continue
            case "take":
                if breaker.may_try(now):
                    half_open = before is State.HALF_OPEN
                    assert before is not State.OPEN
                    ticket = breaker.take(now)
                    assert not half_open or not any(trial for _, trial in under_way)
                    under_way.append((ticket, half_open))
                continue
        if not under_way:
            continue
        ticket, trial = under_way.pop(number % len(under_way))
        ended(breaker, step, now, ticket)
        after = breaker.state(now)
        match step:
            case "good":
                assert after is (State.CLOSED if trial else before)
            case "bad":
                assert after is State.OPEN if trial else after in (before, State.OPEN)
                assert after is before or not breaker.may_try(now + LIMITS.open_for - 0.01)
            case "unknown":
                assert after is before
                assert not trial or breaker.may_try(now)


@given(steps)
def test_the_same_story_has_the_same_end(todo: list[tuple[str, int]]):
    def told() -> list[tuple[str, bool]]:
        breaker, now, seen = Breaker(LIMITS), 0.0, []
        for step, number in todo:
            now += number / 4 if step == "wait" else 0.0
            if step in ("good", "bad", "unknown") and breaker.may_try(now):
                ended(breaker, step, now, breaker.take(now))
            seen.append((breaker.state(now), breaker.may_try(now)))
        return seen

    assert told() == told()
