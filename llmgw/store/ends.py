"""The two ends of a copy: a whole store, table by table, whatever lies beneath.

Nothing here knows a table's name: what is in the store is copied, so that a new table can't be forgotten.
"""

import hashlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import msgspec
from attrs import frozen

from llmgw.store import meta
from llmgw.store.errors import StoreUnavailable
from llmgw.store.face import Connection, storable

TOGETHER = 1000  # rows read at once, and written in one transaction
# The last to be copied: they make it a store in use.
LAST = ("leader_epoch", "meta")
# What is of one place and no other: the number of its schema, who leads there now, who else could.
STAYS = frozenset({"schema_version", "leader_lease", "control_planes"})
KINDS: dict[str, Callable[[Any], Any]] = {"text": str, "integer": int, "real": float, "blob": bytes}

Row = tuple[Any, ...]


@frozen
class Table:
    """``kinds``, one a column, are keys of KINDS; ``key`` is the primary key's columns."""

    name: str
    columns: tuple[str, ...]
    kinds: tuple[str, ...]
    key: tuple[str, ...]

    def plain(self, row: Sequence[Any]) -> Row:
        """The same values from either dialect."""
        return tuple(
            None if value is None else storable(value) if kind == "text" else KINDS[kind](value)
            for value, kind in zip(row, self.kinds, strict=True)
        )

    def key_of(self, row: Row) -> Row:
        return tuple(row[self.columns.index(column)] for column in self.key)


@frozen
class Sum:
    """What a table comes to."""

    rows: int
    sha256: str


class Source(Protocol):
    """Where rows come from: a store, or a file."""

    @property
    def shown(self) -> str: ...

    @property
    def cluster_id(self) -> str: ...

    @property
    def term(self) -> tuple[int, int]:
        """n and epoch; none later was ever used there."""
        ...

    @property
    def half(self) -> str:
        """Of which copy it has only a part so far; empty: it is whole."""
        ...

    def tables(self) -> list[Table]: ...

    def rows(self, table: Table, after: Row | None = None) -> Iterator[list[Row]]:
        """In the order of the key, beyond ``after``."""
        ...


def refuse_half(source: Source) -> None:
    """Raises StoreUnavailable."""
    if source.half:
        raise StoreUnavailable(f"{source.shown} is half a store: the copy {source.half} was interrupted; finish that")


@frozen
class End:
    """A store that is open. ``transaction`` makes a change whole; ``finish`` readies what a dialect counts itself."""

    shown: str
    conn: Connection
    cluster_id: str
    term: tuple[int, int]
    half: str
    schema: int
    read_tables: Callable[[], list[Table]]
    transaction: Callable[[], AbstractContextManager[None]]
    finish: Callable[[], None]

    def tables(self) -> list[Table]:
        """Those to copy; what others refer to comes before them."""
        found = [table for table in self.read_tables() if table.name not in STAYS]
        return sorted(found, key=lambda table: (table.name in LAST, table.name != "tenants", table.name))

    def rows(self, table: Table, after: Row | None = None) -> Iterator[list[Row]]:
        columns, key = ", ".join(table.columns), ", ".join(table.key)
        marks = ", ".join("?" * len(table.key))
        while True:
            beyond, values = ("", ()) if after is None else (f"where ({key}) > ({marks})", after)
            found = self.conn.execute(
                f"select {columns} from {table.name} {beyond} order by {key} limit {TOGETHER}", values
            ).fetchall()
            if not found:
                return
            rows = [table.plain(row) for row in found]
            after = table.key_of(rows[-1])
            yield rows

    def last(self, table: Table) -> Row | None:
        """The key of the last row that is there."""
        order = ", ".join(f"{column} desc" for column in table.key)
        row = self.conn.execute(f"select {', '.join(table.key)} from {table.name} order by {order} limit 1").fetchone()
        return None if row is None else tuple(row)

    def add(self, table: Table, rows: Sequence[Row]) -> None:
        marks = ", ".join("?" * len(table.columns))
        self.conn.executemany(f"insert into {table.name} ({', '.join(table.columns)}) values ({marks})", rows)

    def count(self, table: Table) -> int:
        return int(self.conn.execute(f"select count(*) from {table.name}").fetchone()[0])


def sum_of(table: Table, batches: Iterator[list[Row]]) -> Sum:
    """The same for the same rows, wherever they lie."""
    digest, count = hashlib.sha256(), 0
    for batch in batches:
        count += len(batch)
        for row in batch:
            digest.update(line_of(row))
    return Sum(count, digest.hexdigest())


def line_of(row: Row) -> bytes:
    """A row as a line of JSON; bytes are base64."""
    return msgspec.json.encode(row) + b"\n"


# -- SQLite -------------------------------------------------------------------------------------------


def sqlite_end(conn: sqlite3.Connection, shown: str, transaction: Callable[[], AbstractContextManager[None]]) -> End:
    schema = conn.execute("pragma user_version").fetchone()[0]
    cluster_id, term = identity(conn)
    half = meta.value(conn, meta.COPYING)
    return End(shown, conn, cluster_id, term, half, schema, lambda: _sqlite_tables(conn), transaction, lambda: None)


def _sqlite_tables(conn: sqlite3.Connection) -> list[Table]:
    names = conn.execute("select name from sqlite_master where type = 'table' and name not like 'sqlite_%'").fetchall()
    return [_sqlite_table(conn, name) for (name,) in names]


def _sqlite_table(conn: sqlite3.Connection, name: str) -> Table:
    about = conn.execute(f"pragma table_info({name})").fetchall()
    columns = tuple(column for _, column, *_ in about)
    kinds = tuple(kind.lower() for _, _, kind, *_ in about)
    key = sorted((place, column) for _, column, _, _, _, place in about if place)
    return Table(name, columns, kinds, tuple(column for _, column in key))


def identity(conn: Connection) -> tuple[str, tuple[int, int]]:
    """Which cluster's it is, and the latest term known there."""
    said = conn.execute("select value from meta where key = 'cluster_id'").fetchone()
    n, epoch = conn.execute("select n, epoch from leader_epoch where id = 1").fetchone()
    return "" if said is None else said[0], (int(n), int(epoch))


@contextmanager
def nothing() -> Iterator[None]:
    """For an end that is only read."""
    yield
