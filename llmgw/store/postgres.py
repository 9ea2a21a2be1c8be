"""The door to a store on PostgreSQL: the same face as SQLite's, shared with other control planes.

One write at a time among all of them, by an advisory lock that each transaction takes first and its end gives back: a
change may read, decide and write, as on SQLite. A process that stands still inside one is put out after two seconds.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar, cast

import psycopg
import trio
from attrs import define, field
from psycopg import errors

from llmgw.store import face, meta
from llmgw.store import lock as locking
from llmgw.store.connecting import INCARNATION, MIGRATING, Raw, Target, connect, refuse_pooler
from llmgw.store.dialect import InPostgres, PostgresDatabase
from llmgw.store.errors import StoreAway, StoreUnavailable, StoreUncertain
from llmgw.store.lines import Line, Lines, Use
from llmgw.store.place import Place, prepare
from llmgw.store.postgres_errors import came_to_nothing, translated
from llmgw.store.postgres_schema import MIGRATIONS, WRITING, migrate
from llmgw.store.turn import RunBlocking, leaving_threads, one_thread

T = TypeVar("T")
ATTEMPTS = 3
GOES_ON = "control stops, requests go on, usage rows wait on disk"
FATE_ASKED, FATE_EVERY_S = 10, 0.2

_BEGIN_READING = "begin isolation level repeatable read read only"
_BEGIN_WRITING = (
    f"begin isolation level read committed; select pg_advisory_xact_lock({WRITING}); select pg_current_xact_id()::text"
)


class Unanswered(StoreUncertain):
    """The connection ended between a commit and its answer. ``result``: the change's, if it was made."""

    def __init__(self, error: psycopg.Error, transaction: tuple[str, str]) -> None:
        super().__init__(f"the store went away during a change, which may be done ({error})")
        self.transaction = transaction
        self.result: Any = None


@define(eq=False)
class PostgresStore:
    place: Place
    cluster_id: str
    start: int
    warning: str
    _lines: Lines = field(repr=False)
    _run_beside: RunBlocking = field(repr=False)
    _lock: locking.DataLock | None = field(repr=False)
    _serves: bool = field(default=False, init=False, repr=False)  # requests: it is a gateway's, which runs

    async def write(self, change: Callable[[face.Database], T], *, abandon: bool = False) -> T:
        """See ``Store.write``. Raises StoreUncertain when the answer to the commit was lost."""

        def changed(line: Line, use: Use) -> T:
            try:
                result = change(PostgresDatabase(InPostgres(line.conn)))
            except BaseException:
                _roll_back(line)
                raise
            try:
                _commit(line, use)
            except Unanswered as lost:
                lost.result = result
                raise
            return result

        try:
            return await self._again(self._lines.writing, changed, _begin_writing, abandon=abandon)
        except Unanswered as lost:
            fate = await self._fate(lost, abandon)
            if fate == "committed":
                return cast(T, lost.result)
            if fate == "aborted":
                raise StoreUnavailable(f"{self.place.shown} went away during a change; nothing was changed") from lost
            raise

    async def read(self, question: Callable[[face.Connection], T]) -> T:
        """See ``Store.read``."""

        def asked(line: Line, _: Use) -> T:
            try:
                return question(InPostgres(line.conn))
            finally:
                _roll_back(line)

        return await self._again(self._lines.reading, asked, _begin_reading, abandon=True)

    async def _fate(self, lost: Unanswered, abandon: bool) -> str:
        """What became of it, from the server itself, if that is back soon and still the same; else empty."""
        number, incarnation = lost.transaction

        def ask(conn: face.Connection) -> str:
            if conn.execute(f"select {INCARNATION}").fetchone() != (incarnation,):
                return ""  # it crashed, or another has taken over: the number may mean another change now
            return str(conn.execute("select pg_xact_status(cast(? as xid8))", (number,)).fetchone()[0])

        fate = ""
        with trio.CancelScope(shield=not abandon):
            for _ in range(FATE_ASKED):
                try:
                    fate = await self.read(ask)
                except StoreUnavailable:
                    return ""
                if fate != "in progress":
                    break
                await trio.sleep(FATE_EVERY_S)
        return fate

    async def _again(
        self,
        seats: trio.CapacityLimiter,
        work: Callable[[Line, Use], T],
        begin: Callable[[Line], None],
        *,
        abandon: bool,
    ) -> T:
        """Until it has its way, within bounds: what came to nothing is begun anew, on another connection if need be."""
        with self._in_words():
            for _ in range(ATTEMPTS - 1):
                try:
                    return await self._lines.use(seats, work, begin, abandon=abandon)
                except psycopg.Error as error:
                    if not came_to_nothing(error):
                        raise
            return await self._lines.use(seats, work, begin, abandon=abandon)

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            with translated(self.place.shown):
                yield
        except StoreAway as error:
            raise StoreAway(f"{error}; {GOES_ON}") if self._serves else error from None

    async def beside(self, work: Callable[[], T]) -> T:
        return await self._run_beside(work)

    def advertise(self, admin_url: str) -> None:
        self._serves = True
        if self._lock is not None:
            self._lock.say(admin=admin_url)

    def close(self) -> None:
        try:
            self._lines.close()
        finally:
            if self._lock is not None:
                self._lock.release()


def open_postgres(
    place: Place,
    run_blocking: Callable[[], RunBlocking] = leaving_threads,
    beside: Callable[[], RunBlocking] = one_thread,
    *,
    starts: bool = True,
) -> PostgresStore:
    """Migrate, and count the start. Blocks. Raises DataLocked, StoreTooNew, StoreUnavailable.

    The data directory is locked by who ``starts``, for what lies in it beside the store: the spool, the admin token.
    """
    assert place.url is not None
    target = Target.of(place.url, "server" if starts else "tool")
    with ExitStack() as undo, translated(target.shown):
        lock = None
        if starts:
            prepare(place.data_dir)
            lock = locking.take(place.lock)
            undo.callback(lock.release)
        conn = undo.enter_context(connect(target, MIGRATING))
        first = connect(target)
        undo.callback(first.close)
        refuse_pooler(conn, first, target)
        migrate(conn, target.shown, MIGRATIONS, may_change=starts)
        cluster_id, start = _begun(conn, target.shown, starts)
        warning = _warning(conn)
        conn.close()
        undo.pop_all()
    lines = Lines(target, run_blocking())
    lines.keep(Line(first))  # from now on others see that the store is in use
    return PostgresStore(place, cluster_id, start, warning, lines, beside(), lock)


def _begun(conn: Raw, where: str, starts: bool) -> tuple[str, int]:
    conn.execute(_BEGIN_WRITING)
    began = meta.begin(InPostgres(conn), where, starts, leads=False)
    conn.execute("commit")
    return began


def _warning(conn: Raw) -> str:
    row = conn.execute("select current_setting('fsync')").fetchone()
    return "" if row == ("on",) else "PostgreSQL runs with fsync off: what it acknowledged may be lost in a crash"


def _begin_reading(line: Line) -> None:
    line.conn.execute(_BEGIN_READING)


def _begin_writing(line: Line) -> None:
    """Waits for other writers twice as long as the lock timeout, which outlasts one that stands still."""
    try:
        begun = line.conn.execute(_BEGIN_WRITING)
    except errors.LockNotAvailable:
        line.conn.execute("rollback")
        begun = line.conn.execute(_BEGIN_WRITING)
    while begun.nextset():
        pass  # to the last statement's answer
    row = begun.fetchone()
    assert row is not None
    line.transaction = (row[0], line.incarnation)


def _commit(line: Line, use: Use) -> None:
    use.committing = True
    try:
        done = line.conn.execute("commit").statusmessage
    except psycopg.Error as error:
        if line.conn.closed or came_to_nothing(error):
            raise Unanswered(error, line.transaction) from error
        raise
    use.committing = False
    if done != "COMMIT":
        raise AssertionError("a statement of the change failed, and the change went on without it")


def _roll_back(line: Line) -> None:
    """A line whose end of a transaction is not sure is not used again; what ends a reading must not hide its error."""
    try:
        line.conn.execute("rollback")
    except psycopg.Error:
        line.conn.close()
