"""How a store on PostgreSQL changes its shape: once, whole, with a copy of what was."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.core.secret import Secret
from llmgw.store.connecting import MIGRATING, Raw, Target, connect
from llmgw.store.dialect import InPostgres
from llmgw.store.errors import StoreTooNew, StoreUnavailable
from llmgw.store.place import Place
from llmgw.store.postgres import open_postgres
from llmgw.store.postgres_schema import MIGRATIONS, migrate
from llmgw.store.schema import MIGRATIONS as SQLITES
from tests.postgres_server import Server

NEXT = max(MIGRATIONS) + 1
COPY = f"llmgw_before_{NEXT}"


@pytest.fixture
def database(postgres: Server) -> Iterator[str]:
    name = postgres.fresh()
    yield name
    postgres.forget(name)


@pytest.fixture
def here(postgres: Server, database: str, tmp_path: Path) -> Place:
    return Place(tmp_path, tmp_path / "llmgw.db", Secret(postgres.url(database)))


@pytest.fixture
def conn(here: Place) -> Iterator[Raw]:
    assert here.url is not None
    with connect(Target.of(here.url), MIGRATING) as made:
        yield made


def add_colour(conn: InPostgres) -> None:
    conn.execute("alter table tenants add column colour text")


def break_half_way(conn: InPostgres) -> None:
    add_colour(conn)
    raise ZeroDivisionError


def columns(server: Server, database: str) -> set[str]:
    ask = "select column_name from information_schema.columns where table_schema = 'public' and table_name = 'tenants'"
    return {name for (name,) in server.sql(ask, database)}


def test_each_number_means_the_same_in_both_dialects():
    assert max(MIGRATIONS) == len(SQLITES)


def test_a_migration_keeps_a_copy_of_what_was(postgres, database, here, conn):
    open_postgres(here).close()
    postgres.sql("insert into tenants values ('acme', 1.0)", database)

    migrate(conn, "here", {**MIGRATIONS, NEXT: add_colour}, version="9.9")

    assert "colour" in columns(postgres, database)
    assert postgres.sql(f"select * from {COPY}.tenants", database) == [("acme", 1.0)]
    ((here_too,),) = postgres.sql("select count(*) from pg_tables where schemaname = 'public'", database)
    assert postgres.sql(f"select count(*) from pg_tables where schemaname = '{COPY}'", database) == [(here_too,)]


def test_a_migration_that_fails_changes_nothing(postgres, database, here, conn):
    open_postgres(here).close()

    with pytest.raises(ZeroDivisionError):
        migrate(conn, "here", {**MIGRATIONS, NEXT: break_half_way})

    assert "colour" not in columns(postgres, database)
    assert postgres.sql(f"select 1 from pg_namespace where nspname = '{COPY}'", database) == []
    open_postgres(here).close()


def test_a_newer_schema_is_refused_naming_the_version_to_run(here, conn):
    open_postgres(here).close()
    migrate(conn, "here", {**MIGRATIONS, NEXT: add_colour}, version="9.9")

    with pytest.raises(StoreTooNew, match=r"run llmgw 9\.9 or newer"):
        open_postgres(here)

    open_postgres_again = here.lock
    assert open_postgres_again.read_bytes() == b""  # a refused start holds nothing


def test_a_tool_that_comes_by_migrates_nothing_but_an_empty_database(here, conn):
    migrate(conn, "here", MIGRATIONS, may_change=False)

    with pytest.raises(StoreUnavailable, match="start `llmgw server`, it changes it"):
        migrate(conn, "here", {**MIGRATIONS, NEXT: add_colour}, may_change=False)


START = """
import sys
from pathlib import Path
from llmgw.core.secret import Secret
from llmgw.store.place import Place
from llmgw.store.postgres import open_postgres
folder, url = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
store = open_postgres(Place(Path(folder), Path(folder) / "llmgw.db", Secret(url)))
print(store.start, store.cluster_id)
store.close()
"""


def test_of_processes_that_start_together_on_an_empty_database_each_begins_well(here, tmp_path, postgres, database):
    assert here.url is not None
    words = [sys.executable, "-c", START]
    starting = [
        subprocess.Popen([*words, str(tmp_path / str(n)), here.url.reveal()], stdin=-1, stdout=-1, stderr=-1, text=True)
        for n in range(4)
    ]
    for process in starting:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in starting:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.communicate(timeout=60) for process in starting]

    assert [err for _, err in said] == [""] * 4
    assert sorted(int(out.split()[0]) for out, _ in said) == [1, 2, 3, 4]
    assert len({out.split()[1] for out, _ in said}) == 1


def test_a_change_of_shape_waits_for_whoever_changes_it_now(here, conn, postgres, database):
    """A second process finds the work done, instead of doing it again."""
    open_postgres(here).close()
    assert here.url is not None
    with connect(Target.of(here.url), MIGRATING) as other:
        migrate(other, "here", {**MIGRATIONS, NEXT: add_colour})
    migrate(conn, "here", {**MIGRATIONS, NEXT: add_colour})

    assert postgres.sql("select version from schema_version", database) == [(NEXT,)]


def test_a_store_of_before_comes_to_the_same_shape(here, conn, postgres, database):
    first = min(MIGRATIONS)
    migrate(conn, "here", {first: MIGRATIONS[first]}, version="0.5")
    open_postgres(here).close()

    assert postgres.sql("select version from schema_version", database) == [(max(MIGRATIONS),)]
    assert postgres.sql("select count(*) from control_planes", database) == [(0,)]
    assert postgres.sql(f"select count(*) from llmgw_before_{first + 1}.tenants", database) == [(0,)]
