"""What admission would have done, reckoned beside requests nobody held: waits, refusals, and who stood in front."""

import random

import pytest

from llmgw.core.bands import AdmissionLimits
from llmgw.core.identity import Band
from llmgw.core.shadow import Mirror, Passing, VirtualPool, virtual_pool


def passing(band: Band = Band.GOLD, tenant: str = "t", arrived: float = 0.0) -> Passing:
    return Passing(band, tenant, 1, arrived)


def pool(slots: int, **limits: object) -> VirtualPool:
    found = virtual_pool(AdmissionLimits(**limits).rules(), 1000, 10**6)  # type: ignore[arg-type]
    found.slots = slots
    return found


def ends(one: Passing, mirror: Mirror, virtual: VirtualPool, now: float) -> None:
    one.ended_at = now
    mirror.left(one, now)
    virtual.ended(one, now)


def test_an_engine_is_mirrored_as_a_batch_with_a_queue_first_come_first_served():
    mirror, (a, b, c, d) = Mirror(2), [passing() for _ in range(4)]
    for one in (a, b, c, d):
        mirror.sent(one, 1.0)
    mirror.left(a, 5.0)
    mirror.left(d, 6.0)  # it gives up in the queue
    d.ended_at, d.done = 6.0, True

    assert [one.started_at for one in (a, b, c, d)] == [1.0, 1.0, 5.0, None]
    assert (c.queued_s, d.queued_s, d.held_s) == (4.0, 5.0, 0.0)


def test_who_of_a_lower_band_stood_in_front_is_named():
    mirror = Mirror(1)
    mirror.sent(passing(Band.BRONZE, "runs"), 0.0)
    for tenant in ("batch", "batch", "other"):
        mirror.sent(passing(Band.BRONZE, tenant), 0.0)
    mirror.sent(passing(Band.GOLD, "peer"), 0.0)
    late, equal = passing(Band.GOLD), passing(Band.BRONZE)
    mirror.sent(late, 1.0)
    mirror.sent(equal, 1.0)

    assert late.behind == ("bronze", "batch")
    assert equal.behind is None


def test_a_request_holds_its_virtual_slot_for_its_time_in_the_engine_less_its_time_in_the_queue():
    virtual, mirror = pool(1), Mirror(1)
    first, second, third = (passing(arrived=float(n)) for n in range(3))
    for one in (first, second, third):
        virtual.arrive(one, one.arrived)
        mirror.sent(one, one.arrived)
    ends(first, mirror, virtual, 10.0)  # held 10 s
    ends(second, mirror, virtual, 14.0)  # started at 10, held 4 s
    ends(third, mirror, virtual, 15.0)  # started at 14, held 1 s

    assert [one.granted_at for one in (first, second, third)] == [0.0, 10.0, 14.0]
    assert virtual.held == 0


def test_bronze_that_would_have_waited_longer_holds_its_slot_later():
    virtual, mirror = pool(10), Mirror(10)
    bronze = [passing(Band.BRONZE) for _ in range(10)]
    for one in bronze:
        virtual.arrive(one, 0.0)
        mirror.sent(one, 0.0)
    assert virtual.held == 9, "up to nine tenths"
    for one in bronze:
        ends(one, mirror, virtual, 5.0)

    assert bronze[9].granted_at == 5.0
    virtual.catch_up(9.9)
    assert virtual.held == 1, "in the shadow it runs five seconds more"
    virtual.catch_up(10.0)
    assert virtual.held == 0


def test_one_whose_end_is_not_known_yet_is_taken_to_be_as_long_as_usual():
    """In reality gold stands behind the bronze and ends late; in the shadow it went first, and holds nobody up."""
    virtual, mirror = pool(1), Mirror(1)
    first = passing(Band.BRONZE)
    virtual.arrive(first, 0.0)
    mirror.sent(first, 0.0)
    batch = [passing(Band.BRONZE, arrived=0.1) for _ in range(5)]
    golds = [passing(Band.GOLD, arrived=0.2), passing(Band.GOLD, arrived=0.2)]
    for one in (*batch, *golds):
        virtual.arrive(one, one.arrived)
        mirror.sent(one, one.arrived)
    for number, one in enumerate((first, *batch, *golds), 1):
        ends(one, mirror, virtual, 2.0 * number)

    assert [one.granted_at for one in golds] == [2.0, 4.0]
    assert batch[-1].granted_at == pytest.approx(14.0)
    virtual.catch_up(100.0)
    assert (virtual.held, virtual.line.waiting) == (0, 0)


def test_what_would_have_been_refused_is_counted_and_holds_nothing():
    virtual = virtual_pool(AdmissionLimits(ttl={"gold": 30.0}).rules(), 2, 10**6)
    virtual.slots = 1
    some = [passing() for _ in range(5)]
    for one in some:
        virtual.arrive(one, 0.0)
    virtual.catch_up(31.0)

    assert [one.refused for one in some] == ["", "504", "504", "503", "503"]
    assert {*virtual.decided} == {*some}
    assert virtual.line.waiting == 0


def test_a_client_that_leaves_waits_no_longer_in_the_shadow_either():
    virtual = pool(1)
    runs, leaves = passing(), passing()
    virtual.arrive(runs, 0.0)
    virtual.arrive(leaves, 0.0)
    leaves.ended_at = 1.0
    virtual.ended(leaves, 1.0, gone=True)

    assert virtual.line.waiting == 0
    assert leaves not in virtual.decided


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_every_virtual_slot_comes_home(seed: int):
    chance, now = random.Random(seed), 0.0
    virtual, mirror, under_way, seen = pool(4), Mirror(4), list[Passing](), list[Passing]()
    for _ in range(400):
        now += chance.expovariate(2)
        if under_way and chance.random() < 0.5:
            one = under_way.pop(chance.randrange(len(under_way)))
            one.ended_at = now
            mirror.left(one, now)
            virtual.ended(one, now, gone=chance.random() < 0.1)
        else:
            one = passing(chance.choice(list(Band)), chance.choice("ab"), now)
            virtual.arrive(one, now)
            mirror.sent(one, now)
            under_way.append(one)
            seen.append(one)
        assert virtual.held >= 0
        assert virtual.held <= 2 * virtual.slots, "platinum may go up to twice"
    for one in under_way:
        one.ended_at = now
        mirror.left(one, now)
        virtual.ended(one, now)
    virtual.catch_up(now + 10_000)

    assert (virtual.held, virtual.line.waiting) == (0, 0)
    assert len({*virtual.decided}) == len(virtual.decided)
