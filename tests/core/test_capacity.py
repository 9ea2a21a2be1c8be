"""What an engine can run at once, learned from its scrapes: lowered slowly, raised at once, never by memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.capacity import ROW, Capacity
from llmgw.core.saturation import Sample


def sample(running: int, waiting: int = 0, at: float = 0.0, kv: float | None = 0.1, **more: int) -> Sample:
    return Sample(at, running=running, waiting=waiting, kv=kv, **more)


def learned(*samples: Sample, preset: int = 256, given: int | None = None) -> Capacity:
    capacity = Capacity(given, preset)
    for one in samples:
        capacity.sampled(one, (one.running or 0) + (one.waiting or 0))
    return capacity


def test_what_the_operator_says_is_never_unlearned():
    capacity = learned(sample(4, 9), sample(4, 9), sample(900), given=8)

    assert (capacity.value, capacity.how) == (8, "given in the config")


FULL = [sample(32, 5)] * ROW


def test_a_queue_that_stands_beside_a_batch_of_one_size_lowers_it_to_the_most_that_ran():
    capacity = learned(*[sample(33 - n % 3, 5) for n in range(ROW)])

    assert capacity.value == 33
    assert capacity.how == "learned: 5 waited while 33 were running"


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(FULL[1:], id="not yet long enough"),
        pytest.param([*FULL[1:], sample(32, 0), *FULL[1:]], id="not in a row"),
        pytest.param([sample(8 + 2 * n, 5) for n in range(2 * ROW)], id="the batch still fills"),
        pytest.param([sample(26, 2)] * 100, id="they only wait for the scheduler's next step"),
        pytest.param([sample(15 + 13 * (n % 2), 3 + 10 * (n % 2)) for n in range(100)], id="many, for the next step"),
        pytest.param([sample(20, 9, kv=0.97)] * 100, id="KV is full: 20 of 256 is no capacity"),
        pytest.param([sample(20, 9, waiting_capacity=0)] * 100, id="they wait for something else than a slot"),
        pytest.param([Sample(0.0)] * 100, id="the engine says nothing"),
    ],
)
def test_what_shows_no_full_batch_teaches_nothing(seen: list[Sample]):
    capacity = learned(*seen)

    assert (capacity.value, capacity.how) == (256, "usual for this engine")


def test_a_scrape_with_full_kv_between_breaks_the_row():
    assert learned(*FULL[1:], sample(20, 5, kv=0.9), *FULL[1:]).value == 256


def test_more_running_than_believed_raises_it_at_once():
    assert learned(*FULL, sample(40)).value == 40


def test_an_idle_engine_that_shows_a_queue_can_run_one():
    assert learned(*[sample(0, 3)] * ROW).value == 1


def test_a_minute_without_a_queue_at_nine_tenths_doubles_it():
    times = [0.5 * n for n in range(121)]
    capacity = learned(*FULL, *(sample(29, at=at) for at in times))
    assert capacity.value == 64

    capacity = learned(*FULL, *(sample(28, at=at) for at in times))
    assert capacity.value == 32, "28 of 32 is no load to learn from"


def test_a_queue_or_a_quiet_moment_begins_the_minute_anew():
    for interruption in (sample(30, 4, at=30.0), sample(3, at=30.0)):
        before, after = [sample(30, at=0.0), sample(30, at=29.0)], [sample(30, at=31.0), sample(30, at=61.0)]
        capacity = learned(*FULL, *before, interruption, *after)
        assert capacity.value == 32


def idle_queue(capacity: Capacity, begin: float, seconds: float, running: int) -> int | None:
    """Nothing waits for so long, with all there that it is believed to run."""
    for n in range(int(2 * seconds) + 1):
        capacity.sampled(sample(running, at=begin + n / 2), capacity.value or 0)
    return capacity.value


def test_a_try_that_puts_a_queue_there_is_taken_back_at_the_second_scrape():
    capacity = learned(*[sample(32, 5)] * ROW)
    assert idle_queue(capacity, 0.0, 60.0, 32) == 64

    capacity.sampled(sample(32, 20), 52)
    assert capacity.value == 64
    capacity.sampled(sample(32, 20), 52)
    assert capacity.value == 32
    assert capacity.how == "learned: 20 waited with 32 running when it was given more"


def test_each_time_it_was_wrong_to_believe_in_more_the_next_try_comes_later():
    capacity = learned(*[sample(32, 5)] * ROW)
    at = 0.0
    for patience in (60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0, 3600.0):
        assert idle_queue(capacity, at, patience - 1, 32) == 32
        assert idle_queue(capacity, at + patience - 0.5, 0.5, 32) == 64
        for _ in range(2):
            capacity.sampled(sample(32, 20), 52)
        assert capacity.value == 32
        at += patience + 1


def test_a_try_that_was_right_is_followed_by_the_next_after_a_minute():
    capacity = learned(*[sample(16, 5)] * ROW)
    assert idle_queue(capacity, 0.0, 60.0, 16) == 32
    for _ in range(2):
        capacity.sampled(sample(16, 9), 25)  # wrong: the next comes after two minutes
    assert idle_queue(capacity, 100.0, 119.0, 16) == 16
    assert idle_queue(capacity, 219.5, 0.5, 16) == 32
    capacity.sampled(sample(24, 9, at=221.0), 33)  # right
    assert idle_queue(capacity, 222.0, 60.0, 30) == 64


def test_another_process_is_tried_after_a_minute_as_the_first_was():
    capacity = learned(*[sample(32, 5)] * ROW)
    idle_queue(capacity, 0.0, 60.0, 32)
    for _ in range(2):
        capacity.sampled(sample(32, 20), 52)
    capacity.restarted()
    for _ in range(ROW):
        capacity.sampled(sample(32, 5), 40)

    assert idle_queue(capacity, 100.0, 60.0, 32) == 64


def test_another_process_is_not_judged_by_the_one_before():
    capacity = learned(*[sample(4, 5)] * ROW)
    assert capacity.value == 4

    capacity.restarted()
    capacity.sampled(sample(4, 5), 9)
    assert (capacity.value, capacity.how) == (256, "usual for this engine")


def test_of_a_hosted_api_nothing_is_known_or_learned():
    nobody = Capacity(None, None)
    for _ in range(2):
        nobody.sampled(sample(4, 5), 9)

    assert (nobody.value, nobody.how) == (None, "not known")


counts = st.integers(0, 500)
samples = st.builds(
    lambda running, waiting, kv, at: sample(running, waiting, at, kv),
    counts, counts, st.none() | st.floats(0, 1), st.floats(0, 1000),
)  # fmt: skip


@given(st.lists(samples))
def test_it_is_never_below_one_nor_below_what_was_just_seen_running(seen: list[Sample]):
    capacity = Capacity(None, 256)
    for one in seen:
        capacity.sampled(one, (one.running or 0) + (one.waiting or 0))
        assert capacity.value is not None
        assert capacity.value >= max(1, one.running or 0)


def test_what_it_ran_just_now_is_remembered_for_two_seconds_and_not_past_full_memory():
    capacity = learned(sample(28), sample(15, 13), sample(15, 13))
    assert capacity.ran == 28

    capacity.sampled(sample(15, 13, kv=0.95), 28)
    assert capacity.ran == 15
    assert learned(sample(28), *[sample(15)] * 4).ran == 15
