"""HAProxy asks /ready of two control planes: what clients notice of a failover, and what they do not."""

import statistics
from bisect import bisect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from attrs import define

from tests.journeys.balancers import PROGRAM, Balancer, haproxy
from tests.journeys.clustering import QUICK, Asked, Traffic, begin, model
from tests.journeys.loads import Steady
from tests.journeys.pairs import Pair, pair
from tests.journeys.running import UNADMITTED, House
from tests.journeys.talking import Clients, raise_descriptor_limit
from tests.postgres_server import Server

TTL_S, CHECK_S = 10.0, 1.0
NEXT = "tests.journeys.next_version"
RATE = 10  # tokens a second of a stream
pytestmark = pytest.mark.skipif(not PROGRAM, reason="there is no haproxy here: apt-get install haproxy")
ten_times = pytest.mark.parametrize(("times", "plain", "streams"), [(10, 200, 50)], ids=["ten-times"])


@pytest.fixture(autouse=True, scope="module")
def enough_descriptors() -> None:
    raise_descriptor_limit()


@pytest.fixture
def database(postgres: Server) -> Iterator[str]:
    name = postgres.fresh()
    yield postgres.url(name)
    postgres.forget(name)


@define(eq=False)
class Load:
    """Streams of ten seconds and plain requests at a rate, through HAProxy, which asks both planes for /ready."""

    made: Pair
    balancer: Balancer
    long: Traffic
    short: Steady

    def failed(self) -> list[Asked]:
        return self.long.failed() + self.short.failed()


@asynccontextmanager
async def under_load(home: House, database: str, plain: int, streams: int) -> AsyncIterator[Load]:
    """From when gw-1 leads and serves. The last requests end after the block."""
    wide = model(decode_rate=RATE, slots=160, blocks=40_000, engine="capacity = 160")
    with pair(home, database, wide, more=QUICK + UNADMITTED, pause="4s") as made:
        await until(made, lambda: made.serves(2))
        hosts = [f"127.0.0.1:{plane.gateway.address[1]}" for plane in made.planes.values()]
        with haproxy(home.folder, hosts) as balancer:
            await until(made, lambda: balancer.up() == {"gw-1"})
            clients = Clients(balancer, made.leading.gateway.make_key())  # type: ignore[arg-type] # only its address
            long = Traffic(clients, RATE * 10, stream=True, after_failure_s=1.0)
            short = Steady(clients, plain)
            async with trio.open_nursery() as nursery:
                begin(long, nursery, streams, 10 / streams)
                nursery.start_soon(short.run)
                yield Load(made, balancer, long, short)
                long.over = short.over = True


async def now(what: Callable[..., Any], *said: Any) -> Any:
    """Beside the clients' turns."""
    return await trio.to_thread.run_sync(partial(what, *said))


def streaming(made: Pair, name: str) -> int:
    found = made.planes[name].get("/requests/running", limit=1000)["requests"]
    return sum(one["phase"] == "streaming" for one in found)


async def until(made: Pair, condition, within_s: float = 30.0) -> None:  # type: ignore[no-untyped-def]
    deadline = trio.current_time() + within_s
    while not await trio.to_thread.run_sync(condition):
        assert trio.current_time() < deadline, made.shown()
        await trio.sleep(0.05)


@pytest.mark.slow
@ten_times
async def test_a_hand_over_costs_no_request(home: House, database: str, times, plain, streams, capsys):
    there = []
    async with under_load(home, database, plain, streams) as load:
        made, balancer = load.made, load.balancer
        for number in range(times):
            leaving = await now(made.leader)
            coming = made.other(leaving)
            await until(made, lambda name=leaving: streaming(made, name) >= 20)
            there.append(await now(streaming, made, leaving))
            if number % 2:
                await now(made.planes[leaving].gateway.ctl, "leader", "resign")
            else:
                made.stop(leaving)
            await until(made, lambda name=coming: made.leader() == name and balancer.up() == {name})
            if not number % 2:
                assert await now(made.ended, leaving) == 0
                await now(made.start, leaving)
            await until(made, lambda name=coming: made.arrived(name) and made.serves(2))
            await until(made, lambda name=leaving: made.told(name)["leader"] is not None)
    assert load.failed() == []
    assert min(there) >= 20
    with capsys.disabled():
        print(
            f"\n{times} hand-overs, {min(there)} streams or more at the leaving leader:"
            f" {len(load.long.asked)} streams and {len(load.short.asked)} plain requests, 0 failed"
        )


@pytest.mark.slow
@ten_times
async def test_a_leader_that_is_killed_costs_what_it_had_and_a_gap(
    home: House, database: str, times, plain, streams, capsys
):
    spans = []  # from a kill to when the balancer knew who leads
    async with under_load(home, database, plain, streams) as load:
        made, balancer = load.made, load.balancer
        for _ in range(times):
            leaving = await now(made.leader)
            coming = made.other(leaving)
            await load.long.more(streams // 2)
            killed_at = trio.current_time()
            await now(made.kill, leaving)
            await until(made, lambda name=coming: balancer.up() == {name}, TTL_S + 5)
            spans.append((killed_at, trio.current_time()))
            await now(made.start, leaving)
            await until(made, lambda: made.arrived(made.leader()) and made.serves(2))
    kills, lost = [killed_at for killed_at, _ in spans], [list[Asked]() for _ in spans]
    for one in load.failed():
        number = bisect(kills, one.ended_at)
        assert number, "a request failed before anybody was killed"
        lost[number - 1].append(one)  # to the latest kill before its end
    late = [
        one for (_, back_at), its in zip(spans, lost, strict=True) for one in its if one.began_at > back_at + CHECK_S
    ]
    assert late == [], "the balancer knew who leads, and requests failed"
    gaps = [max((one.began_at for one in its), default=at) - at for at, its in zip(kills, lost, strict=True)]
    assert max(gaps) <= TTL_S + 5
    numbers = list(map(len, lost))
    with capsys.disabled():
        print(
            f"\n{times} leaders killed at {plain} requests/s and {streams} streams: no answer for"
            f" {statistics.median(gaps):.1f} s (at most {max(gaps):.1f} s),"
            f" {statistics.median(numbers):.0f} requests failed (at most {max(numbers)})"
        )


@pytest.mark.slow
@ten_times
async def test_a_standby_that_is_killed_is_noticed_by_nobody(home: House, database: str, times, plain, streams):
    async with under_load(home, database, plain, streams) as load:
        made = load.made
        await until(made, lambda: streaming(made, "gw-1") >= 20)
        for _ in range(times):
            await now(made.kill, "gw-2")
            await load.long.more(5)
            await now(made.start, "gw-2")
            await until(made, lambda: made.told("gw-2")["leader"] is not None)
        assert made.term("gw-1") == (1, 1)
    assert load.failed() == []


@pytest.mark.slow
async def test_everything_is_upgraded_one_after_the_other_and_nobody_notices(home: House, database: str):
    async with under_load(home, database, 20, 20) as load:
        made = load.made
        before = made.leading.running()
        await load.long.more(10)
        for name in ("gw-2", "gw-1"):  # the standby first, as the document says
            made.stop(name)
            assert await now(made.ended, name) == 0
            await now(made.start, name, NEXT)
            await until(made, lambda name=name: made.told(name)["leader"] is not None)
            await until(made, lambda: made.arrived(made.leader()) and made.serves(2))
        for name in made.nodes:
            plane = made.planes["gw-1"]
            await now(plane.kill_agent, name)
            await now(plane.start_agent, name, NEXT)
            await until(made, lambda: made.arrived(made.leader()) and made.serves(2))
        await load.long.more(10)
        assert made.leader() == "gw-2"
        assert made.leading.running() == before
        assert made.leading.events("replica.failed") == []
    assert load.failed() == []
