"""PostgreSQL restarts, fails over, stalls, is killed: what a store on it says, and how soon it is back."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trio
from attrs import define, field

from llmgw.core.secret import Secret
from llmgw.store import keys
from llmgw.store.errors import StoreUnavailable, StoreUncertain
from llmgw.store.face import Database
from llmgw.store.limits import StoreLimits
from llmgw.store.lines import WITHIN_S
from llmgw.store.opening import opened
from llmgw.store.place import Place
from llmgw.store.postgres import open_postgres
from llmgw.store.usage import Row, UsageWriter
from tests.postgres_server import GUARDED, PASSWORD, USER, Server, running

SOON_S = 5.0


@pytest.fixture
def server() -> Iterator[Server]:
    """One of its own: the test ends it."""
    try:
        with running() as made:
            yield made
    except LookupError as error:
        pytest.skip(str(error))


def place(folder: Path, *servers: Server, database: str = "postgres") -> Place:
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    return Place(folder, folder / "llmgw.db", Secret(f"postgresql://{USER}@{hosts}/{database}"))


def tenant(name: str) -> Callable[[Database], None]:
    return lambda db: keys.add_tenants(db, [name], 1.0)


async def names(store: Any) -> list[str]:
    return [name for name, _ in await store.read(keys.tenants)]


async def soon(act: Callable[[], Any], within_s: float = SOON_S) -> Any:
    """As callers do: again, until it is back."""
    with trio.fail_after(within_s):
        while True:
            try:
                return await act()
            except StoreUnavailable:
                await trio.sleep(0.05)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 -- what it waits for happens in other threads and processes
        await trio.sleep(0.02)


async def test_killed_connections_are_replaced_without_a_word(postgres, tmp_path):
    database = postgres.fresh()
    async with opened(place(tmp_path, postgres, database=database)) as store:
        for n in range(3):
            await store.write(tenant(f"t{n}"))
            await names(store)
            await trio.to_thread.run_sync(postgres.disconnect, database)
        assert await names(store) == ["t0", "t1", "t2"]
    postgres.forget(database)


async def test_a_restart_is_waited_for(server, tmp_path):
    async with opened(place(tmp_path, server)) as store, trio.open_nursery() as nursery:
        await store.write(tenant("before"))
        nursery.start_soon(trio.to_thread.run_sync, server.restart)
        for n in range(60):
            await store.write(tenant(f"t{n}"))
            await trio.sleep(0.02)

    assert len(server.sql("select 1 from tenants")) == 61


async def test_a_server_that_was_killed_comes_back_with_what_was_acknowledged(tmp_path):
    with running(durable=True) as server:
        async with opened(place(tmp_path, server)) as store:
            done: list[str] = []

            async def write_on() -> None:
                for n in range(10_000):
                    try:
                        await store.write(tenant(f"t{n}"))
                    except StoreUnavailable:
                        await trio.sleep(0.05)
                    else:
                        done.append(f"t{n}")

            with trio.fail_after(30):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(write_on)
                    await until(lambda: len(done) >= 50)
                    await trio.to_thread.run_sync(server.kill)
                    await trio.to_thread.run_sync(server.start)
                    before = len(done)
                    await until(lambda: len(done) >= before + 50)
                    nursery.cancel_scope.cancel()
            assert set(done) <= set(await names(store))


async def test_a_standby_that_was_promoted_is_found_among_the_hosts(server, tmp_path):
    standby = server.standby()
    try:
        async with opened(place(tmp_path, standby, server)) as store:
            await store.write(tenant("before"))
            await trio.to_thread.run_sync(server.wait_for, standby)
            await trio.to_thread.run_sync(server.kill)
            with pytest.raises(StoreUnavailable, match="read-only now"):
                await store.write(tenant("meanwhile"))
            await trio.to_thread.run_sync(standby.promote)

            await soon(lambda: store.write(tenant("after")))
            assert await names(store) == ["after", "before"]
    finally:
        standby.end()


async def test_a_primary_that_turns_read_only_is_left_for_the_writable_one(server, tmp_path):
    """As managed services do: the old one lives on and takes no writes."""
    standby = server.standby()
    try:
        async with opened(place(tmp_path, server, standby)) as store:
            await store.write(tenant("before"))
            await names(store)
            await trio.to_thread.run_sync(server.wait_for, standby)
            await trio.to_thread.run_sync(standby.promote)
            server.sql("alter system set default_transaction_read_only = on")
            server.sql("select pg_reload_conf()")
            await until(lambda: server.sql("show default_transaction_read_only") == [("on",)])

            await soon(lambda: store.write(tenant("after")))
            assert await names(store) == ["after", "before"]  # the readers have moved too
        assert standby.sql("select name from tenants order by name") == [("after",), ("before",)]
        assert server.sql("select name from tenants") == [("before",)]
    finally:
        standby.end()


@pytest.mark.slow
async def test_a_server_that_stands_still_holds_nobody_for_ever(server, tmp_path):
    async with opened(place(tmp_path, server)) as store:
        await store.write(tenant("before"))
        server.pause()
        began = trio.current_time()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_refused, store, "one")
                nursery.start_soon(_refused, store, "two")
            assert trio.current_time() - began < WITHIN_S + 1
        finally:
            server.resume()

        await soon(lambda: store.write(tenant("after")))
        assert {"after", "before"} <= set(await names(store))


async def test_only_a_gateway_that_runs_says_what_goes_on_meanwhile(server, tmp_path):
    async with opened(place(tmp_path, server)) as store:
        server.stop()
        with pytest.raises(StoreUnavailable, match=r"is away \(.*\)$"):
            await names(store)
        store.advertise("http://127.0.0.1:7442")
        with pytest.raises(StoreUnavailable, match=r"is away \(.*\); control stops, requests go on, usage rows wait"):
            await names(store)


async def _refused(store: Any, name: str) -> None:
    with pytest.raises(StoreUnavailable, match=r"has not answered for|is busy|is away"):
        await store.write(tenant(name))


async def test_a_cancelled_reader_goes_at_once_and_so_does_a_writer_with_a_fence(server, tmp_path):
    async with opened(place(tmp_path, server)) as store:
        server.pause()
        try:
            began = trio.current_time()
            for act in (lambda: store.read(keys.tenants), lambda: store.write(tenant("a"), abandon=True)):
                with trio.move_on_after(0.2) as scope:
                    await act()
                assert scope.cancelled_caught
            assert trio.current_time() - began < 1
        finally:
            server.resume()
        await soon(lambda: store.write(tenant("after")))


async def test_a_cancelled_writer_still_knows_its_outcome(postgres, tmp_path):
    database = postgres.fresh()
    async with opened(place(tmp_path, postgres, database=database)) as store:
        with trio.CancelScope() as scope:

            def change(db: Database) -> str:
                trio.from_thread.run_sync(scope.cancel)
                db.conn.execute("insert into tenants values ('acme', 1.0)")
                return "done"

            assert await store.write(change) == "done"
        assert await names(store) == ["acme"]
    postgres.forget(database)


@define
class Cable:
    """Between us and the server; it can lose the answer to the next commit, and what follows."""

    server: Server
    listener: socket.socket = field(factory=lambda: socket.create_server(("127.0.0.1", 0)))
    cuts: bool = False
    closed_for_good: bool = False

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            if self.closed_for_good:
                return
            with socket.create_connection(("127.0.0.1", self.server.port)) as there:
                back = threading.Thread(target=self._carry, args=(there, client), daemon=True)
                back.start()
                self._carry(client, there)
                back.join()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                if self.cuts and b"commit" in data and b"committed" not in data:
                    self.cuts = False
                    one.shutdown(socket.SHUT_RDWR)
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def cable(postgres: Server) -> Iterator[Cable]:
    made = Cable(postgres)
    listening = threading.Thread(target=made.run, daemon=True)
    listening.start()
    yield made
    made.listener.shutdown(socket.SHUT_RDWR)
    made.listener.close()
    listening.join()


async def test_a_commit_whose_answer_was_lost_is_asked_about(cable, postgres, tmp_path):
    database = postgres.fresh()
    async with opened(place(tmp_path, cable, database=database)) as store:
        cable.cuts = True
        await store.write(tenant("acme"))  # was done, so it is told so

        assert not cable.cuts
        assert await names(store) == ["acme"]
    postgres.forget(database)


async def test_a_commit_that_nobody_can_be_asked_about_is_uncertain(cable, postgres, tmp_path):
    database = postgres.fresh()
    async with opened(place(tmp_path, cable, database=database)) as store:
        cable.cuts = cable.closed_for_good = True
        with pytest.raises(StoreUncertain, match="may be done"):
            await store.write(tenant("acme"))
        cable.closed_for_good = False

        assert await soon(lambda: names(store)) == ["acme"]
    postgres.forget(database)


async def test_a_commit_that_was_broken_off_changed_nothing_and_says_so(server, tmp_path):
    """A trigger that runs at the commit itself keeps it waiting while its connection is killed."""
    async with opened(place(tmp_path, server)) as store:
        wait = "begin perform pg_sleep(2); return null; end"
        server.sql(f"create function wait() returns trigger language plpgsql as '{wait}'")
        server.sql(
            "create constraint trigger slowly after insert on tenants deferrable initially deferred"
            " for each row execute function wait()"
        )

        def kill() -> None:
            deadline = time.monotonic() + 5
            ask = "select pg_terminate_backend(pid) from pg_stat_activity where state = 'active' and query = 'commit'"
            while not server.sql(ask) and time.monotonic() < deadline:
                time.sleep(0.02)

        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(StoreUnavailable, match="nothing was changed"):
            await store.write(tenant("acme"))
        killer.join()
        server.sql("drop trigger slowly on tenants")
        await store.write(tenant("after"))
        assert await names(store) == ["after"]


async def test_another_control_plane_that_stands_still_in_a_change_is_put_out(postgres, tmp_path):
    database = postgres.fresh()
    here = place(tmp_path, postgres, database=database)
    other = open_postgres(here, starts=False)
    async with opened(here) as store:
        held, go_on = trio.Event(), threading.Event()

        def stand_still(db: Database) -> None:
            keys.add_tenants(db, ["late"], 1.0)
            trio.from_thread.run_sync(held.set)
            go_on.wait(10)

        async def stall() -> None:
            with pytest.raises(StoreUnavailable):
                await other.write(stand_still)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stall)
            await held.wait()
            began = trio.current_time()
            await store.write(tenant("acme"))
            assert 1.0 < trio.current_time() - began < 3.5
            go_on.set()
        assert await names(store) == ["acme"]
    other.close()
    postgres.forget(database)


async def test_two_writers_count_every_number_once(postgres, tmp_path):
    database = postgres.fresh()
    here = place(tmp_path, postgres, database=database)
    other = open_postgres(here, starts=False)
    counted: list[int] = []

    async def count(store: Any) -> None:
        for _ in range(50):
            counted.append(await store.write(lambda db: keys.raise_revision(db.conn)))

    async with opened(here) as store, trio.open_nursery() as nursery:
        nursery.start_soon(count, store)
        nursery.start_soon(count, other)
    other.close()
    postgres.forget(database)

    assert sorted(counted) == list(range(1, 101))


def row(id: str) -> Row:
    return (id, 1.0, "acme", "key_1", "gold", "m", "e", "chat", "ok", 200, 3, 4, 0, False, 0.5, None, 1)


async def test_no_usage_row_is_lost_while_the_server_is_stopped(server, tmp_path):
    limits = StoreLimits(usage_queue_max=1200, usage_batch_max=50, usage_flush=0.05)
    async with opened(place(tmp_path, server)) as store:
        usage = UsageWriter(store, limits)
        recorded = 0
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(usage.run)
                for step in range(120):
                    if step == 20:
                        await trio.to_thread.run_sync(server.stop, "immediate")
                    for _ in range(10):
                        usage.record(row(f"r{recorded:05}"))
                        recorded += 1
                    await trio.sleep(0.05)
                spooled = tmp_path / "usage.spool"
                assert spooled.stat().st_size > 0
                assert usage.failing
                await trio.to_thread.run_sync(server.start)
                await until(lambda: not (usage.waiting or usage.failing or spooled.exists()))
                nursery.cancel_scope.cancel()
        assert usage.dropped == 0
    assert server.sql("select count(*), count(distinct request_id) from usage") == [(recorded, recorded)]


@pytest.mark.slow
async def test_rows_that_crowd_in_while_the_server_stands_still_go_to_disk(server, tmp_path):
    limits = StoreLimits(usage_queue_max=1000, usage_batch_max=100, usage_flush=0.05)
    async with opened(place(tmp_path, server)) as store:
        usage, count = UsageWriter(store, limits), 0
        with trio.fail_after(40):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(usage.run)
                server.pause()
                try:
                    while count < 3000:  # far more than the queue holds, in less time than an attempt may take
                        for _ in range(20):
                            usage.record(row(f"r{count:05}"))
                            count += 1
                        await trio.sleep(0.03)
                    assert usage.spooled > 0
                    assert usage.failing
                finally:
                    server.resume()
                await until(lambda: not (usage.waiting or usage.failing or usage.spooled))
                nursery.cancel_scope.cancel()
        assert usage.dropped == 0
    assert server.sql("select count(*), count(distinct request_id) from usage") == [(count, count)]


async def test_a_question_that_takes_too_long_is_ended_by_the_server(postgres, tmp_path):
    database = postgres.fresh()
    async with opened(place(tmp_path, postgres, database=database)) as store:
        began = trio.current_time()
        with pytest.raises(StoreUnavailable, match="was too slow: canceling statement due to statement timeout"):
            await store.read(lambda conn: conn.execute("select pg_sleep(20)"))
        assert trio.current_time() - began < 4
        assert await names(store) == []
    postgres.forget(database)


async def test_a_lock_that_somebody_else_holds_is_not_waited_for_long(postgres, tmp_path):
    database = postgres.fresh()
    async with opened(place(tmp_path, postgres, database=database)) as store:
        with psycopg.connect(postgres.url(database)) as other:
            other.execute("lock table tenants")
            with pytest.raises(StoreUnavailable, match="holds a lock"):
                await store.write(tenant("acme"))
        await store.write(tenant("acme"))
    postgres.forget(database)


async def test_more_readers_than_connections_take_turns(postgres, tmp_path):
    database = postgres.fresh()
    async with opened(place(tmp_path, postgres, database=database)) as store, trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(names, store)
        await store.write(tenant("acme"))
        ask = "select count(*) from pg_stat_activity where datname = %s"
        assert postgres.sql(ask, "postgres", database)[0][0] <= 3
    postgres.forget(database)


def test_no_password_is_in_what_is_printed(postgres, tmp_path):
    database = postgres.fresh()
    where = Place(tmp_path, tmp_path / "llmgw.db", Secret(postgres.url(database, password=PASSWORD)))
    store = open_postgres(where)

    assert "sesame" not in repr(store) + repr(store._lines) + repr(where) + where.shown
    store.close()
    postgres.forget(database)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"user": GUARDED, "password": "wrong"}, r"refuses the login: password authentication failed.*; check user"),
        ({"database": "nowhere"}, r"has no such database; .*create database"),
        ({"user": "crowded"}, "has no connection left for us: too many connections for role .*raise max_connections"),
        ({"user": "nobody_known"}, r"refuses the login: role \"nobody_known\" does not exist"),
    ],
)
def test_what_an_operator_did_wrong_is_said_in_words(postgres, tmp_path, change, says):
    if change.get("user") == "crowded":
        postgres.sql("create role crowded login connection limit 0")
    here = Place(tmp_path, tmp_path / "llmgw.db", Secret(postgres.url(**change)))

    with pytest.raises(StoreUnavailable, match=says) as caught:
        open_postgres(here)

    assert "wrong" not in str(caught.value).replace("wrong password", "")


def test_a_user_without_rights_is_told_which(postgres, tmp_path):
    database = postgres.fresh()
    here = Place(tmp_path, tmp_path / "llmgw.db", Secret(postgres.url(database, GUARDED, PASSWORD)))

    with pytest.raises(StoreUnavailable, match=r"permission denied for schema public; as an administrator.*owner"):
        open_postgres(here)
    postgres.forget(database)


def test_nobody_there_is_said_in_words(tmp_path):
    here = Place(tmp_path, tmp_path / "llmgw.db", Secret("postgresql://u:hunter2@127.0.0.1:1/d"))

    with pytest.raises(StoreUnavailable, match=r"\*\*\*@127.0.0.1:1/d is away .*[Cc]onnection refused") as caught:
        open_postgres(here)

    assert "hunter2" not in str(caught.value)


def test_a_database_in_another_encoding_is_refused(postgres, tmp_path):
    postgres.sql("create database latin template template0 encoding 'LATIN1' locale 'C'")
    here = Place(tmp_path, tmp_path / "llmgw.db", Secret(postgres.url("latin")))

    with pytest.raises(StoreUnavailable, match="keeps its text as LATIN1; make a database with encoding 'UTF8'"):
        open_postgres(here)


def test_a_database_with_other_tables_is_not_filled(postgres, tmp_path):
    database = postgres.fresh()
    postgres.sql("create table orders (id int)", database)

    with pytest.raises(StoreUnavailable, match=r"holds tables that are not llmgw's \(orders"):
        open_postgres(place(tmp_path, postgres, database=database))
    postgres.forget(database)
