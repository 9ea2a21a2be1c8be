"""Which failures may go elsewhere, what they say of the endpoint, and how many may in all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.fleet import FALLBACK_DEFAULT, FallbackOn
from llmgw.core.outcome import Outcome, Refusal
from llmgw.core.retry import WINDOW_S, RetryBudget, fallback_reason, is_health, is_illness, may_retry

outcomes = st.sampled_from(Outcome)


@given(outcomes, st.integers(0, 5))
def test_nothing_is_tried_again_once_something_has_reached_the_client(outcome: Outcome, attempts: int):
    assert not may_retry(outcome, True, attempts, 3)


@given(outcomes, st.integers(0, 5))
def test_only_an_engines_failure_is_tried_again_and_only_so_often(outcome: Outcome, attempts: int):
    if may_retry(outcome, False, attempts, 3):
        assert outcome.end.blame == "engine"
        assert attempts < 3


@pytest.mark.parametrize("outcome", [Outcome.ENGINE_REFUSED, Outcome.TOTAL_TIMEOUT, Outcome.CLIENT_GONE, Outcome.OK])
def test_what_another_endpoint_would_answer_alike_stays(outcome: Outcome):
    assert not may_retry(outcome, False, 0, 3)
    assert fallback_reason(Refusal(outcome, "")) is None


@pytest.mark.parametrize(
    ("outcome", "status", "reason"),
    [
        (Outcome.ENGINE_UNREACHABLE, None, FallbackOn.UNREACHABLE),
        (Outcome.DIAL_TIMEOUT, None, FallbackOn.UNREACHABLE),
        (Outcome.ENGINE_BROKE, None, FallbackOn.UNREACHABLE),
        (Outcome.ENGINE_ERROR, None, FallbackOn.SERVER_ERROR),
        (Outcome.ENGINE_DENIED_US, None, FallbackOn.SERVER_ERROR),
        (Outcome.ENGINE_BUSY, None, FallbackOn.SERVER_ERROR),
        (Outcome.ENGINE_BUSY, 429, FallbackOn.RATE_LIMITED),
        (Outcome.FIRST_TOKEN_TIMEOUT, None, FallbackOn.TIMEOUT),
        (Outcome.NO_ENDPOINT, None, FallbackOn.NO_ENDPOINT),
        (Outcome.QUEUE_FULL, None, FallbackOn.SATURATED),
    ],
)
def test_a_failure_falls_back_under_its_own_reason(outcome: Outcome, status: int | None, reason: FallbackOn):
    assert fallback_reason(Refusal(outcome, "", as_status=status)) is reason


def test_every_reason_a_rule_may_name_has_a_failure():
    failures = [Refusal(outcome, "") for outcome in Outcome] + [Refusal(Outcome.ENGINE_BUSY, "", as_status=429)]

    assert {fallback_reason(failure) for failure in failures} - {None} == set(FallbackOn)


def test_a_rule_for_429_alone_leaves_a_500_where_it_is():
    assert fallback_reason(Refusal(Outcome.ENGINE_ERROR, "")) not in {FallbackOn.RATE_LIMITED}
    assert FallbackOn.RATE_LIMITED not in FALLBACK_DEFAULT


@given(outcomes)
def test_nothing_shows_both_health_and_illness(outcome: Outcome):
    assert not (is_health(outcome) and is_illness(outcome))
    assert not is_illness(outcome) or outcome.end.blame == "engine"


@pytest.mark.parametrize(
    ("outcome", "ill", "well"),
    [
        (Outcome.ENGINE_REFUSED, False, True),  # a context too long, ten times: the breaker stays closed
        (Outcome.ENGINE_BUSY, False, False),
        (Outcome.ENGINE_ERROR, True, False),
        (Outcome.ENGINE_DENIED_US, True, False),
        (Outcome.ENGINE_UNREACHABLE, True, False),
        (Outcome.TOTAL_TIMEOUT, False, False),
        (Outcome.CLIENT_GONE, False, False),
        (Outcome.OK, False, True),
    ],
)
def test_an_outcome_says_of_the_endpoint_what_it_shows_and_no_more(outcome: Outcome, ill: bool, well: bool):
    assert (is_illness(outcome), is_health(outcome)) == (ill, well)


def test_retries_are_a_share_of_the_requests_of_the_last_ten_seconds():
    budget = RetryBudget(share=0.2, least=1)
    for _ in range(50):
        budget.request(100.0)

    assert [budget.take(101.0) for _ in range(12)] == [True] * 10 + [False] * 2
    assert budget.take(100.0 + WINDOW_S + 1)


def test_a_few_retries_are_always_allowed():
    budget = RetryBudget(share=0.0, least=3)

    assert [budget.take(5.0) for _ in range(5)] == [True, True, True, False, False]


@given(
    st.floats(0, 1),
    st.integers(0, 5),
    st.lists(st.tuples(st.sampled_from(["request", "retry"]), st.floats(0, 3)), max_size=200),
)
def test_a_storm_of_failures_never_gets_more_than_its_budget(share: float, least: int, story: list[tuple[str, float]]):
    budget, now = RetryBudget(share, least), 1000.0
    requests: list[float] = []
    retries: list[float] = []
    for what, pause in story:
        now += pause
        if what == "request":
            budget.request(now)
            requests.append(now)
        elif budget.take(now):
            retries.append(now)
            # Whole seconds are counted: a window is between nine and ten of them long.
            lately = [at for at in retries if int(at) > int(now) - WINDOW_S]
            asked = [at for at in requests if int(at) > int(now) - WINDOW_S]
            assert len(lately) <= max(least, share * len(asked) + 1)
