"""Stores for tests, of either kind: what holds of one must hold of the other."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from attrs import field, frozen

from llmgw.core.secret import Secret
from llmgw.store.errors import StoreUnavailable
from llmgw.store.face import Store
from llmgw.store.place import Place
from llmgw.store.postgres import open_postgres
from llmgw.store.sqlite import open_store
from llmgw.store.turn import inline
from tests.postgres_server import Server, running

SQLITE, POSTGRES = KINDS = ("sqlite", "postgres")


class Broken:
    """A connection that leads nowhere."""

    def execute(self, *_: object) -> None:
        raise StoreUnavailable("away")


@frozen
class Kind:
    """One place for stores: each ``open`` is a start on the same one."""

    name: str
    place: Place
    server: Server | None = field(default=None, repr=False)
    database: str = ""

    def open(self, *, starts: bool = True) -> Store:
        """Without threads, so that a mock clock may jump, and without waiting, which it would not shorten."""
        if self.name == SQLITE:
            return open_store(self.place, lambda: inline, starts=starts)
        store = open_postgres(self.place, lambda: inline, lambda: inline, starts=starts)
        store._lines.patient_s = store._lines.ask_again_s = 0
        return store

    def goes_away(self, store: Store) -> None:
        """It takes no writes, until ``comes_back``."""
        if self.server is None:
            store._db.conn.execute("pragma query_only = on")
            return
        self.server.sql(f"alter database {self.database} allow_connections false")
        self.server.disconnect(self.database)

    def comes_back(self, store: Store) -> None:
        if self.server is None:
            store._db.conn.execute("pragma query_only = off")
        else:
            self.server.sql(f"alter database {self.database} allow_connections true")

    @contextmanager
    def unreadable(self, store: Store) -> Iterator[None]:
        if self.server is None:
            reader, store._reader = store._reader, Broken()
            yield
            store._reader = reader
        else:
            self.goes_away(store)
            yield
            self.comes_back(store)

    def rows(self, question: str) -> list[tuple[object, ...]]:
        """Asked past the store."""
        if self.server is not None:
            return self.server.sql(question, self.database)
        import sqlite3

        conn = sqlite3.connect(self.place.database)
        try:
            return conn.execute(question).fetchall()
        finally:
            conn.close()


@contextmanager
def a_place(kind: str, folder: Path, server: Callable[[], Server]) -> Iterator[Kind]:
    """``server`` is asked for only where one is needed."""
    if kind == SQLITE:
        yield Kind(kind, Place(folder, folder / "llmgw.db"))
        return
    found = server()
    name = found.fresh()
    try:
        yield Kind(kind, Place(folder, folder / "llmgw.db", Secret(found.url(name))), found, name)
    finally:
        found.forget(name)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """One server for the whole run; each test has a database of its own."""
    try:
        with running() as server:
            yield server
    except LookupError as error:
        pytest.skip(str(error))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kind]:
    with a_place(request.param, tmp_path, partial(request.getfixturevalue, "postgres")) as made:
        yield made


@pytest.fixture
def any_store(kind: Kind) -> Iterator[Store]:
    store = kind.open()
    yield store
    store.close()
