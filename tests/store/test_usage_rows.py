"""Usage rows: batched, kept while the store is away, dropped only when counted."""

import pytest
import trio

from llmgw.store.face import Store
from llmgw.store.limits import StoreLimits
from llmgw.store.usage import Row, UsageWriter
from tests.stores import SQLITE, Kind

LIMITS = StoreLimits(usage_queue_max=20, usage_batch_max=5, usage_flush=0.25)


@pytest.fixture
def store(any_store: Store) -> Store:
    return any_store


def row(id: str, at: float = 1.0) -> Row:
    return (id, at, "acme", "key_1", "gold", "m", "e", "chat", "ok", 200, 3, 4, 0, False, 0.5, None, 1)


def ids(kind: Kind) -> list[object]:
    return [id for (id,) in kind.rows("select request_id from usage order by request_id")]


async def test_rows_are_on_disk_a_flush_later(store, kind, autojump_clock, nursery):
    usage = UsageWriter(store, LIMITS)
    nursery.start_soon(usage.run)
    await trio.testing.wait_all_tasks_blocked()

    usage.record(row("a"))
    usage.record(row("b"))
    await trio.sleep(0.2)
    assert ids(kind) == []
    await trio.sleep(0.1)

    assert ids(kind) == ["a", "b"]
    assert (usage.written, usage.waiting, usage.dropped) == (2, 0, 0)


async def test_a_full_batch_does_not_wait_for_the_flush(store, kind, autojump_clock, nursery):
    usage = UsageWriter(store, LIMITS)
    nursery.start_soon(usage.run)
    await trio.testing.wait_all_tasks_blocked()

    for n in range(5):
        usage.record(row(str(n)))
    await trio.testing.wait_all_tasks_blocked()

    assert len(ids(kind)) == 5


async def test_the_same_request_twice_is_one_row(store, kind, autojump_clock, nursery):
    usage = UsageWriter(store, LIMITS)
    nursery.start_soon(usage.run)

    usage.record(row("a"))
    usage.record(row("a"))
    await trio.sleep(1)

    assert ids(kind) == ["a"]


async def test_what_waits_at_the_end_is_written(store, kind):
    usage = UsageWriter(store, LIMITS)
    for n in range(12):
        usage.record(row(str(n)))

    with trio.move_on_after(0):
        await usage.run()

    assert len(ids(kind)) == 12


async def test_beyond_its_bound_the_queue_drops_and_counts(store, kind):
    usage = UsageWriter(store, LIMITS)

    for n in range(25):
        usage.record(row(str(n)))

    assert (usage.waiting, usage.dropped) == (20, 5)


async def test_while_the_store_is_away_rows_are_kept_and_written_later(store, kind, autojump_clock, nursery):
    usage = UsageWriter(store, LIMITS)
    nursery.start_soon(usage.run)
    kind.goes_away(store)
    for n in range(8):
        usage.record(row(str(n)))
    await trio.sleep(3)
    assert usage.waiting == 8
    assert ("can't be written" if kind.name == SQLITE else "is away") in usage.failing

    kind.comes_back(store)
    await trio.sleep(10)

    assert len(ids(kind)) == 8
    assert usage.failing == ""


async def test_rows_that_fill_half_the_queue_wait_on_disk_instead(store, kind, autojump_clock, nursery):
    usage = UsageWriter(store, LIMITS)
    nursery.start_soon(usage.run)
    kind.goes_away(store)
    for n in range(20):
        usage.record(row(f"{n:02}"))
    await trio.sleep(30)
    assert usage.waiting <= 10
    for n in range(20, 30):
        usage.record(row(f"{n:02}"))
    await trio.sleep(30)

    kind.comes_back(store)
    await trio.sleep(30)

    assert ids(kind) == [f"{n:02}" for n in range(30)]
    assert usage.dropped == 0
    assert not (store.place.data_dir / "usage.spool").exists()


async def test_at_the_end_without_a_store_rows_go_to_disk_and_the_next_start_takes_them_up(store, kind, autojump_clock):
    kind.goes_away(store)
    usage = UsageWriter(store, LIMITS)
    for n in range(12):
        usage.record(row(f"{n:02}"))
    with trio.move_on_after(0):
        await usage.run()
    assert usage.written == usage.dropped == 0
    spool = store.place.data_dir / "usage.spool"
    spool.write_bytes(spool.read_bytes() + b'["torn", 1.0, "ac')

    kind.comes_back(store)
    later = UsageWriter(store, LIMITS)
    with trio.move_on_after(0.5):
        await later.run()

    assert ids(kind) == [f"{n:02}" for n in range(12)]
    assert later.dropped == 1  # the torn line


async def test_a_spool_has_a_size_and_what_does_not_fit_is_counted(store, kind):
    kind.goes_away(store)
    usage = UsageWriter(store, StoreLimits(usage_queue_max=20, usage_batch_max=5, spool_max=600))
    for n in range(20):
        usage.record(row(str(n)))

    with trio.move_on_after(0):
        await usage.run()

    assert usage.dropped == 15
    assert (store.place.data_dir / "usage.spool").stat().st_size <= 600
