"""Hours of load on modelled engines, through the policy of admission itself: does what it promises come true?"""

from collections import Counter
from random import Random
from typing import Any

import pytest
from attrs import evolve

from llmgw.core.bands import AdmissionLimits
from llmgw.core.identity import Band
from llmgw.core.saturation import QUEUE_LIMIT, may_run
from sim.admission_trial import OFF, ON, Result, Trial, compared, run, with_ceiling
from sim.admitting import Gateway, Station, Told
from sim.figures import figures, grants
from sim.loads import Ask, Closed, Poisson
from sim.queueing import Agenda, Fate, Work

LEARNS = Told()  # 32 slots; the preset says 256
QUEUE_ONLY = Told(capacity=100_000)  # the load term is nothing
BRONZE, PLATINUM = Ask(Band.BRONZE), Ask(Band.PLATINUM, decode_s=1.0)


def gateway(*engines: Told, seed: int = 0, limits: AdmissionLimits = ON, **more: Any) -> Gateway:
    return Gateway(Agenda(), Random(seed), engines, limits, **more)


def closed(here: Gateway, ask: Ask, count: int, at: float = 0.0) -> Closed:
    return Closed(here, ask, Random(f"{ask.band} {count}"), count=count).start(at)


def occupied(station: Station, count: int, seconds: float = 1e6) -> None:
    """Somebody else's requests."""
    for _ in range(count):
        station.engine.submit(Work(Band.GOLD, "others", 0.2, seconds, 0.0))


def capacities(station: Station, since: float = 0.0) -> list[int | None]:
    """The values it was believed to have, one after another."""
    seen = [one.capacity for one in station.seen if one.at >= since]
    return [one for n, one in enumerate(seen) if n == 0 or seen[n - 1] != one]


# -- interactive beside batch -------------------------------------------------------------------------


def stays_fast(trial: Trial, seed: int) -> None:
    found = compared(trial, seed)

    assert found.off.unqueued_s >= trial.lasts_s, "some engine's queue ran empty with admission off: no load"
    assert min(one.platinum.fates[Fate.DONE] for one in (found.idle, found.off, found.on)) >= 300
    assert found.ttft(found.off) > 10
    assert found.ttft(found.on) <= 1.1
    assert found.total(found.on) <= 1.1
    assert found.bronze >= 0.85


def test_interactive_requests_stay_fast_beside_five_hundred_batch_jobs():
    stays_fast(Trial(lasts_s=120.0, platinum_per_s=4.0), seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_interactive_requests_stay_fast_whatever_the_seed(seed: int):
    stays_fast(Trial(), seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_they_stay_fast_where_nobody_said_how_much_an_engine_can_run(seed: int):
    stays_fast(Trial(engines=(LEARNS,) * 3, warm_s=120.0), seed)


def test_a_load_that_fits_is_no_load():
    assert run(Trial(bronze=60, limits=OFF, lasts_s=60.0), 0).unqueued_s < 60.0


# -- ceilings -----------------------------------------------------------------------------------------


def felt(seed: int = 0, **how: Any) -> float:
    """p99 of platinum's first token against idle, beside jobs of 20 s."""
    trial = Trial(asks=(evolve(BRONZE, decode_s=20.0), PLATINUM), warm_s=100.0, lasts_s=200.0, **how)
    idle: Result = run(evolve(trial, bronze=0), seed)
    return run(trial, seed).platinum.ttft.p99 / idle.platinum.ttft.p99


def test_the_engines_queue_alone_tells_too_late_that_it_is_full():
    assert felt(engines=(QUEUE_ONLY,) * 3) > 5


def test_batch_jobs_that_may_fill_the_pool_leave_no_slot_for_who_comes_next():
    assert felt(limits=with_ceiling(1.0)) > 5


@pytest.mark.parametrize("ceiling", [0.95, 0.9, 0.8])
def test_a_ceiling_below_full_keeps_slots_free_for_single_arrivals(ceiling: float):
    assert felt(limits=with_ceiling(ceiling)) <= 1.1


def test_for_arrivals_in_bursts_of_ten_the_ceiling_must_be_lower():
    assert felt(limits=with_ceiling(0.9), burst=10) > 2
    assert felt(limits=with_ceiling(0.8), burst=10) <= 1.5


# -- floors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("floor", "least", "most"), [(0.05, 0.04, 0.06), (0.2, 0.19, 0.21), (0.0, 0.0, 0.0)])
def test_a_floor_share_is_kept_while_platinum_saturates_the_pool(floor: float, least: float, most: float):
    here = gateway(*[Told(capacity=32)] * 3, limits=AdmissionLimits(floors={"bronze": floor}))
    closed(here, PLATINUM, 400)
    closed(here, BRONZE, 100)
    here.agenda.run(60.0)
    found = grants(here, since=5.0)

    assert here.line.bands[Band.PLATINUM].waiting > 100
    assert least <= found[Band.BRONZE] / found.total() <= most


# -- where it goes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("band", [Band.BRONZE, Band.GOLD])
def test_traffic_flows_to_the_idle_one_of_four_and_only_there(band: Band):
    here = gateway(*[Told(capacity=32)] * 4)
    for station in here.stations[:3]:
        occupied(station, 60)
    here.agenda.run(1.0)
    closed(here, Ask(band), 100, at=1.0)
    here.agenda.run(120.0)

    assert [one.sent for one in here.stations[:3]] == [0, 0, 0]
    assert figures(here, band).per_s >= 0.5 * 32 / 2.25, "three full ones are three quarters of bronze's 0.9"


def test_a_restart_resets_what_was_learned():
    here = gateway(LEARNS)
    closed(here, evolve(BRONZE, band=Band.GOLD), 300)
    here.agenda.run(60.0)
    assert here.stations[0].live.capacity == 32

    here.stations[0].engine.restart(slots=96)
    here.agenda.run(60.6)
    assert here.stations[0].live.capacity == 256
    here.agenda.run(120.0)
    assert here.stations[0].live.capacity == 96


@pytest.mark.parametrize("slots", [32, 256])
def test_from_no_knowledge_the_batch_fills_within_ten_samples(slots: int):
    here = gateway(Told(slots))
    closed(here, BRONZE, 600, at=2.0)
    here.agenda.run(2.0 + 10 * here.scrape_s)

    assert here.stations[0].seen[-1].running >= 0.89 * slots


def test_an_engine_that_memory_holds_back_does_not_teach_how_few_it_ran():
    here = gateway(Told(256, kv_tokens=20_000))
    closed(here, evolve(BRONZE, kv=(1000, 1000)), 300)
    here.agenda.run(600.0)
    (station,) = here.stations

    assert station.seen[-1].running == 20
    assert capacities(station) == [256]
    held = [one.waiting for one in station.seen if one.at > 60]
    assert sum(held) / len(held) <= QUEUE_LIMIT


@pytest.mark.parametrize("slots", [1, 4, 32, 200])
@pytest.mark.parametrize("told", [True, False])
def test_requests_much_shorter_than_a_scrape_reach_what_the_engine_can_do(slots: int, told: bool):
    short = Ask(Band.GOLD, first_s=(0.05, 0.05), decode_s=0.0)
    here = gateway(Told(slots, capacity=slots if told else None))
    closed(here, short, 3 * slots + 20)
    here.agenda.run(20.0)

    assert figures(here, Band.GOLD, since=10.0).per_s >= 0.95 * slots / 0.05


@pytest.mark.parametrize("running", [0, 4, 12, 40])
@pytest.mark.parametrize("band", [Band.BRONZE, Band.GOLD])
def test_before_the_next_sample_no_more_is_sent_than_may_run_and_the_threshold(running: int, band: Band):
    """G57"""
    here = gateway(Told(256))
    (station,) = here.stations
    occupied(station, running)
    here.agenda.run(1.0)
    sample = station.live.sample
    assert sample is not None
    here.agenda.run(sample.at + 0.05)
    closed(here, Ask(band, decode_s=60.0, fixed=True), 200, at=here.agenda.now)
    here.agenda.run(sample.at + here.scrape_s - 0.001)
    there, may = running + station.sent, may_run(sample, 256)

    assert may <= there <= may + QUEUE_LIMIT


# -- what is learned ------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [8, 32, 100])
@pytest.mark.parametrize("band", [Band.BRONZE, Band.GOLD])
def test_what_an_engine_can_run_is_found_within_a_minute(slots: int, band: Band):
    here = gateway(*[Told(slots)] * 3)
    closed(here, Ask(band), 8 * slots)
    here.agenda.run(60.0)

    assert [one.live.capacity for one in here.stations] == [slots] * 3


def learned_for(hours: float, band: Band, ceiling: float, decode_s: float) -> Gateway:
    here = gateway(*[LEARNS] * 3, limits=with_ceiling(ceiling))
    closed(here, Ask(band, decode_s=decode_s), 300)
    Poisson(here, PLATINUM, Random(1), rate=1.0).start()
    here.agenda.run(hours * 3600.0)
    return here


@pytest.mark.slow
@pytest.mark.parametrize(
    ("band", "ceiling", "decode_s"),
    [(Band.BRONZE, 0.9, 5.0), (Band.BRONZE, 0.95, 5.0), (Band.BRONZE, 0.95, 30.0), (Band.GOLD, 0.9, 10.0)],
)
def test_over_hours_it_neither_drifts_nor_oscillates(band: Band, ceiling: float, decode_s: float):
    here = learned_for(2, band, ceiling, decode_s)
    for station in here.stations:
        later = [one for one in station.seen if one.at >= 300]
        right = Counter(one.capacity for one in later)[32] / len(later)

        assert min(one.capacity or 0 for one in later) == 32
        assert right >= 0.99
        assert len(capacities(station, since=300)) <= 20, "each wrong try makes the next one rarer"


# -- nothing is lost -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_whatever_clients_and_engines_do_every_request_ends_once_and_every_place_comes_home(seed: int):
    limits = AdmissionLimits(queue_seats_max=60, ttl={"bronze": 3.0, "silver": 2.0, "gold": 1.0, "platinum": 1.0})
    here = gateway(*[Told(8)] * 3, seed=seed, limits=limits)
    loads = [
        Poisson(here, Ask(band, f"{band}{n}", patience_s=5.0), Random(f"{band} {n} {seed}"), rate=2.0, size=10 * n + 1)
        for band in Band
        for n in range(2)
    ]
    for load in loads:
        load.until = 30.0
        load.start()
    for n, station in enumerate(here.stations):
        here.agenda.after(7.0 + 5 * n, station.engine.restart)
    here.agenda.run(200.0)
    fates = Counter(work.fate for work in here.done)

    assert fates.total() == len({id(work) for work in here.done}) == sum(load.sent for load in loads)
    assert fates.keys() == {Fate.DONE, Fate.FULL, Fate.TOO_LATE, Fate.LEFT, Fate.LOST}
    assert here.line.waiting == sum(seats.held + seats.bytes for seats in here.queues.seats.values()) == 0
    assert [(one.live.in_flight, one.live.granted) for one in here.stations] == [(0, 0)] * 3
    assert not any(one.engine.running or one.engine.waiting for one in here.stations)


def test_the_same_seed_gives_the_same_hour():
    first, second = (run(Trial(lasts_s=20.0), 5) for _ in range(2))

    assert (first.platinum, first.bronze) == (second.platinum, second.bronze)
