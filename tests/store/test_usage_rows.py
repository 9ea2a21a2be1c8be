"""Usage rows: batched, kept while the store is away, dropped only when counted."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from llmgw.store.limits import StoreLimits
from llmgw.store.place import Place
from llmgw.store.sqlite import SqliteStore, open_store
from llmgw.store.turn import inline
from llmgw.store.usage import Row, UsageWriter

LIMITS = StoreLimits(usage_queue_max=20, usage_batch_max=5, usage_flush=0.25)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = open_store(Place(tmp_path, tmp_path / "llmgw.db"), lambda: inline)
    yield store
    store.close()


def row(id: str, at: float = 1.0) -> Row:
    return (id, at, "acme", "key_1", "gold", "m", "e", "chat", "ok", 200, 3, 4, 0, False, 0.5, None, 1)


def ids(store: SqliteStore) -> list[str]:
    with sqlite3.connect(store.place.database) as conn:
        found = [id for (id,) in conn.execute("select request_id from usage order by request_id")]
    conn.close()
    return found


def forbid_writing(store: SqliteStore) -> None:
    store._db.conn.execute("pragma query_only = on")


def allow_writing(store: SqliteStore) -> None:
    store._db.conn.execute("pragma query_only = off")


async def test_rows_are_on_disk_a_flush_later(store, autojump_clock, nursery):
    usage = UsageWriter(store, LIMITS)
    nursery.start_soon(usage.run)
    await trio.testing.wait_all_tasks_blocked()

    usage.record(row("a"))
    usage.record(row("b"))
    await trio.sleep(0.2)
    assert ids(store) == []
    await trio.sleep(0.1)

    assert ids(store) == ["a", "b"]
    assert (usage.written, usage.waiting, usage.dropped) == (2, 0, 0)


async def test_a_full_batch_does_not_wait_for_the_flush(store, autojump_clock, nursery):
    usage = UsageWriter(store, LIMITS)
    nursery.start_soon(usage.run)
    await trio.testing.wait_all_tasks_blocked()

    for n in range(5):
        usage.record(row(str(n)))
    await trio.testing.wait_all_tasks_blocked()

    assert len(ids(store)) == 5


async def test_the_same_request_twice_is_one_row(store, autojump_clock, nursery):
    usage = UsageWriter(store, LIMITS)
    nursery.start_soon(usage.run)

    usage.record(row("a"))
    usage.record(row("a"))
    await trio.sleep(1)

    assert ids(store) == ["a"]


async def test_what_waits_at_the_end_is_written(store):
    usage = UsageWriter(store, LIMITS)
    for n in range(12):
        usage.record(row(str(n)))

    with trio.move_on_after(0):
        await usage.run()

    assert len(ids(store)) == 12


async def test_beyond_its_bound_the_queue_drops_and_counts(store):
    usage = UsageWriter(store, LIMITS)

    for n in range(25):
        usage.record(row(str(n)))

    assert (usage.waiting, usage.dropped) == (20, 5)


async def test_while_the_store_is_away_rows_are_kept_and_written_later(store, autojump_clock, nursery):
    usage = UsageWriter(store, LIMITS)
    nursery.start_soon(usage.run)
    forbid_writing(store)
    for n in range(8):
        usage.record(row(str(n)))
    await trio.sleep(3)
    assert usage.waiting == 8
    assert "can't be written" in usage.failing

    allow_writing(store)
    await trio.sleep(10)

    assert len(ids(store)) == 8
    assert usage.failing == ""


async def test_rows_that_fill_half_the_queue_wait_on_disk_instead(store, autojump_clock, nursery):
    usage = UsageWriter(store, LIMITS)
    nursery.start_soon(usage.run)
    forbid_writing(store)
    for n in range(20):
        usage.record(row(f"{n:02}"))
    await trio.sleep(30)
    assert usage.waiting <= 10
    for n in range(20, 30):
        usage.record(row(f"{n:02}"))
    await trio.sleep(30)

    allow_writing(store)
    await trio.sleep(30)

    assert ids(store) == [f"{n:02}" for n in range(30)]
    assert usage.dropped == 0
    assert not (store.place.data_dir / "usage.spool").exists()


async def test_at_the_end_without_a_store_rows_go_to_disk_and_the_next_start_takes_them_up(store, autojump_clock):
    forbid_writing(store)
    usage = UsageWriter(store, LIMITS)
    for n in range(12):
        usage.record(row(f"{n:02}"))
    with trio.move_on_after(0):
        await usage.run()
    assert ids(store) == []
    spool = store.place.data_dir / "usage.spool"
    spool.write_bytes(spool.read_bytes() + b'["torn", 1.0, "ac')

    allow_writing(store)
    later = UsageWriter(store, LIMITS)
    with trio.move_on_after(0.5):
        await later.run()

    assert ids(store) == [f"{n:02}" for n in range(12)]
    assert later.dropped == 1  # the torn line


async def test_a_spool_has_a_size_and_what_does_not_fit_is_counted(store):
    forbid_writing(store)
    usage = UsageWriter(store, StoreLimits(usage_queue_max=20, usage_batch_max=5, spool_max=600))
    for n in range(20):
        usage.record(row(str(n)))

    with trio.move_on_after(0):
        await usage.run()

    assert usage.dropped == 15
    assert (store.place.data_dir / "usage.spool").stat().st_size <= 600
