"""Who goes next: bands from the top, tenants in turns, floors as promised; who gives way when a band is full."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.admission import Full, Line, Queues, new_line
from llmgw.core.bands import CEILINGS, AdmissionLimits
from llmgw.core.identity import Band
from llmgw.core.seats import Seat, Seats


def queues(
    floors: dict[str, float] | None = None, seats_max: int = 1000, bytes_max: int = 10**6
) -> tuple[Queues, Line]:
    found = Queues({band: Seats(seats_max, bytes_max) for band in Band})
    line = new_line(AdmissionLimits(floors=floors or {}).rules())
    return found, line


def seat(tenant: str = "t", band: Band = Band.BRONZE, size: int = 1, arrived: float = 0.0) -> Seat:
    return Seat(tenant, band, size, arrived)


def joined(q: Queues, line: Line, *seats: Seat) -> list[Any]:
    return [q.seat(line, one, one.arrived) for one in seats]


def granted(q: Queues, line: Line, saturation: float, most: int = 10**6) -> list[Seat]:
    found = []
    while len(found) < most and (pick := q.next(line, saturation, 0.0)):
        found.append(pick.seat)
    return found


def test_an_empty_line_grants_nobody():
    q, line = queues()

    assert q.next(line, 0.0, 0.0) is None
    assert line.may_pass(Band.BRONZE, 0.89)
    assert not line.may_pass(Band.BRONZE, 0.9)


def test_a_band_goes_while_the_pool_is_below_its_ceiling():
    q, line = queues()
    joined(q, line, seat(band=Band.BRONZE), seat(band=Band.SILVER), seat(band=Band.PLATINUM), seat(band=Band.GOLD))

    assert [one.band for one in granted(q, line, 0.95)] == [Band.PLATINUM, Band.GOLD]
    assert [one.band for one in granted(q, line, 0.9)] == [Band.SILVER]
    assert [one.band for one in granted(q, line, 0.89)] == [Band.BRONZE]


def test_an_empty_high_band_with_a_low_ceiling_blocks_nobody():
    """G74"""
    q, line = queues()
    joined(q, line, seat(band=Band.GOLD))

    assert len(granted(q, line, 0.99)) == 1


def test_whoever_waits_is_not_overtaken_by_a_newcomer():
    q, line = queues()
    joined(q, line, seat(band=Band.BRONZE))

    assert not line.may_pass(Band.BRONZE, 0.0)


def test_what_let_it_through_is_said():
    q, line = queues({"bronze": 0.05})
    joined(q, line, seat(band=Band.GOLD))
    pick = q.next(line, 0.8349, 0.0)

    assert pick is not None
    assert pick.why == "saturation 0.83 was below gold's ceiling 1"


def test_tenants_take_turns_so_ten_requests_do_not_wait_behind_a_thousand():
    q, line = queues(seats_max=2000)
    joined(q, line, *(seat("many") for _ in range(1000)), *(seat("few") for _ in range(10)))
    first = [one.tenant for one in granted(q, line, 0.0, most=25)]

    assert first.count("few") == 10


def test_a_tenants_own_requests_go_in_the_order_they_first_arrived():
    q, line = queues()
    one, two, moved = seat(arrived=5.0), seat(arrived=6.0), seat(arrived=1.0)  # the last comes from another pool
    joined(q, line, one, two, moved)

    assert granted(q, line, 0.0) == [moved, one, two]


@pytest.mark.parametrize(("floor", "least", "most"), [(0.05, 40, 60), (0.25, 240, 260), (0.0, 0, 0)])
def test_a_floor_share_is_kept_while_the_band_above_saturates_the_pool(floor: float, least: int, most: int):
    q, line = queues({"bronze": floor}, seats_max=5000)
    joined(q, line, *(seat(band=Band.PLATINUM) for _ in range(2000)), *(seat(band=Band.BRONZE) for _ in range(2000)))
    bands = Counter(one.band for one in granted(q, line, 1.5, most=1000))

    assert least <= bands[Band.BRONZE] <= most


def test_nobody_saves_up_for_a_floor_while_nobody_of_it_waits():
    q, line = queues({"bronze": 0.05})
    joined(q, line, *(seat(band=Band.PLATINUM) for _ in range(200)))
    granted(q, line, 1.5, most=100)
    joined(q, line, *(seat(band=Band.BRONZE) for _ in range(10)))
    bands = [one.band for one in granted(q, line, 1.5, most=20)]

    assert bands.index(Band.BRONZE) == 19


def test_a_floor_lets_nobody_past_the_highest_ceiling():
    q, line = queues({"bronze": 0.5})
    joined(q, line, seat(band=Band.BRONZE), seat(band=Band.BRONZE))

    assert granted(q, line, 2.0) == []


# -- bounds -----------------------------------------------------------------------------------------


def test_a_full_band_refuses_and_says_when_to_come_back():
    q, line = queues(seats_max=3)
    joined(q, line, *(seat("a") for _ in range(2)), seat("b"))
    (full,) = joined(q, line, seat("a"))

    assert isinstance(full, Full)
    assert (full.lacks, full.retry_after_s) == ("seats", 5.0)
    assert joined(q, line, seat("a", Band.GOLD)) == [None], "the bound is a band's own"


def test_when_to_come_back_follows_from_how_fast_the_band_drains():
    q, line = queues(seats_max=20)
    joined(q, line, *(seat() for _ in range(20)))
    for second in range(10):
        assert q.next(line, 0.0, 100.0 + second) is not None
        q.seat(line, seat(), 100.0)
    (full,) = [q.seat(line, seat(), 109.9)]

    assert isinstance(full, Full)
    assert 15 <= full.retry_after_s <= 30, "one a second, twenty in front"


def test_the_newest_of_who_holds_most_gives_way_to_who_holds_fewer():
    q, line = queues(seats_max=4)
    first, second, third, other = seat("greedy"), seat("greedy"), seat("greedy"), seat("b")
    joined(q, line, first, second, third, other)
    (out,) = joined(q, line, seat("c"))

    assert out is third
    assert not third.waiting
    assert line.waiting == 4


def test_equals_do_not_throw_each_other_out():
    q, line = queues(seats_max=4)
    joined(q, line, seat("a"), seat("a"), seat("b"), seat("b"))

    assert isinstance(joined(q, line, seat("a"))[0], Full)
    assert isinstance(joined(q, line, seat("b"))[0], Full)
    assert isinstance(joined(q, line, seat("c"))[0], Seat)


def test_bytes_are_bounded_as_seats_are():
    q, line = queues(bytes_max=100)
    joined(q, line, seat("a", size=40), seat("a", size=40))
    full, fits = joined(q, line, seat("a", size=30), seat("b", size=20))

    assert isinstance(full, Full)
    assert full.lacks == "bytes"
    assert fits is None
    assert isinstance(joined(q, line, seat("c", size=90))[0], Full), "not even the newest of the greedy would make room"


# -- whatever happens -------------------------------------------------------------------------------

bands = st.sampled_from(list(Band))
acts = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.sampled_from("abc"), bands, st.integers(0, 40)),
        st.tuples(st.just("leave"), st.integers(0, 100)),
        st.tuples(st.just("grant"), st.floats(0, 3)),
    ),
    max_size=120,
)


@given(acts, st.fixed_dictionaries({"bronze": st.sampled_from([0.0, 0.1, 0.5])}))
def test_every_seat_is_in_one_place_and_the_bounds_hold(acts: list[Any], floors: dict[str, float]):
    q, line = queues(floors, seats_max=6, bytes_max=100)
    waiting: list[Seat] = []
    for act in acts:
        match act:
            case ("join", tenant, band, size):
                one = seat(tenant, band, size)
                had = q.seat(line, one, 0.0)
                if isinstance(had, Seat):
                    waiting.remove(had)
                if not isinstance(had, Full):
                    waiting.append(one)
            case ("leave", which) if waiting:
                q.leave(waiting.pop(which % len(waiting)))
            case ("grant", saturation):
                pick = q.next(line, saturation, 0.0)
                if pick is not None:
                    waiting.remove(pick.seat)
                    assert saturation < max(CEILINGS.values())
                else:
                    assert all(saturation >= CEILINGS[one.band.value] for one in waiting)
        for band in Band:
            mine = [one for one in waiting if one.band is band]
            held = q.seats[band]
            assert (held.held, held.bytes) == (len(mine), sum(one.size for one in mine))
            assert held.held <= 6
            assert held.bytes <= 100
            assert line.bands[band].waiting == len(mine)
            shown = line.bands[band].tenants()
            assert {tenant: of.waiting for tenant, of in shown.items()} == Counter(one.tenant for one in mine)
            assert sum(of.bytes for of in shown.values()) == held.bytes
        assert all(one.waiting for one in waiting)
        assert line.waiting == len(waiting)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=200))
def test_whoever_gives_way_held_most_and_was_its_newest(steps: list[tuple[str, bool]]):
    seats, held = Seats(5, 10**6), list[Seat]()
    for tenant, leaves in steps:
        counts = Counter(one.tenant for one in held)
        out = seats.gives_way(tenant, 1)
        if out is None:
            assert max(counts.values(), default=0) - counts[tenant] < 2
        else:
            assert counts[out.tenant] == max(counts.values()) >= counts[tenant] + 2
            assert out is [one for one in held if one.tenant == out.tenant][-1]
        if leaves and held:
            seats.give_back(held.pop(0))
        elif len(held) < 5:
            one = seat(tenant)
            seats.take(one)
            held.append(one)
