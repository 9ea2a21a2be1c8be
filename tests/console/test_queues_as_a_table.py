"""The table of who waits, and how full one pool is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from console.arranged import Sight, arranged
from console.model import Picture
from console.shown import Place, Tone
from console.views.queues import detail, listing, model_of, queue_detail
from tests.console.answers import BANDS, HEALTHY, POOL, QUEUE, ROOM, SEATS, TENANT, WAITING_QUEUE, picture
from tests.console.holes import pictures

BRONZE = {**QUEUE, "band": "bronze"}
BUSY = picture(queues=[WAITING_QUEUE, BRONZE])


def cells(some: Picture, subject: str = "") -> dict[str, list[str]]:
    return {row.key: [cell.text for cell in row.cells] for row in listing(some, subject).rows}


def told(some: Picture, model: str = "demo-model", width: int = 72) -> list[str]:
    return [str(line) for line in queue_detail(some, model, width)]


def test_a_pool_has_its_bands_below_it_and_these_their_tenants() -> None:
    shown = cells(BUSY)

    assert list(shown) == ["demo-model", "demo-model/gold", "demo-model/gold/demo", "demo-model/bronze"]
    assert shown["demo-model"] == ["demo-model", "", "", "2", "4 s", "", "12", "2 s", "3", "5%"]
    assert shown["demo-model/gold"] == ["demo-model", "gold", "", "2", "4 s", "60 s", "12", "2 s", "3", "< 100%"]
    assert shown["demo-model/gold/demo"][2:] == ["demo", "2", "4 s", "", "12", "2 s", "3", ""]


def test_sorted_by_pool_the_tree_stays_together() -> None:
    both = picture(queues=[WAITING_QUEUE, BRONZE, {**QUEUE, "model": "demo-model-2"}], pools={})
    shown = listing(both).rows

    assert list(arranged(shown[::-1], Sight(sort=0))) == list(shown)


def test_where_every_pool_is_shown_tenants_that_do_not_wait_are_left_out() -> None:
    idle = {**TENANT, "tenant": "idle", "waiting": 0}
    some = picture(queues=[{**WAITING_QUEUE, "tenants": [TENANT, idle]}])

    assert "demo-model/gold/idle" not in cells(some)
    assert "demo-model/gold/idle" in cells(some, "demo-model")


def test_a_subject_is_one_pool() -> None:
    some = picture(pools={"demo-model": POOL, "other": {**POOL, "model": "other"}}, queues=[])

    assert list(cells(some)) == ["demo-model", "other"]
    assert list(cells(some, "other")) == ["other"]


def test_a_full_pool_and_a_queue_that_is_half_over_are_faults() -> None:
    late = picture(queues=[{**WAITING_QUEUE, "oldest_s": 45.0}, BRONZE], pools={"demo-model": POOL})
    full = picture(queues=[], pools={"demo-model": {**POOL, "saturation": 1.0}})

    assert [row.faulty for row in listing(late).rows] == [True, True, False, False]
    assert [row.faulty for row in listing(full).rows] == [True]


def test_a_band_that_would_wait_says_so() -> None:
    closed = {**POOL, "bands": [{**BANDS[1], "at_once": False}]}

    assert cells(picture(pools={"demo-model": closed}, queues=[QUEUE]))["demo-model/gold"][-1] == "not < 100%"


def test_the_ceilings_are_marks_in_the_bar_of_saturation() -> None:
    half = picture(pools={"demo-model": {**POOL, "saturation": 1.0}})
    bar = next(line for line in told(half, width=12 + 6 + 40) if line.startswith("saturation"))[12:52]

    # 40 cells are 2.0: 0.9, 0.95, 1.0 and 2.0 end at cells 18, 19, 20 and 40; half of it is filled.
    assert [at + 1 for at, char in enumerate(bar) if char in "╂┃"] == [18, 19, 20, 40]
    assert bar[:20].replace("╂", "█") == "█" * 20


def test_the_part_that_decides_is_set_off() -> None:
    some = picture(pools={"demo-model": {**POOL, "endpoints": [{**ROOM, "decides": "kv"}]}})
    strong = [
        cell.text for line in queue_detail(some, "demo-model", 72) for cell in line.cells if cell.tone is Tone.STRONG
    ]

    assert strong == ["demo-model", "kv 0.00"]


def test_what_counts_as_full_beyond_the_parts_is_named() -> None:
    some = picture(pools={"demo-model": {**POOL, "endpoints": [{**ROOM, "decides": "max_in_flight"}]}})

    assert any("decides: max_in_flight" in line for line in told(some))


def test_an_endpoint_leads_to_its_requests_and_an_unusable_one_says_why() -> None:
    sick = {**ROOM, "usable": False, "why": "its breaker is open"}
    lines = queue_detail(picture(pools={"demo-model": {**POOL, "endpoints": [sick]}}), "demo-model", 72)
    (why,) = [line for line in lines if "its breaker is open" in str(line)]

    assert why.leads_to == Place("requests", "demo-model-3.g4")


def test_seats_in_use_are_told_by_band() -> None:
    some = picture(seats=[{**SEATS[1], "waiting": 1000, "bytes": 3 * 2**20}])

    assert "gold        1,000 of 1,000 seats, 3.0 of 64 MiB" in told(some)


@pytest.mark.parametrize(
    ("subject", "key", "model"),
    [
        ("", "m", "m"),
        ("", "m/gold", "m"),
        ("", "m/gold/acme", "m"),
        ("", "org/m", "org/m"),
        ("", "org/m/gold", "org/m"),
        ("org/m", "org/m/gold/acme/eu", "org/m"),
    ],
)
def test_a_row_knows_its_pool(subject: str, key: str, model: str) -> None:
    assert model_of(subject, key) == model


def test_a_pool_that_is_not_known_is_said_to_be_so() -> None:
    assert told(HEALTHY, "elsewhere") == ["no pool of elsewhere is known"]


@given(pictures, st.integers(1, 160))
def test_no_line_of_a_pool_is_too_wide_and_nothing_that_is_missing_hinders_it(some: Picture, width: int) -> None:
    for row in listing(some).rows:
        assert len(row.cells) == 10
        assert detail(some, "", row.key, {"queue": {}})
    for model in some.pools:
        assert all(cell_len(line) <= width for line in told(some, model, width))


def test_grants_that_are_on_their_way_are_told() -> None:
    pool = {**POOL, "endpoints": [{**ROOM, "granted": 3}]}
    told = [str(one) for one in queue_detail(picture(pools={"demo-model": pool}), "demo-model", 100)]
    assert any("3 granted and on their way" in one for one in told)
