"""The door to the store: one writer, one transaction a call, one reader beside it.

The writer connection is the only one that checkpoints (SQLite before 3.51.3 may corrupt a WAL that two
connections reset at one moment); the reader is opened read-only.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from attrs import define, field
from sqlite_utils import Database

from llmgw.store import face, meta
from llmgw.store import lock as locking
from llmgw.store.errors import StoreUnavailable, translated
from llmgw.store.place import Place, prepare
from llmgw.store.schema import MIGRATIONS, migrate
from llmgw.store.transaction import transaction
from llmgw.store.turn import RunBlocking, one_thread

T = TypeVar("T")
BUSY_S = 5.0  # how long SQLite waits for a foreign program that holds the file


@define(eq=False)
class SqliteStore:
    """Open: its locks are ours. ``start`` is this start's number, ``cluster_id`` never changes."""

    place: Place
    cluster_id: str
    start: int
    _locks: Sequence[locking.DataLock] = field(repr=False)
    _db: Database = field(repr=False)
    _reader: sqlite3.Connection = field(repr=False)
    _run_writer: RunBlocking = field(repr=False)
    _run_reader: RunBlocking = field(repr=False)

    async def write(self, change: Callable[[face.Database], T], *, abandon: bool = False) -> T:
        """On disk (fsync) when this returns. Never abandoned: the disk is ours, and the outcome always known."""

        def in_transaction() -> T:
            with translated(self.place.database), transaction(self._db):
                return change(self._db)

        return await self._run_writer(in_transaction)

    async def read(self, question: Callable[[face.Connection], T]) -> T:
        """Ask something of the last committed state. Raises StoreUnavailable."""

        def asked() -> T:
            with translated(self.place.database), one_state(self._reader):
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
        """Say in the lock files where our admin listener is, so that ctl on this machine finds it."""
        for lock in self._locks:
            lock.say(admin=admin_url)

    @property
    def database(self) -> Database:
        """For a tool that holds the store alone."""
        return self._db

    @property
    def raw(self) -> sqlite3.Connection:
        return self._db.conn

    def close(self) -> None:
        """The reader first: the last connection to close checkpoints, and that must be the writer."""
        try:
            self._reader.close()
            self._db.conn.close()
        finally:
            for lock in self._locks:
                lock.release()


def open_store(
    place: Place, run_blocking: Callable[[], RunBlocking] = one_thread, *, starts: bool = True, moves: bool = False
) -> SqliteStore:
    """Take the locks, migrate, count the start (only a control plane ``starts``). Blocks.

    Raises DataLocked, StoreTooNew, StoreUnavailable, StoreMoved.

    ``moves``: a copy from it or into it, for which it need not be in use.
    ``run_blocking`` makes the writer's thread and the reader's; tests pass ``lambda: inline``.
    """
    prepare(place.database.parent)
    with ExitStack() as undo, translated(place.database):
        locks = _locks(place, starts, undo)
        db = Database(_writer(place.database), execute_plugins=False)
        undo.callback(db.conn.close)
        migrate(db, place.database, MIGRATIONS)
        cluster_id, start = _begin(db, place, starts, moves)
        reader = read_only(place.database)
        undo.pop_all()
    return SqliteStore(place, cluster_id, start, locks, db, reader, run_blocking(), run_blocking())


def _locks(place: Place, starts: bool, undo: ExitStack) -> Sequence[locking.DataLock]:
    """The database's; and the data directory's, of who ``starts``, for what lies in it beside the store."""
    taken = []
    if starts:
        prepare(place.data_dir)
        taken.append(locking.take(place.lock))
        undo.callback(taken[-1].release)
    if not (starts and place.lock.resolve() == place.database_lock):
        usual = place.database_lock.name == place.lock.name
        taken.append(locking.take(place.database_lock, None if usual else place.database))
        undo.callback(taken[-1].release)
    return taken


@contextmanager
def one_state(conn: sqlite3.Connection) -> Iterator[None]:
    """What is read inside belongs together."""
    conn.execute("begin")
    try:
        yield
    finally:
        if conn.in_transaction:
            conn.execute("rollback")


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


def read_only(path: Path) -> sqlite3.Connection:
    """A connection that never checkpoints, so that it may belong to another process than the writer."""
    uri = f"{path.resolve().as_uri()}?mode=ro"
    return sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)


def _begin(db: Database, place: Place, starts: bool, moves: bool) -> tuple[str, int]:
    with transaction(db):
        if not moves:
            return meta.begin(db.conn, place.shown, starts, leads=True)
        meta.identify(db.conn)
        return meta.value(db.conn, "cluster_id"), 0
