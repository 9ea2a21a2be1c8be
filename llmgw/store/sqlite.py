"""The door to the store: one writer, one transaction a call, one reader beside it.

The writer connection is the only one that checkpoints (SQLite before 3.51.3 may corrupt a WAL that two
connections reset at one moment); the reader is opened read-only.
"""

import secrets
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import trio
from attrs import define, field
from sqlite_utils import Database

from llmgw.store import lock as locking
from llmgw.store.errors import StoreUnavailable, translated
from llmgw.store.place import Place, prepare
from llmgw.store.schema import MIGRATIONS, migrate
from llmgw.store.transaction import transaction
from llmgw.store.turn import RunBlocking, one_thread

T = TypeVar("T")
BUSY_S = 5.0  # how long SQLite waits for a foreign program that holds the file
CLOSE_WITHIN_S = 10.0


@define(eq=False)
class SqliteStore:
    """Open: the data lock is ours. ``epoch`` is this start's number, ``cluster_id`` never changes."""

    place: Place
    cluster_id: str
    epoch: int
    _lock: locking.DataLock = field(repr=False)
    _db: Database = field(repr=False)
    _reader: sqlite3.Connection = field(repr=False)
    _run_writer: RunBlocking = field(repr=False)
    _run_reader: RunBlocking = field(repr=False)

    async def write(self, change: Callable[[Database], T]) -> T:
        """Run a change in one transaction; on disk (fsync) when this returns. Raises StoreUnavailable.

        A change that has begun is finished even when the caller is cancelled, so its outcome is always known.
        """

        def in_transaction() -> T:
            with translated(self.place.database), transaction(self._db):
                return change(self._db)

        return await self._run_writer(in_transaction)

    async def read(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """Ask something of the last committed state. Raises StoreUnavailable."""

        def asked() -> T:
            with translated(self.place.database):
                return question(self._reader)

        return await self._run_reader(asked)

    async def beside(self, work: Callable[[], T]) -> T:
        """Other blocking work on the reader's thread: files that lie beside the database."""
        return await self._run_reader(work)

    @property
    def warning(self) -> str:
        """What to say at the start about the SQLite this Python has; empty for a good one."""
        return version_warning(sqlite3.sqlite_version_info)

    def advertise(self, admin_url: str) -> None:
        """Say in the lock file where our admin listener is, so that ctl on this machine finds it."""
        self._lock.say(admin=admin_url)

    def close(self) -> None:
        """The reader first: the last connection to close checkpoints, and that must be the writer."""
        try:
            self._reader.close()
            self._db.conn.close()
        finally:
            self._lock.release()


def open_store(place: Place, run_blocking: Callable[[], RunBlocking] = one_thread) -> SqliteStore:
    """Take the lock, migrate, count the start. Blocks. Raises DataLocked, StoreTooNew, StoreUnavailable.

    ``run_blocking`` makes the writer's thread and the reader's; tests pass ``lambda: inline``.
    """
    prepare(place.data_dir)
    if place.database.parent != place.data_dir:
        prepare(place.database.parent)
    with ExitStack() as undo, translated(place.database):
        lock = locking.take(place.lock)
        undo.callback(lock.release)
        db = Database(_writer(place.database), execute_plugins=False)
        undo.callback(db.conn.close)
        migrate(db, place.database, MIGRATIONS)
        cluster_id, epoch = _begin(db)
        reader = _reader(place.database)
        undo.pop_all()
    return SqliteStore(place, cluster_id, epoch, lock, db, reader, run_blocking(), run_blocking())


@asynccontextmanager
async def opened(place: Place) -> AsyncIterator[SqliteStore]:
    """The store for as long as the block runs, opened and closed off the loop."""
    store = await trio.to_thread.run_sync(open_store, place)
    try:
        yield store
    finally:
        with trio.move_on_after(CLOSE_WITHIN_S, shield=True):
            await trio.to_thread.run_sync(store.close, abandon_on_cancel=True)


def version_warning(version: tuple[int, ...]) -> str:
    if version >= (3, 51, 3):
        return ""
    found = ".".join(map(str, version))
    return (
        f"SQLite {found} can damage a WAL that two programs write: let none but llmgw open the store (3.51.3 is good)"
    )


def _writer(path: Path) -> sqlite3.Connection:
    path.touch(mode=0o600)  # SQLite gives its -wal and -shm the mode of the file
    # Several threads use it, one at a time: the turn sees to that.
    conn = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    mode = conn.execute("pragma journal_mode = wal").fetchone()[0]
    if mode != "wal":
        conn.close()
        raise StoreUnavailable(f"{path}: this file system allows no write-ahead log; choose a local disk")
    conn.execute("pragma synchronous = full")
    conn.execute("pragma foreign_keys = on")
    return conn


def _reader(path: Path) -> sqlite3.Connection:
    uri = f"{path.resolve().as_uri()}?mode=ro"
    return sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)


def _begin(db: Database) -> tuple[str, int]:
    with transaction(db):
        db.conn.execute("update leader_epoch set epoch = epoch + 1 where id = 1")
        fresh = {"cluster_id": secrets.token_hex(16), "made_at": str(time.time())}
        db.conn.executemany("insert or ignore into meta (key, value) values (?, ?)", fresh.items())
        cluster_id = db.conn.execute("select value from meta where key = 'cluster_id'").fetchone()[0]
        epoch = db.conn.execute("select epoch from leader_epoch where id = 1").fetchone()[0]
    return str(cluster_id), int(epoch)
