"""How full an endpoint is and a pool: what is unknown is not zero, and more load is never less full."""

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.saturation import Sample, may_run, pool_saturation, room


def saturation(in_flight: int, seen: Sample | None, capacity: int | None) -> float:
    return room(seen, capacity).saturation(in_flight)


def sample(running: int | None, waiting: int | None = 0, **more: object) -> Sample:
    return Sample(0.0, running=running, waiting=waiting, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("in_flight", "seen", "capacity", "expected"),
    [
        pytest.param(16, None, 32, 0.5, id="without a sample: what we sent"),
        pytest.param(16, sample(None, None), 32, 0.5, id="a sample that says nothing: what we sent"),
        pytest.param(99, None, None, 0.0, id="nobody knows what it could run"),
        pytest.param(0, sample(8), 32, 0.25, id="all of it is others'"),
        pytest.param(12, sample(8, ours=8), 32, 0.375, id="four went there since"),
        pytest.param(8, sample(12, ours=8), 32, 0.375, id="others have four"),
        pytest.param(2, sample(10, ours=10), 32, 2 / 32, id="eight ended since: not counted twice"),
        pytest.param(0, sample(0, kv=0.4), 32, 0.5, id="half of the KV that may be used"),
        pytest.param(32, sample(32, ours=32), 32, 1.0, id="a full batch and an empty queue"),
        pytest.param(12, sample(8, 4, ours=12), 32, 0.8, id="four wait: four fifths of a full queue"),
        pytest.param(20, sample(8, 0, ours=8), 32, 0.8, id="twelve went there since, eight may run: four wait"),
        pytest.param(3, sample(0, 0), 32, 3 / 32, id="an idle engine takes five at once"),
    ],
)
def test_an_endpoint_is_as_full_as_its_fullest_part(
    in_flight: int, seen: Sample | None, capacity: int | None, expected: float
):
    assert saturation(in_flight, seen, capacity) == pytest.approx(expected)


def test_only_a_wait_for_room_shows_that_no_more_can_run():
    assert may_run(sample(8, 4), 32) == 8
    assert may_run(sample(8, 4, waiting_capacity=4), 32) == 8
    assert may_run(sample(8, 4, waiting_capacity=0), 32) == 16


def test_no_more_are_believed_to_run_than_memory_holds():
    assert may_run(sample(16, kv=0.2), 256) == 32
    assert may_run(sample(16, kv=0.6), 256) == 21, "sixteen take 0.6, so 0.8 holds twenty-one"
    assert may_run(sample(16, kv=0.9), 256) == 16
    assert may_run(sample(0, kv=0.9), 256) == 5
    assert may_run(sample(1, kv=5e-324), 256) == 6, "next to nothing bounds nothing"


def test_who_waits_for_the_next_step_of_an_engine_that_ran_more_just_now_is_no_queue():
    between_steps = sample(15, 13, ours=28)

    assert room(between_steps, 32).parts(28).queue == pytest.approx(13 / 5)
    assert room(between_steps, 32, ran=28).parts(28).queue == 0


def test_a_pool_is_as_full_as_the_mean_of_its_endpoints_by_size():
    assert pool_saturation([(0.5, 1), (1.0, 3)]) == pytest.approx(0.875)
    assert pool_saturation([(0.0, 1), (7.0, 1)]) == pytest.approx(0.5)


def test_a_pool_of_full_endpoints_is_as_full_as_the_least_of_them():
    assert pool_saturation([(1.5, 10), (1.2, 1)]) == 1.2


def test_an_empty_pool_is_full():
    assert pool_saturation([]) == 1.0


counts = st.integers(0, 300)
shares = st.floats(0, 1)
samples = st.builds(
    lambda running, waiting, capacity, kv, ours: sample(running, waiting, waiting_capacity=capacity, kv=kv, ours=ours),
    st.none() | counts,
    st.none() | counts,
    st.none() | counts,
    st.none() | shares,
    counts,
)
capacities = st.none() | st.integers(1, 300)


@given(counts, st.none() | samples, capacities, st.integers(1, 50))
def test_one_more_request_never_makes_an_endpoint_less_full(
    in_flight: int, seen: Sample | None, capacity: int | None, more: int
):
    assert saturation(in_flight + more, seen, capacity) >= saturation(in_flight, seen, capacity) >= 0


@given(counts, samples, capacities, st.integers(1, 50), shares)
def test_neither_does_a_longer_queue_or_more_kv_in_the_engine(
    in_flight: int, seen: Sample, capacity: int | None, more: int, kv: float
):
    before = saturation(in_flight, seen, capacity)

    assert saturation(in_flight, evolve(seen, waiting=(seen.waiting or 0) + more), capacity) >= before
    assert saturation(in_flight, evolve(seen, kv=max(seen.kv or 0.0, kv)), capacity) >= before


@given(counts, st.none() | samples, capacities, st.integers(1, 50))
def test_a_larger_capacity_never_makes_an_endpoint_fuller(
    in_flight: int, seen: Sample | None, capacity: int | None, more: int
):
    if capacity is not None:
        assert saturation(in_flight, seen, capacity + more) <= saturation(in_flight, seen, capacity)


members = st.lists(st.tuples(st.floats(0, 4), st.floats(1, 300)), min_size=1, max_size=8)


@given(members)
def test_a_pool_has_room_exactly_while_one_of_its_endpoints_has(pool: list[tuple[float, float]]):
    s = pool_saturation(pool)

    assert min(s for s, _ in pool) - 1e-9 <= s <= max(s for s, _ in pool) + 1e-9
    assert (s < 1) or all(one >= 1 - 1e-9 for one, _ in pool)
    assert (s >= 1) or any(one < 1 for one, _ in pool)


@given(members, st.integers(0, 7), st.floats(0, 4))
def test_a_fuller_endpoint_never_makes_its_pool_less_full(pool: list[tuple[float, float]], which: int, more: float):
    s, weight = pool[which % len(pool)]
    fuller = [*pool]
    fuller[which % len(pool)] = (s + more, weight)

    assert pool_saturation(fuller) >= pool_saturation(pool) - 1e-9
