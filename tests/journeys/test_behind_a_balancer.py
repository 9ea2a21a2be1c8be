"""HAProxy asks /ready of two control planes: what clients notice of a failover, and what they do not."""

import statistics
from collections.abc import Iterator
from functools import partial

import pytest
import trio
from attrs import define, field

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
    """Streams of ten seconds, and plain requests at a rate, through the balancer."""

    long: Traffic
    short: Steady
    cuts: list[float] = field(factory=list)  # when a leader was killed

    def failed(self) -> list[Asked]:
        return self.long.failed() + self.short.failed()

    def end(self) -> None:
        self.long.over = self.short.over = True


def under_load(made: Pair, balancer: Balancer, nursery: trio.Nursery, plain: int, streams: int) -> Load:
    clients = Clients(balancer, made.leading.gateway.make_key())  # type: ignore[arg-type] # only its address
    long = begin(Traffic(clients, RATE * 10, stream=True, after_failure_s=1.0), nursery, streams, 10 / streams)
    short = Steady(clients, plain)
    nursery.start_soon(short.run)
    return Load(long, short)


def a_pair(home: House, database: str):  # type: ignore[no-untyped-def]
    wide = model(decode_rate=RATE, slots=160, blocks=40_000, engine="capacity = 160")
    return pair(home, database, wide, more=QUICK + UNADMITTED, pause="4s")


def behind(made: Pair, home: House):  # type: ignore[no-untyped-def]
    hosts = [f"127.0.0.1:{plane.gateway.address[1]}" for plane in made.planes.values()]
    return haproxy(home.folder, hosts)


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
    with a_pair(home, database) as made:
        await until(made, lambda: made.serves(2))
        with behind(made, home) as balancer:
            await until(made, lambda: balancer.up() == {"gw-1"})
            async with trio.open_nursery() as nursery:
                load = under_load(made, balancer, nursery, plain, streams)
                for number in range(times):
                    leaving = await trio.to_thread.run_sync(made.leader)
                    coming = made.other(leaving)
                    await until(made, lambda name=leaving: streaming(made, name) >= 20)
                    there.append(await trio.to_thread.run_sync(streaming, made, leaving))
                    if number % 2:
                        await trio.to_thread.run_sync(made.planes[leaving].gateway.ctl, "leader", "resign")
                    else:
                        made.stop(leaving)
                    await until(made, lambda name=coming: made.leader() == name and balancer.up() == {name})
                    if not number % 2:
                        assert await trio.to_thread.run_sync(made.ended, leaving) == 0
                        await trio.to_thread.run_sync(made.start, leaving)
                    await until(made, lambda name=coming: made.arrived(name) and made.serves(2))
                    await until(made, lambda name=leaving: made.told(name)["leader"] is not None)
                load.end()
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
    gaps, lost = [], []
    with a_pair(home, database) as made:
        await until(made, lambda: made.serves(2))
        with behind(made, home) as balancer:
            await until(made, lambda: balancer.up() == {"gw-1"})
            async with trio.open_nursery() as nursery:
                load = under_load(made, balancer, nursery, plain, streams)
                for _ in range(times):
                    leaving = await trio.to_thread.run_sync(made.leader)
                    coming = made.other(leaving)
                    await load.long.more(streams // 2)
                    killed_at = trio.current_time()
                    await trio.to_thread.run_sync(made.kill, leaving)
                    await until(made, lambda name=coming: balancer.up() == {name}, TTL_S + 5)
                    back_at = trio.current_time()
                    await trio.to_thread.run_sync(made.start, leaving)
                    await until(made, lambda: made.arrived(made.leader()) and made.serves(2))
                    failed = [one for one in load.failed() if one.ended_at >= killed_at]
                    gaps.append(gap_of(failed, killed_at))
                    lost.append(len(failed))
                    late = [one for one in failed if one.began_at > back_at + CHECK_S]
                    assert late == [], "the balancer knew who leads, and requests failed"
                load.end()
    assert max(gaps) <= TTL_S + 5
    with capsys.disabled():
        print(
            f"\n{times} leaders killed at {plain} requests/s and {streams} streams: no answer for"
            f" {statistics.median(gaps):.1f} s (at most {max(gaps):.1f} s),"
            f" {statistics.median(lost):.0f} requests failed (at most {max(lost)})"
        )


def gap_of(failed: list[Asked], killed_at: float) -> float:
    """From the kill to the beginning of the last request that failed."""
    return max((one.began_at for one in failed), default=killed_at) - killed_at


@pytest.mark.slow
@ten_times
async def test_a_standby_that_is_killed_is_noticed_by_nobody(home: House, database: str, times, plain, streams):
    with a_pair(home, database) as made:
        await until(made, lambda: made.serves(2))
        with behind(made, home) as balancer:
            await until(made, lambda: balancer.up() == {"gw-1"})
            async with trio.open_nursery() as nursery:
                load = under_load(made, balancer, nursery, plain, streams)
                await until(made, lambda: streaming(made, "gw-1") >= 20)
                for _ in range(times):
                    await trio.to_thread.run_sync(made.kill, "gw-2")
                    await load.long.more(5)
                    await trio.to_thread.run_sync(made.start, "gw-2")
                    await until(made, lambda: made.told("gw-2")["leader"] is not None)
                load.end()
            assert made.term("gw-1") == (1, 1)
    assert load.failed() == []


@pytest.mark.slow
async def test_everything_is_upgraded_one_after_the_other_and_nobody_notices(home: House, database: str):
    async def now(what, *said):  # type: ignore[no-untyped-def]
        return await trio.to_thread.run_sync(partial(what, *said))

    with a_pair(home, database) as made:
        await until(made, lambda: made.serves(2))
        before = made.leading.running()
        with behind(made, home) as balancer:
            await until(made, lambda: balancer.up() == {"gw-1"})
            async with trio.open_nursery() as nursery:
                load = under_load(made, balancer, nursery, 20, 20)
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
                load.end()
        assert made.leader() == "gw-2"
        assert made.leading.running() == before
        assert made.leading.events("replica.failed") == []
    assert load.failed() == []
