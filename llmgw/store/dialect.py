"""How the row modules' SQL and values are said to PostgreSQL, and where its connection is one of ours."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import psycopg
from attrs import frozen
from psycopg import adapters
from psycopg.adapt import AdaptersMap, Dumper
from psycopg.types.string import StrDumperUnknown

from llmgw.store.face import FOR_SHARE, storable

_INT2 = 21  # grows into any integer column by itself


@lru_cache(maxsize=1024)
def in_postgres(sql: str) -> str:
    """``?`` stands for a value, nowhere for itself."""
    return sql.replace("%", "%%").replace("?", "%s").replace(FOR_SHARE, "for share")


class _Text(StrDumperUnknown):
    """As an unknown: the column says what it is."""

    def dump(self, obj: str) -> bytes:
        return storable(obj).encode()


class _Flag(Dumper):
    """Flags are 0 and 1, as in SQLite."""

    oid = _INT2

    def dump(self, obj: bool) -> bytes:
        return b"1" if obj else b"0"


def values_as_in_sqlite() -> AdaptersMap:
    made = AdaptersMap(adapters)
    made.register_dumper(str, _Text)
    made.register_dumper(bool, _Flag)
    return made


@frozen
class InPostgres:
    """A connection as the row modules know one."""

    raw: psycopg.Connection[tuple[Any, ...]]

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> psycopg.Cursor[tuple[Any, ...]]:
        return self.raw.execute(in_postgres(sql), values)

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> None:
        with self.raw.cursor() as cursor:
            cursor.executemany(in_postgres(sql), rows)
        # That was a pipeline, after which PostgreSQL (15 at least) starts no timer for a transaction left idle: a
        # process that is stopped here would keep every other one from writing.
        self.raw.execute("select 1")


@frozen
class PostgresDatabase:
    """As ``sqlite_utils.Database`` where it counts."""

    conn: InPostgres
