"""Which endpoint gets a request, and that every other one knows why not."""

from collections import Counter
from random import Random

import pytest
from attrs import define, evolve, field
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.breaker import Breaker, BreakerLimits
from llmgw.core.fleet import Endpoint
from llmgw.core.prefix import PrefixIndex
from llmgw.core.saturation import Sample, room
from llmgw.core.scheduling import CROWDED_MORE, SCORERS, Ask, Chosen, NoEndpoint, Weights, choose, explain_choice, unfit

WEIGHTS = Weights()
NOBODY_ELSE = "others scored higher or the draw fell elsewhere"


@define
class At:
    """An endpoint as it stands, written down."""

    endpoint: Endpoint
    in_flight: int = 0
    sample: Sample | None = None
    capacity: int | None = None
    why_not: str | None = None
    breaker: Breaker = field(factory=Breaker)

    def saturation(self, now: float) -> float:
        return room(self.sample, self.capacity).saturation(self.in_flight)

    def unusable(self, now: float) -> str | None:
        return self.why_not


def at(id: str, in_flight: int = 0, *, adapters: str = "", **more: object) -> At:
    return At(Endpoint(id, "m", "http://h", adapters=frozenset(adapters.split())), in_flight, **more)  # type: ignore[arg-type]


def queue(waiting: int = 0, kv: float | None = None, adapters: str = "") -> Sample:
    return Sample(0.0, running=8, waiting=waiting, kv=kv, loaded_adapters=frozenset(adapters.split()), ours=1000)


def chosen(ask: Ask, standing: list[At], weights: Weights = WEIGHTS, draw: float = 0.0) -> str:
    choice = choose(ask, standing, weights, 0.0, draw)
    assert isinstance(choice, Chosen)
    return choice.live.endpoint.id


def shares(standing: list[At], ask: Ask | None = None) -> Counter[str]:
    return Counter(chosen(ask or Ask(), standing, draw=n / 100) for n in range(100))


def reasons(choice: Chosen[At] | NoEndpoint) -> dict[str, str]:
    return {name: why for name, why, _ in choice.account}


# -- filters ----------------------------------------------------------------------------------------


def test_what_cannot_serve_is_passed_over_with_its_reason():
    half_open = Breaker(BreakerLimits(failures=1, open_for=1.0))
    half_open.bad(-5.0, "connection reset")
    half_open.take(0.0)
    standing = [
        at("ill", why_not="unhealthy: connection refused", adapters="sql"),
        at("bare"),
        at("before", adapters="sql"),
        at("trying", breaker=half_open, adapters="sql"),
        at("fine", 50, adapters="sql"),
    ]

    choice = choose(Ask(adapter="sql", tried=frozenset({"before"})), standing, WEIGHTS, 0.0, 0.0)

    assert isinstance(choice, Chosen)
    assert choice.live.endpoint.id == "fine"
    assert reasons(choice) == {
        "ill": "unhealthy: connection refused",
        "bare": "does not serve adapter sql",
        "before": "tried already",
        "trying": "half open: one request is trying it after: connection reset",
        "fine": "",
    }


def test_a_half_open_endpoint_takes_one_request():
    breaker = Breaker(BreakerLimits(failures=1, open_for=1.0))
    breaker.bad(-5.0, "reset")
    standing = [at("a", breaker=breaker)]

    assert isinstance(choose(Ask(), standing, WEIGHTS, 0.0, 0.0), Chosen)
    breaker.take(0.0)

    assert isinstance(choose(Ask(), standing, WEIGHTS, 0.0, 0.0), NoEndpoint)


def test_three_of_four_over_their_limit_leave_the_fourth():
    standing = [at(id, 40, capacity=32) for id in "abc"] + [at("d", 31, capacity=32)]

    choice = choose(Ask(), standing, WEIGHTS, 0.0, 0.0)

    assert isinstance(choice, Chosen)
    assert choice.live.endpoint.id == "d"
    assert reasons(choice)["a"] == "full: saturation 1.25"


def test_when_all_are_full_nobody_is_passed_over():
    standing = [at("a", 80, capacity=32), at("b", 40, capacity=32)]

    choice = choose(Ask(), standing, WEIGHTS, 0.0, 0.0)

    assert isinstance(choice, Chosen)
    assert choice.live.endpoint.id == "b"
    assert all(scores for _, _, scores in choice.account)


def test_a_full_endpoint_is_full_for_its_friends_too():
    cached = Ask(prefix={"a": 1.0}, session=1)

    assert chosen(cached, [at("a", 32, capacity=32), at("b", 31, capacity=32)]) == "b"


def test_an_endpoint_without_a_sample_is_unknown_and_not_full():
    standing = [at("new"), at("old", 3, sample=queue(waiting=4), capacity=64)]

    assert chosen(Ask(), standing) == "new"


def test_an_empty_pool_has_no_endpoint():
    assert choose(Ask(), [], WEIGHTS, 0.0, 0.0) == NoEndpoint(())


# -- scores -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scorer", "better", "worse"),
    [
        ("queue", at("a", sample=queue(0)), at("b", sample=queue(3))),
        ("kv", at("a", sample=queue(kv=0.1)), at("b", sample=queue(kv=0.5))),
        ("in_flight", at("a", 2), at("b", 3)),
        ("prefix", at("a"), at("b")),
        ("lora", at("a", adapters="x", sample=queue(adapters="x")), at("b", adapters="x", sample=queue())),
        ("session", at("a"), at("b")),
    ],
)
def test_each_scorer_decides_where_the_others_are_equal_and_a_weight_of_0_silences_it(
    scorer: str, better: At, worse: At
) -> None:
    standing = [better, worse]
    session = next(n for n in range(100) if chosen(Ask(session=n), [at("a"), at("b")]) == "a")
    ask = Ask(
        adapter="x" if scorer == "lora" else None,
        prefix={"a": 0.5, "b": 0.25} if scorer == "prefix" else None,
        session=session if scorer == "session" else None,
    )

    assert shares(standing, ask) == {"a": 100}
    silenced = evolve(WEIGHTS, **{scorer: 0.0})
    assert {chosen(ask, standing, silenced, draw) for draw in (0.0, 0.9)} == {"a", "b"}


def test_only_a_wait_for_room_counts_where_the_engine_tells_reasons_apart():
    deferred = evolve(queue(waiting=9), waiting_capacity=0)

    assert shares([at("a", sample=deferred), at("b", sample=queue(waiting=1))]) == {"a": 100}


def test_equals_share_by_the_draw():
    assert shares([at("a"), at("b"), at("c"), at("d")]) == {"a": 25, "b": 25, "c": 25, "d": 25}


def test_cold_requests_go_by_load_however_much_the_idle_endpoint_has_cached():
    loaded, idle = at("a", 20), at("b", 1)

    assert shares([loaded, idle], Ask(prefix={})) == {"b": 100}
    assert shares([loaded, idle], Ask(prefix=None)) == {"b": 100}


def test_load_is_counted_at_the_pick_so_a_burst_spreads():
    standing = [at(id) for id in "abc"]
    rng = Random(1)
    for _ in range(30):
        choice = choose(Ask(), standing, WEIGHTS, 0.0, rng.random())
        assert isinstance(choice, Chosen)
        choice.live.in_flight += 1
    assert [one.in_flight for one in standing] == [10, 10, 10]


def test_a_prompt_head_that_everybody_shares_makes_no_hot_spot():
    standing, index, rng = [at(id) for id in "abc"], PrefixIndex(1000), Random(2)
    system_prompt = list(range(8))
    for n in range(60):
        hashes = [*system_prompt, 1000 + n, 2000 + n]
        ask = Ask(prefix=index.matches(hashes))
        choice = choose(ask, standing, WEIGHTS, 0.0, rng.random())
        assert isinstance(choice, Chosen)
        choice.live.in_flight += 1
        index.served(choice.live.endpoint.id, hashes)
        mean = sum(one.in_flight for one in standing) / 3
        assert max(one.in_flight for one in standing) <= 1.25 * mean + CROWDED_MORE + 1
    assert min(one.in_flight for one in standing) >= 10


def test_affinity_holds_while_its_endpoint_carries_no_more_than_its_share():
    ask = Ask(prefix={"a": 1.0})

    assert shares([at("a", 6), at("b", 2)], ask) == {"a": 100}
    assert shares([at("a", 15), at("b", 2)], ask) == {"b": 100}


def test_a_session_stays_where_it_is_when_another_endpoint_comes_or_goes():
    three = [at(id) for id in ("gpu-1", "gpu-2", "gpu-3")]
    homes = {session: chosen(Ask(session=session), three) for session in range(600)}

    without = {session: chosen(Ask(session=session), three[:2]) for session in homes}

    assert all(count > 150 for count in Counter(homes.values()).values())
    assert all(without[session] == home for session, home in homes.items() if home != "gpu-3")
    assert set(without.values()) == {"gpu-1", "gpu-2"}


def test_a_session_has_the_same_home_in_every_process():
    """A value written down: Python's own hash of a string would differ from run to run."""
    three = [at(id) for id in ("gpu-1", "gpu-2", "gpu-3")]

    assert [chosen(Ask(session=session), three)[-1] for session in range(8)] == list("32113332")


# -- the account ------------------------------------------------------------------------------------

samples = st.none() | st.builds(
    queue, st.integers(0, 9), st.none() | st.floats(0, 1), st.sampled_from(["", "x", "x y"])
)
endpoints = st.builds(
    lambda id, in_flight, sample, capacity, why_not, adapters: At(
        Endpoint(id, "m", "http://h", adapters=frozenset(adapters)), in_flight, sample, capacity, why_not
    ),
    st.sampled_from([f"e{n}" for n in range(9)]),
    st.integers(0, 40),
    samples,
    st.none() | st.integers(1, 40),
    st.sampled_from([None, None, None, "unhealthy: refused", "leaving: removed"]),
    st.sets(st.sampled_from(["x", "y"])),
)
pools = st.lists(endpoints, max_size=7, unique_by=lambda one: one.endpoint.id)
asks = st.builds(
    Ask,
    st.sampled_from([None, None, "x"]),
    st.none() | st.dictionaries(st.sampled_from([f"e{n}" for n in range(9)]), st.floats(0, 1)),
    st.none() | st.integers(0, 2**64 - 1),
    st.frozensets(st.sampled_from([f"e{n}" for n in range(9)]), max_size=3),
)
draws = st.floats(0, 1, exclude_max=True)
weights = st.builds(Weights, *[st.floats(0, 10) for _ in SCORERS])


@given(asks, pools, weights, draws)
def test_every_endpoint_is_chosen_or_was_scored_or_has_a_reason(ask: Ask, pool: list[At], w: Weights, draw: float):
    choice = choose(ask, pool, w, 0.0, draw)

    assert sorted(reasons(choice)) == sorted(one.endpoint.id for one in pool)
    fit = {one.endpoint.id for one in pool if not unfit(one, ask, 0.0)}
    match choice:
        case Chosen(live=live):
            assert live.endpoint.id in fit
            passed_over = {name for name, why in reasons(choice).items() if why}
            assert live.endpoint.id not in passed_over
            full = passed_over & fit
            assert all(one.saturation(0.0) >= 1 for one in pool if one.endpoint.id in full)
            assert not full or live.saturation(0.0) < 1
        case NoEndpoint():
            assert not fit
            assert all(reasons(choice).values())


@given(asks, pools, weights, draws, st.randoms(use_true_random=False))
def test_the_order_of_endpoints_does_not_matter(ask: Ask, pool: list[At], w: Weights, draw: float, rng: Random):
    shuffled = rng.sample(pool, len(pool))

    one, other = choose(ask, pool, w, 0.0, draw), choose(ask, shuffled, w, 0.0, draw)

    assert getattr(one, "live", None) is getattr(other, "live", None)
    assert sorted(one.account) == sorted(other.account)


@given(asks, pools, weights, draws)
def test_every_score_is_between_0_and_1_and_the_chosen_one_has_the_highest_sum(
    ask: Ask, pool: list[At], w: Weights, draw: float
):
    choice = choose(ask, pool, w, 0.0, draw)
    totals = {}
    for name, _, scores in choice.account:
        assert all(0 <= score <= 1 for score in scores)
        totals[name] = sum(getattr(w, scorer) * score for scorer, score in zip(SCORERS, scores, strict=False))
    if isinstance(choice, Chosen):
        assert totals[choice.live.endpoint.id] == pytest.approx(max(totals.values()))


@given(asks, pools, draws)
def test_the_account_reads_as_candidates_of_whom_one_is_chosen(ask: Ask, pool: list[At], draw: float):
    choice = choose(ask, pool, WEIGHTS, 0.0, draw)
    name = choice.live.endpoint.id if isinstance(choice, Chosen) else ""

    considered = explain_choice(choice.account, name)

    assert [one.name for one in considered if one.chosen] == ([name] if name else [])
    assert all(one.chosen or one.reasons for one in considered)


def test_a_loser_is_told_that_others_scored_higher():
    choice = choose(Ask(), [at("a", 1), at("b", 9)], WEIGHTS, 0.0, 0.0)

    winner, loser = explain_choice(choice.account, "a")

    assert (winner.chosen, winner.reasons) == (True, ())
    assert (loser.chosen, loser.reasons) == (False, (NOBODY_ELSE,))
    assert winner.scores["in_flight"] == pytest.approx(0.889)
    assert loser.scores["in_flight"] == 0.0
