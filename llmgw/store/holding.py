"""A store opened for a tool: to be read beside whoever uses it, or held alone."""

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from llmgw.store.ends import End, nothing, sqlite_end
from llmgw.store.errors import StoreTooNew, StoreUnavailable, translated
from llmgw.store.opening import check_url
from llmgw.store.place import Place
from llmgw.store.schema import MIGRATIONS
from llmgw.store.sqlite import open_store, read_only
from llmgw.store.transaction import transaction


def reading(place: Place) -> AbstractContextManager[End]:
    """One committed state, beside a control plane that goes on writing. Raises StoreUnavailable."""
    if not place.url:
        return _reading_sqlite(place)
    check_url(place)
    from llmgw.store.postgres_end import reading_postgres

    return reading_postgres(place)


def holding(place: Place, fill: bool) -> AbstractContextManager[End]:
    """Alone: no control plane may run on it. ``fill``: it is made where there is none. Raises DataLocked."""
    if not place.url:
        return _holding_sqlite(place, fill)
    check_url(place)
    from llmgw.store.postgres_end import holding_postgres

    return holding_postgres(place, fill)


@contextmanager
def _reading_sqlite(place: Place) -> Iterator[End]:
    # Another process may read beside the daemon: it never checkpoints.
    _refuse_nothing(place)
    with translated(place.database):
        conn = read_only(place.database)
        try:
            conn.execute("begin")
            _refuse_other_schema(conn, place)
            yield sqlite_end(conn, place.shown, nothing)
        finally:
            conn.close()


@contextmanager
def _holding_sqlite(place: Place, fill: bool) -> Iterator[End]:
    if not fill:
        _refuse_nothing(place)
    store = open_store(place, starts=False, moves=True)
    try:
        with translated(place.database):
            yield sqlite_end(store.raw, place.shown, lambda: transaction(store.database))
    finally:
        store.close()


def _refuse_nothing(place: Place) -> None:
    if not place.database.exists():
        raise StoreUnavailable(f"{place.database} is not there; name the file of a store, or its folder")


def _refuse_other_schema(conn: sqlite3.Connection, place: Place) -> None:
    have = conn.execute("pragma user_version").fetchone()[0]
    if have > len(MIGRATIONS):
        raise StoreTooNew(f"{place.database} was written by a newer llmgw; use that one")
    if have < len(MIGRATIONS):
        raise StoreUnavailable(f"{place.database} was written by an older llmgw: start `llmgw server`, it changes it")
