"""Two control planes on one PostgreSQL: who leads, and that a failover is nothing that engines or agents notice."""

import signal
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import trio

from agent.link import STEADY_S
from tests.deploy.test_alerts import metrics_named
from tests.journeys.clustering import Traffic, begin, model
from tests.journeys.pairs import Pair, pair
from tests.journeys.running import Gateway, House, values
from tests.journeys.talking import Clients, chat, complete
from tests.postgres_server import Server, running

TTL_S = 10.0
often = pytest.mark.parametrize("times", [2, pytest.param(10, marks=pytest.mark.slow)])


@pytest.fixture
def database(postgres: Server) -> Iterator[str]:
    name = postgres.fresh()
    yield postgres.url(name)
    postgres.forget(name)


def leaders(made: Pair) -> list[tuple[str, str]]:
    """What was told of leadership: kind and term."""
    return [(one["kind"], one["data"]["term"]) for one in made.leading.events("leader")]


@often
def test_a_leader_that_is_stopped_hands_over(
    home: House, database: str, times: int, capsys: pytest.CaptureFixture[str]
):
    led, arrived = [], []
    with pair(home, database, model()) as made:
        made.wait(lambda: made.serves(2))
        before = made.leading.running()
        for _ in range(times):
            leaving = made.leader()
            coming = made.other(leaving)
            # After a link that ended sooner an agent takes its time, lest it asks without rest.
            made.wait(lambda name=leaving: made.arrived(name, for_s=2 * STEADY_S))
            began = time.monotonic()
            made.stop(leaving)
            made.wait(lambda name=coming: made.leader() == name, 3)
            led.append(time.monotonic() - began)
            made.wait(lambda name=coming: made.arrived(name), 3 - led[-1])
            arrived.append(time.monotonic() - began)
            made.wait(lambda: made.serves(2))
            assert made.leading.running() == before, "an engine was started anew"
            assert made.ended(leaving) == 0
            made.start(leaving)
            made.wait(lambda name=leaving: made.told(name)["leader"] is not None)
        terms = [term for kind, term in leaders(made) if kind == "leader.began"]
        assert terms == [f"1.{number}" for number in range(1, times + 2)]
        assert made.leading.events("replica.failed") == []
    with capsys.disabled():
        shown = [f"{name} {sorted(took)[len(took) // 2]:.2f} s, at most {max(took):.2f} s" for name, took in
                 (("another leads after", led), ("every agent is there after", arrived))]  # fmt: skip
        print(f"\n{times} leaders stopped: {'; '.join(shown)}")
    assert sorted(led)[times // 2] <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize("times", [10])
def test_a_leader_that_is_killed_is_replaced(
    home: House, database: str, times: int, capsys: pytest.CaptureFixture[str]
):
    took = []
    with pair(home, database, model()) as made:
        made.wait(lambda: made.serves(2))
        before = made.leading.running()
        for _ in range(times):
            leaving = made.leader()
            began = time.monotonic()
            coming = made.other(leaving)
            made.kill(leaving)
            made.wait(lambda name=coming: made.leader() == name and made.arrived(name), TTL_S + 5)
            made.wait(lambda: made.serves(2), TTL_S + 5)
            took.append(time.monotonic() - began)
            assert made.leading.running() == before, "an engine was started anew"
            made.start(leaving)
        assert made.leading.events("replica.failed") == []
    with capsys.disabled():
        usual = sorted(took)[times // 2]
        print(f"\n{times} leaders killed: served again after {usual:.1f} s, at most {max(took):.1f} s")


@pytest.mark.slow
def test_a_leader_that_stood_still_for_long_acts_on_nothing(home: House, database: str):
    with pair(home, database, model()) as made:
        made.wait(lambda: made.serves(2))
        before, old = made.leading.running(), made.process("gw-1")
        old.signal(signal.SIGSTOP)
        made.wait(lambda: made.leader() == "gw-2" and made.serves(2), 2 * TTL_S)
        made.leading.gateway.ctl("scale", "sim-model", "1")
        made.wait(lambda: made.serves(1))
        term, there = made.term("gw-2"), made.leading.running()
        old.signal(signal.SIGCONT)
        made.wait(lambda: not made.told("gw-1")["leads"], 5)
        # It has missed that one replica was enough; had it acted, a second one would be there.
        seen = made.planes["gw-2"].events()[-1]["seq"]
        made.wait(lambda: made.told("gw-1")["leader"]["who"] == "gw-2", 5)
        trio.run(trio.sleep, 3)  # passes, reports and renewals of three seconds
        assert (made.leader(), made.term("gw-2")) == ("gw-2", term)
        assert made.leading.running() == there
        assert set(there.items()) < set(before.items())
        assert [one for one in made.planes["gw-2"].events() if one["seq"] > seen and one["kind"] != "node.silent"] == []
        assert made.planes["gw-1"].gateway.admin("POST", "/admin/v1/restart/sim-model", json={}).status_code == 421


@pytest.mark.slow
def test_a_leader_that_stood_still_for_three_seconds_goes_on(home: House, database: str):
    with pair(home, database, model()) as made:
        made.wait(lambda: made.serves(2))
        before = made.leading.running()
        made.process("gw-1").signal(signal.SIGSTOP)
        trio.run(trio.sleep, 3)
        made.process("gw-1").signal(signal.SIGCONT)
        made.wait(lambda: made.leader() == "gw-1", 5)
        made.wait(lambda: made.arrived("gw-1") and made.serves(2), 10)
        assert made.term("gw-1") == (1, 1)
        assert made.leading.running() == before
        assert ("leader.suspended", "1.1") in leaders(made)


@pytest.mark.slow
async def test_a_database_that_restarts_changes_no_leader_and_costs_no_request(home: House):
    with running() as server, pair(home, server.url(), model(decode_rate=50)) as made:
        await until(made, lambda: made.serves(2))
        before = made.leading.running()
        clients = Clients(made.leading.gateway, made.leading.gateway.make_key())
        async with trio.open_nursery() as nursery:
            traffic = begin(Traffic(clients), nursery)
            await traffic.more()
            for _ in range(3):
                await trio.to_thread.run_sync(server.restart)
                await traffic.more(50)
            await trio.sleep(TTL_S)
            traffic.over = True
        assert traffic.failed() == []
        assert made.term("gw-1") == (1, 1)
        assert made.leader() == "gw-1"
        assert made.leading.running() == before


@pytest.mark.slow
@pytest.mark.parametrize("away_s", [15, 60])
async def test_while_the_database_is_away_what_runs_is_served_on(home: House, away_s: float):
    with running() as server, pair(home, server.url(), model(decode_rate=50)) as made:
        await until(made, lambda: made.serves(2))
        before, gateway = made.leading.running(), made.leading.gateway
        clients = Clients(gateway, gateway.make_key())
        async with trio.open_nursery() as nursery:
            traffic = begin(Traffic(clients), nursery)
            await traffic.more()
            await trio.to_thread.run_sync(server.stop)
            with trio.move_on_after(away_s):
                while True:
                    await traffic.more(20)
                    assert made.planes["gw-1"].ready(), "it knows where to send requests, and says otherwise"
            assert made.leader() == "", "somebody leads without a store"
            await trio.to_thread.run_sync(server.start)
            await until(made, lambda: bool(made.leader()), 2 * TTL_S)
            await until(made, lambda: made.arrived(made.leader()) and made.serves(2), TTL_S)
            await traffic.more(20)
            traffic.over = True
        assert traffic.failed() == []
        assert made.leading.running() == before
        await until(made, lambda: rows(server) == len(traffic.asked))


@pytest.mark.slow
async def test_who_led_last_serves_until_balancers_have_noticed_and_nothing_new_after_that(home: House, database: str):
    with pair(home, database, model(decode_rate=20), nodes=3, pause="2s") as made:
        await until(made, lambda: made.serves(2))
        one, two = (made.planes[name].gateway for name in ("gw-1", "gw-2"))
        clients = Clients(one, one.make_key())
        streams: list[bool] = []

        async def stream() -> None:
            answer = await clients.ask(chat("long", stream=True, max_tokens=300))
            streams.append(complete(answer, 300))

        async def status() -> int:
            return (await clients.ask(chat("short", max_tokens=1))).status

        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(stream)
            await until(made, lambda: len(made.planes["gw-1"].get("/requests/running")["requests"]) == 2)
            await ctl(two, "leader", "resign")
            await until(made, lambda: not made.planes["gw-1"].ready(), 10)
            assert await status() == 200, "balancers have not noticed yet"
            await until(made, lambda: {each["state"] for each in own(one, "endpoints")["endpoints"]} == {"leaving"}, 5)
            answer = await clients.ask(chat("late", max_tokens=1))
            assert (answer.status, answer.headers["retry-after"]) == (503, "2")

            # The streams that run there are what a drain waits for; new requests would hold it up for ever.
            node = made.leading.replicas()[0]["shards"][0]["node"]
            await ctl(two, "drain", node)
            waits = "waits for its engine, which still has 1 request"
            await until(made, lambda: waits in "; ".join(drain(made, node)["waits_on"]), 10)
        assert streams == [True, True]
        await until(made, lambda: drain(made, node)["state"] == "drained", 20)

        await ctl(two, "leader", "resign")
        await until(made, lambda: made.leader() == "gw-1" and made.planes["gw-1"].ready(), 3)
        assert await status() == 200, "it leads again"


async def ctl(gateway: Gateway, *words: str) -> Any:
    """Beside the clients' turns."""
    return await trio.to_thread.run_sync(partial(gateway.ctl, *words))


def own(gateway: Gateway, what: str) -> Any:
    """What that process itself has."""
    return gateway.admin("GET", f"/admin/v1/{what}").json()


def drain(made: Pair, node: str) -> Any:
    return made.leading.get(f"/nodes/{node}/drain")["drain"]


def rows(server: Server) -> int:
    """Of the ledger."""
    return int(server.sql("select count(*) from usage")[0][0])


async def until(made: Pair, condition, within_s: float = 30.0) -> None:
    """Looked at between the clients' turns."""
    deadline = trio.current_time() + within_s
    while not condition():
        assert trio.current_time() < deadline, made.shown()
        await trio.sleep(0.05)


def test_operators_see_who_leads_and_hand_over(home: House, database: str):
    with pair(home, database, model()) as made:
        made.wait(lambda: made.serves(2))
        before = made.leading.running()
        one, two = made.planes["gw-1"].gateway, made.planes["gw-2"].gateway
        shown = two.ctl("leader")
        assert (shown["leads"], shown["leader"]["who"], shown["leader"]["term"]) == (False, "gw-1", "1.1")
        assert two.admin("GET", "/ready", token="").json()["reason"] == "stands by: does not lead"
        assert "gw-1 leads, term 1.1" in two.ctl("explain", "leader")["verdict"]
        made.wait(lambda: [at["name"] for at in made.told("gw-1")["standbys"] or ()] == ["gw-2"], 10)
        assert "gw-2 stands by" in [fact["text"] for fact in one.ctl("explain", "leader")["because"]]
        assert values(one.metrics(), "llmgw_standbys", state="stands_by") == [1.0]

        # A standby's ctl asks the leader by itself, whether to read or to change.
        two.ctl("scale", "sim-model", "2", "-m", "as before")
        assert {one["name"] for one in two.ctl("nodes")["nodes"]} == {"node-1", "node-2"}
        assert one.ctl("audit")["audit"][0]["what"] == "models.scale"

        # A standby that reads its file again takes its limits alone, and the models stay those that were applied.
        two.config.write_text(
            two.config.read_text().replace("replicas = 2", "replicas = 3") + "\n[relay]\nidle = '50s'\n"
        )
        two.process.signal(signal.SIGHUP)
        made.wait(lambda: two.ctl("--url", two.admin_url, "audit")["audit"][0]["what"] == "config.reload")
        assert any("50s" in str(one) for one in two.log() if one.get("event") == "config applied")
        assert [one["revision"] for one in two.log() if one.get("event") == "config applied"] == [1]
        assert two.ctl("history")["revisions"][0]["revision"] == 1

        two.ctl("leader", "resign", "-m", "a journey")
        made.wait(lambda: made.leader() == "gw-2", 3)
        made.wait(lambda: made.arrived("gw-2") and made.serves(2), 5)
        assert made.leading.running() == before
        assert one.admin("GET", "/health", token="").status_code == 200, "it goes on, and stands by"
        made.wait(lambda: not made.planes["gw-1"].ready(), 10)
        metrics = {name: made.planes[name].gateway.metrics() for name in made.planes}
        assert [values(metrics[name], "llmgw_leading") for name in ("gw-1", "gw-2")] == [[0.0], [1.0]]
        assert values(metrics["gw-2"], "llmgw_lease_margin_seconds")[0] > 0
        assert values(metrics["gw-1"], "llmgw_replicas_desired") == [], "what the cluster is like is told once"
        lifted = values(metrics["gw-2"], "llmgw_leader_transitions_total", what="lifted")
        assert lifted == [0.0], "an alert sees it rise, even the first time"
        assert {"leader.ended", "leader.began"} <= {kind for kind, _ in leaders(made)}
        text = two.admin("GET", "/metrics").text
        assert [name for name in sorted(metrics_named()) if f"# TYPE {name} " not in text] == [], "alerts need them"


@pytest.mark.slow
async def test_without_agents_both_serve_at_once(home: House, database: str):
    engine = home.engine(decode_rate=50)
    static = f'[[models]]\nname = "sim-model"\n[[models.endpoints]]\nid = "a"\nurl = "{engine.url}"\nengine = "sim"\n'
    with pair(home, database, static, nodes=0) as made:
        await until(made, lambda: all(plane.ready() for plane in made.planes.values()))
        key = made.planes["gw-2"].gateway.make_key()  # the standby's: both know it
        async with trio.open_nursery() as nursery:
            traffic = begin(Traffic(Clients(made.planes["gw-2"].gateway, key)), nursery)
            await traffic.more()
            await trio.to_thread.run_sync(made.kill, "gw-1")
            await traffic.more()
            await until(made, lambda: made.leader() == "gw-2", TTL_S + 5)
            await traffic.more()
            await trio.to_thread.run_sync(made.start, "gw-1")
            await until(made, lambda: made.planes["gw-1"].ready())
            traffic.over = True
        assert traffic.failed() == []
        one = Clients(made.planes["gw-1"].gateway, key)
        assert (await one.ask(chat("hello", max_tokens=1))).status == 200


def test_what_an_operator_took_out_of_service_stays_so_over_a_failover(home: House, database: str):
    with pair(home, database, model()) as made:
        made.wait(lambda: made.serves(2))
        made.leading.gateway.ctl("cordon", "node-1", "-m", "new fans")
        made.kill_and_start_agent("node-1")
        made.stop("gw-1")
        made.wait(lambda: made.leader() == "gw-2" and made.arrived("gw-2"), 5)
        node = made.leading.node("node-1")
        assert (node["target"]["target"], node["target"]["by"], node["target"]["why"]) == (
            "cordoned", "first-start", "new fans",
        )  # fmt: skip
        made.leading.gateway.ctl("scale", "sim-model", "3")
        made.wait(lambda: any(one["state"] == "waiting" for one in made.leading.replicas()))
        where = {shard["node"] for one in made.leading.replicas() for shard in one["shards"]}
        assert where == {"node-1", "node-2"}
        assert len(made.leading.running()) == 2, "something landed on a node that is cordoned"


@pytest.mark.slow
def test_a_database_that_is_read_only_ends_the_leadership_and_nothing_else(home: House):
    with running() as server, pair(home, server.url(), model()) as made:
        made.wait(lambda: made.serves(2))
        before = made.leading.running()
        server.configure(default_transaction_read_only="on")
        server.sql("select pg_reload_conf()")
        made.wait(lambda: made.leader() == "", 2 * TTL_S)
        shown = made.told("gw-1")
        assert shown["store_away_s"] > 0, "reads are answered, and that is not enough"
        assert made.planes["gw-1"].ready()
        server.configure(default_transaction_read_only="off")
        server.sql("select pg_reload_conf()")
        made.wait(lambda: bool(made.leader()), 3 * TTL_S)
        made.wait(lambda: made.arrived(made.leader()) and made.serves(2), TTL_S)
        assert made.leading.running() == before


@pytest.mark.slow
def test_what_was_applied_counts_on_both_whatever_a_file_says(home: House, database: str):
    with pair(home, database, model(1)) as made:
        made.wait(lambda: made.serves(1))
        one, two = made.planes["gw-1"].gateway, made.planes["gw-2"].gateway
        applied = home.write("applied.toml", one.config.read_text().replace("replicas = 1", "replicas = 2"))
        two.ctl("apply", str(applied), "-m", "more")  # through the standby
        made.wait(lambda: made.serves(2))
        made.wait(lambda: two.ctl("status")["revision"] == 2, 5)

        made.stop("gw-1")
        made.wait(lambda: made.leader() == "gw-2" and made.arrived("gw-2") and made.serves(2), 5)
        made.ended("gw-1")
        made.start("gw-1")
        made.process("gw-1").said("are not those in force, which are revision 2 of the store")
        assert made.leading.gateway.ctl("history")["revisions"][0]["revision"] == 2

        two.process.signal(signal.SIGHUP)  # the leader's own file says one
        made.wait(lambda: made.serves(1))
        assert made.leading.gateway.ctl("history")["revisions"][0]["revision"] == 3
