"""A store on PostgreSQL as one end of a copy."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from llmgw.store import meta
from llmgw.store.connecting import COPYING, Raw, Target, connect
from llmgw.store.dialect import InPostgres
from llmgw.store.ends import STAYS, End, Table, identity
from llmgw.store.errors import DataLocked, StoreUnavailable
from llmgw.store.place import Place
from llmgw.store.postgres_errors import translated
from llmgw.store.postgres_schema import MIGRATIONS, WRITING, migrate, tables

PAUSES_S = (0.05, 0.1, 0.2, 0.4)
_KINDS = {"text": "text", "bigint": "integer", "integer": "integer", "double precision": "real", "bytea": "blob"}
_COLUMNS = """
select attname, format_type(atttypid, atttypmod) from pg_attribute
where attrelid = to_regclass(%s) and attnum > 0 and not attisdropped order by attnum
"""
_KEY = """
select attname from pg_index, unnest(indkey) with ordinality as part (number, place), pg_attribute
where indrelid = to_regclass(%s) and indisprimary and attrelid = indrelid and attnum = part.number order by place
"""
_COUNTED = "select column_name from information_schema.columns where table_schema = current_schema()" \
    " and table_name = %s and is_identity = 'YES'"  # fmt: skip


@contextmanager
def reading_postgres(place: Place) -> Iterator[End]:
    """One committed state of it, beside whoever uses it."""
    assert place.url is not None
    target = Target.of(place.url, "tool")
    with translated(target.shown), connect(target, COPYING) as conn:
        conn.execute("begin isolation level repeatable read read only")
        if not _is_ours(conn):
            raise StoreUnavailable(f"{target.shown} holds no store")
        yield _end(conn, target)
        conn.execute("rollback")


@contextmanager
def holding_postgres(place: Place, fill: bool) -> Iterator[End]:
    """Nobody else writes to it meanwhile. ``fill``: made, where there is none. Raises DataLocked."""
    assert place.url is not None
    target = Target.of(place.url, "tool")
    with translated(target.shown), connect(target, COPYING) as conn:
        _refuse_users(conn, target)
        if fill:
            migrate(conn, target.shown, MIGRATIONS, may_change=False)
        if not _is_ours(conn):
            raise StoreUnavailable(f"{target.shown} holds no store")
        if not _is_locked(conn):
            raise DataLocked(f"{target.shown} is being written to; stop whoever does", None)
        yield _end(conn, target)


def _is_locked(conn: Raw) -> bool:
    """Against writers. A copy that was ended a moment ago may still have it, until the server notices."""
    for pause_s in (*PAUSES_S, 0.0):
        if conn.execute(f"select pg_try_advisory_lock({WRITING})").fetchone() == (True,):
            return True
        time.sleep(pause_s)
    return False


def _refuse_users(conn: Raw, target: Target) -> None:
    found = conn.execute(
        "select application_name from pg_stat_activity where datname = current_database()"
        " and application_name like 'llmgw server %' limit 1"
    ).fetchone()
    if found:
        who = str(found[0]).removeprefix("llmgw ")
        raise DataLocked(f"{target.shown} is in use by {who}; stop every control plane of it first", None)


def _is_ours(conn: Raw) -> bool:
    return conn.execute("select to_regclass('schema_version')").fetchone() != (None,)


def _end(conn: Raw, target: Target) -> End:
    @contextmanager
    def transaction() -> Iterator[None]:
        with conn.transaction():
            yield

    row = conn.execute("select version from schema_version").fetchone()
    cluster_id, (n, epoch) = identity(InPostgres(conn))
    return End(
        target.shown,
        InPostgres(conn),
        cluster_id,
        (max(n, _timeline(conn)), epoch),
        meta.value(InPostgres(conn), meta.COPYING),
        0 if row is None else int(row[0]),
        lambda: [_table(conn, name) for name in tables(conn) if name not in STAYS],
        transaction,
        lambda: _count_on(conn),
    )


def _timeline(conn: Raw) -> int:
    """The first part of terms here is at least that (two hexadecimal letters of a WAL file's name and six more)."""
    row = conn.execute("select substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)").fetchone()
    return 0 if row is None else int(row[0], 16)


def _table(conn: Raw, name: str) -> Table:
    about = conn.execute(_COLUMNS, (name,)).fetchall()
    key = tuple(column for (column,) in conn.execute(_KEY, (name,)))
    kinds = tuple(_KINDS[str(kind)] for _, kind in about)
    return Table(name, tuple(str(column) for column, _ in about), kinds, key)


def _count_on(conn: Raw) -> None:
    """Numbers that the database gives go on after those that came with the rows."""
    for name in tables(conn):
        for (column,) in conn.execute(_COUNTED, (name,)).fetchall():
            conn.execute(
                f"select setval(pg_get_serial_sequence('{name}', '{column}'), greatest(max({column}), 1)) from {name}"
            )
