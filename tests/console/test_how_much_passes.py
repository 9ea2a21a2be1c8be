"""Rates from counters: whatever is counted, however often one looks, and whoever counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.traffic import SPACING_S, WINDOW_S, Traffic

BOUNDS = (0.1, 1.0, 10.0)
models = st.sampled_from(["a", "b", "c"])
requests = st.tuples(models, st.booleans(), st.integers(0, 100), st.sampled_from([0.05, 0.5, 5.0, 50.0]))
seconds = st.lists(st.tuples(st.floats(0.5, 20), st.lists(requests, max_size=5)), min_size=1, max_size=40)


class Counting:
    """A gateway's counters, as ``GET /traffic`` says them."""

    def __init__(self, since=0.0):
        self.since, self.models = since, {}

    def ended(self, model, failed=False, tokens=0, ttft_s=0.05):
        one = self.models.setdefault(
            model, {"requests": 0, "failed": 0, "completion_tokens": 0, "ttft_counts": [0] * 4}
        )
        one["requests"] += 1
        one["failed"] += failed
        one["completion_tokens"] += tokens
        one["ttft_counts"][sum(ttft_s > bound for bound in BOUNDS)] += 1

    def said(self):
        rows = [{"model": name, **one, "ttft_counts": list(one["ttft_counts"])} for name, one in self.models.items()]
        return {"since": self.since, "ttft_bounds_s": list(BOUNDS), "models": rows}


def watched(history, counting=None):
    """After each span those requests have ended, and one looks."""
    counting, traffic, now = counting or Counting(), Traffic(), 0.0
    traffic.take(counting.said(), now)
    for span_s, ended in history:
        now += span_s
        for one in ended:
            counting.ended(*one)
        traffic.take(counting.said(), now)
    return traffic, counting, now


def test_one_look_says_nothing_of_rates():
    traffic = Traffic()
    traffic.take(Counting().said(), 5.0)

    assert traffic.rates().requests_s is None


@given(seconds)
def test_rates_are_what_was_counted_by_the_time_it_took(history):
    traffic, _, now = watched(history)
    rates = traffic.rates()
    begun = traffic._looks[0].at
    at, passed = 0.0, []
    for span_s, ended in history:
        at += span_s
        passed += ended if at > begun else []

    if now > begun:
        assert rates.requests_s == pytest.approx(len(passed) / (now - begun))
        assert rates.tokens_s == pytest.approx(sum(tokens for _, _, tokens, _ in passed) / (now - begun))
        failed = sum(failed for _, failed, _, _ in passed)
        assert rates.failed_share == (pytest.approx(failed / len(passed)) if passed else None)


@given(seconds)
def test_the_whole_is_the_sum_of_its_models(history):
    rates = watched(history)[0].rates()

    if rates.requests_s is not None:
        assert sum(one.requests_s for one in rates.models.values()) == pytest.approx(rates.requests_s)
        assert sum(one.tokens_s for one in rates.models.values()) == pytest.approx(rates.tokens_s)


@given(seconds)
def test_no_look_is_older_than_the_window_and_their_number_is_bounded(history):
    traffic, _, now = watched(history)

    assert all(now - look.at <= WINDOW_S for look in traffic._looks)
    assert len(traffic._looks) <= 2 * WINDOW_S / SPACING_S + 3


@given(seconds, seconds, st.booleans())
def test_who_counts_anew_is_never_taken_for_who_counted_before(before, after, says_so):
    traffic, _, now = watched(before)
    other = Counting(since=1.0 if says_so else 0.0)
    for span_s, ended in after:
        now += span_s
        for one in ended:
            other.ended(*one)
        traffic.take(other.said(), now)
        rates = traffic.rates()
        found = [rates, *rates.models.values()]

        assert all((one.requests_s or 0) >= 0 and (one.tokens_s or 0) >= 0 for one in found)
        assert all(0 <= (one.failed_share or 0) <= 1 for one in found)


def test_where_the_counters_begin_anew_nothing_is_known_until_the_next_look():
    traffic, _, now = watched([(1.0, [("a", False, 10, 0.5)] * 5)])
    anew = Counting(since=99.0)
    traffic.take(anew.said(), now + 1)
    assert traffic.rates().requests_s is None

    anew.ended("a")
    traffic.take(anew.said(), now + 3)
    assert traffic.rates().requests_s == pytest.approx(0.5)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=300))
def test_the_p99_is_the_bound_of_the_bucket_that_holds_it(first_tokens_s):
    traffic, _, _ = watched([(1.0, [("a", False, 1, ttft_s) for ttft_s in first_tokens_s])])
    found = traffic.rates().ttft_p99_s
    slower = sum(ttft_s > found for ttft_s in first_tokens_s)

    assert found in BOUNDS
    assert slower <= 0.01 * len(first_tokens_s) or found == BOUNDS[-1]


def test_without_requests_there_is_no_share_and_no_p99():
    rates = watched([(1.0, [("a", False, 1, 0.5)]), (61.0, []), (1.0, [])])[0].rates()

    assert (rates.requests_s, rates.failed_share, rates.ttft_p99_s) == (0.0, None, None)


def test_counters_without_bounds_tell_no_quantile():
    traffic = Traffic()
    said = {"since": 1.0, "ttft_bounds_s": [], "models": []}
    traffic.take(said, 1.0)
    traffic.take(said, 2.0)
    assert traffic.rates().ttft_p99_s is None
