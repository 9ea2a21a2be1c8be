"""The model stays like the cluster, whatever happens to the control planes in between: over real sockets."""

import asyncio
from typing import Any

import pytest

from console.feed import following
from console.feed.following import Over
from tests.console.followers import Console, following_them, hurry, named, run
from tests.console.gateways import Gateway, refusal, up


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    hurry(monkeypatch)


# -- a link that holds ---------------------------------------------------------------------------------------


def test_first_there_is_a_snapshot_with_the_log_of_what_was_before():
    async def story():
        gateway = Gateway(nodes=named("node-1"))
        for _ in range(3):
            gateway.tell()
        async with up(gateway), following_them(gateway) as console:
            await console.until(lambda p: len(p.events) == 3)
            assert list(console.picture.nodes) == ["node-1"]
            assert (console.picture.link.url, console.picture.link.down_since) == (gateway.url, None)
            assert console.picture.role == "operator"

    run(story())


def test_what_happens_is_told_at_once_and_asks_for_another_snapshot():
    async def story():
        gateway = Gateway(nodes=named("node-1"))
        async with up(gateway), following_them(gateway) as console:
            await console.until(lambda p: p.known)
            gateway.nodes = named("node-1", "node-2")
            gateway.tell()
            await console.until(lambda p: "node-2" in p.nodes)
            assert [event["seq"] for event in console.picture.events] == [1]
            assert console.picture.seq == 1

    run(story())


def test_while_nothing_happens_it_is_looked_at_now_and_then(monkeypatch):
    monkeypatch.setattr(following, "SNAPSHOT_MOST_S", 0.02)

    async def story():
        gateway = Gateway()
        async with up(gateway), following_them(gateway) as console:
            await console.until(lambda p: p.known)
            gateway.nodes = named("node-9")
            await console.until(lambda p: "node-9" in p.nodes)

    run(story())


def test_a_burst_is_one_change():
    async def story():
        gateway = Gateway()
        async with up(gateway), following_them(gateway) as console:
            await console.until(lambda p: p.known and gateway.feeds == 1)
            for _ in range(1000):
                gateway.tell()
            before = len(console.pictures)
            await console.until(lambda p: len(p.events) == 1000)
            grew = [len(picture.events) for picture in console.pictures[before:]]
            assert len(set(grew)) < 100

    run(story())


def test_who_missed_events_looks_at_the_whole_again():
    async def story():
        gateway = Gateway(nodes=named("node-1"))
        gateway.tell()
        async with up(gateway), following_them(gateway) as console:
            await console.until(lambda p: p.known and gateway.feeds == 1)
            gateway.most = 2
            gateway.nodes = named("node-2")
            for _ in range(10):
                gateway.tell()
            await console.until(lambda p: p.missed > 0 and "node-2" in p.nodes)
            assert console.picture.missed == 8
            assert [event["seq"] for event in console.picture.events] == [1, 10, 11]

    run(story())


def test_pools_queues_and_traffic_are_measured_and_requests_only_while_somebody_watches():
    async def story():
        gateway = Gateway()
        async with up(gateway), following_them(gateway) as console:
            await console.until(lambda p: len(p.histories.get("m", ())) > 3)
            assert not gateway.paths("/requests/running")
            assert not gateway.paths("/requests")
            console.following.watching.update(("running", "recent", "latest"))
            await console.until(lambda p: p.running and p.recent and p.latest)
            assert [one["id"] for one in console.picture.recent] == [
                "/requests ['limit', 'slow']", "/requests ['failed', 'limit']",
            ]  # fmt: skip
            assert [one["id"] for one in console.picture.latest] == ["/requests ['limit']"]
            assert gateway.paths("/traffic")

    run(story())


def test_a_measurement_that_this_gateway_does_not_know_keeps_no_other_back():
    async def story():
        gateway = Gateway(answers={"/pools": lambda _: (404, refusal("no such route", "not_found"))})
        async with up(gateway), following_them(gateway) as console:
            await console.until(lambda p: gateway.paths("/traffic") and p.known)
            assert (console.picture.pools, console.picture.link.down_since) == ({}, None)

    run(story())


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/pools", (200, {"pools": [{"saturation": 0.5}]})),
        ("/pools", (500, {"error": {"message": "broken", "code": "internal"}})),
        ("/pools", (502, "<html>bad gateway</html>")),
        ("/traffic", (200, {"models": 3})),
        ("/queues", (200, {"bands": 5, "queues": []})),
    ],
)
def test_one_measurement_that_fails_is_told_and_nothing_else_suffers(path: str, answer: Any):
    async def story():
        gateway = Gateway()
        async with up(gateway), following_them(gateway) as console:
            await console.until(lambda p: "m" in p.pools)
            gateway.answers[path] = lambda _: answer
            await console.until(lambda p: path[1:] in p.unmeasured)
            assert console.picture.pools, "what was known stays"
            count = len(gateway.asked)
            gateway.tell()
            await console.until(lambda p: len(p.events) == 1 and len(gateway.asked) > count + 10)
            assert console.picture.link.down_since is None
            assert (gateway.feeds, set(console.picture.unmeasured)) == (1, {path[1:]})
            del gateway.answers[path]
            await console.until(lambda p: not p.unmeasured)

    run(story())


def test_one_measurement_that_hangs_is_told_and_ends_no_link(monkeypatch):
    monkeypatch.setattr(following, "LIVE_WITHIN_S", 0.2)

    async def story():
        first, second = Gateway(), Gateway(leads=False)
        async with up(first, second), following_them(first, second) as console:
            await console.until(lambda p: "m" in p.pools)
            first.hangs_at.add("/queues")
            await console.until(lambda p: "queues" in p.unmeasured)
            await console.until(lambda p: "pools" not in p.unmeasured and len(first.paths("/whoami")) > 1)
            assert (console.picture.link.down_since, console.picture.link.url, first.feeds) == (None, first.url, 1)
            assert not second.asked

    run(story())


# -- losses --------------------------------------------------------------------------------------------------


def test_after_a_loss_nothing_that_happened_meanwhile_is_left_out():
    async def story():
        gateway = Gateway()
        gateway.tell()
        async with up(gateway), following_them(gateway) as console:
            await console.until(lambda p: len(p.events) == 1 and gateway.feeds == 1)
            await gateway.stop()
            await console.until(lambda p: p.link.down_since is not None)
            assert "not reachable" in console.picture.link.why or "ended" in console.picture.link.why
            for _ in range(3):
                gateway.tell()
            await gateway.start()
            await console.until(lambda p: p.link.down_since is None and len(p.events) == 4)
            assert console.picture.missed == 0

    run(story())


def test_another_control_plane_is_asked_when_the_first_is_gone():
    async def story():
        first, second = Gateway(nodes=named("node-1")), Gateway(nodes=named("node-1", "node-2"), term="0.2")
        async with up(first, second), following_them(first, second) as console:
            await console.until(lambda p: p.link.url == first.url and p.known)
            await first.stop()
            await console.until(lambda p: p.link.url == second.url and p.link.down_since is None)
            await console.until(lambda p: "node-2" in p.nodes)
            second.tell()
            await console.until(lambda p: len(p.events) == 1)

    run(story())


@pytest.mark.parametrize("who", ["told", "beside"])
def test_an_address_that_the_leader_told_is_asked_too(who: str):
    async def story():
        first, second = Gateway(), Gateway(term="0.2", nodes=named("node-2"))
        async with up(first, second):
            setattr(first, who, second.url)
            async with following_them(first) as console:
                await console.until(lambda p: p.known)
                await first.stop()
                await console.until(lambda p: "node-2" in p.nodes)

    run(story())


def test_a_leader_that_leads_no_more_is_left_for_the_one_it_names():
    async def story():
        first, second = Gateway(), Gateway(leads=False, term="0.1")
        async with up(first, second), following_them(first) as console:
            await console.until(lambda p: p.known and first.feeds == 1)
            second.leads, second.term = True, "0.2"
            first.demote(second.url)
            await console.until(lambda p: p.link.url == second.url)
            second.tell()
            await console.until(lambda p: len(p.events) == 1)

    run(story())


def test_while_a_standby_alone_answers_it_is_shown_with_its_age_and_the_leader_is_found_when_it_is_there():
    async def story():
        gateway = Gateway(leads=False, nodes=named("node-1"))
        async with up(gateway), following_them(gateway) as console:
            await console.until(lambda p: p.age_s == 0.0 and "node-1" in p.nodes)
            gateway.nodes = named("node-2")
            await console.until(lambda p: "node-2" in p.nodes)
            gateway.leads, gateway.term = True, "0.2"
            await console.until(lambda p: p.known and p.age_s is None)
            gateway.tell()
            await console.until(lambda p: len(p.events) == 1)

    run(story())


def test_what_a_leader_told_stays_and_is_stale_while_a_standby_alone_answers():
    async def story():
        leader, standby = Gateway(nodes=named("node-1")), Gateway(leads=False, nodes=named("unheard"))
        async with up(leader, standby), following_them(leader, standby) as console:
            await console.until(lambda p: p.known)
            await leader.stop()
            await console.until(lambda p: "stands by" in p.link.why)
            lost_at = console.picture.link.down_since
            await console.until(lambda p: p.link.down_since is None or len(standby.paths("/snapshot")) > 2)
            assert (list(console.picture.nodes), console.picture.link.down_since) == (["node-1"], lost_at)
            standby.leads, standby.term, standby.nodes = True, "0.2", named("node-1", "node-2")
            await console.until(lambda p: list(p.nodes) == ["node-1", "node-2"])
            assert console.picture.link.down_since is None

    run(story())


def test_a_restart_that_counts_events_from_lower_numbers_is_followed():
    async def story():
        gateway = Gateway()
        for _ in range(50):
            gateway.tell()
        async with up(gateway), following_them(gateway) as console:
            await console.until(lambda p: len(p.events) == 50)
            await gateway.stop()
            gateway.events, gateway.term = [], "0.2"
            gateway.tell("replica.ready", "m-1")
            await gateway.start()
            await console.until(lambda p: p.term == (0, 2))
            gateway.tell("replica.ready", "m-2")
            await console.until(lambda p: any(event["subject"] == "m-2" for event in p.events))
            assert console.picture.seq <= 2

    run(story())


def test_who_is_behind_what_was_seen_is_not_believed_and_that_is_said():
    async def story():
        gateway = Gateway(term="0.7", nodes=named("node-7"))
        async with up(gateway), following_them(gateway) as console:
            await console.until(lambda p: p.known)
            await gateway.stop()
            gateway.term, gateway.nodes = "0.3", named("node-3")
            await gateway.start()
            await console.until(lambda p: "behind" in p.link.why)
            assert "node-7" in console.picture.nodes

    run(story())


# -- ends ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "says"), [(401, "no valid admin token"), (403, "may not"), (404, "older than this console")]
)
def test_where_waiting_does_not_help_it_ends_with_why(status, says):
    async def story():
        answer = refusal("no valid admin token was sent" if status == 401 else "it may not", "x")
        gateway = Gateway(answers={"/snapshot": lambda _: (status, answer)})
        async with up(gateway):
            with pytest.raises(Over, match=says) as told:
                await Console(gateway).following.run()
            assert "until now" not in str(told.value)

    run(story())


def test_a_token_that_is_revoked_meanwhile_ends_it():
    async def story():
        gateway = Gateway()
        async with up(gateway):
            console = Console(gateway)
            task = asyncio.create_task(console.following.run())
            await console.until(lambda p: p.known)
            gateway.token = "another"
            with pytest.raises(Over, match=r"worked until now .* revoked or replaced .*no valid admin.*tokens list"):
                await task

    run(story())


def test_another_cluster_behind_the_same_address_ends_it():
    async def story():
        gateway = Gateway()
        async with up(gateway):
            console = Console(gateway)
            task = asyncio.create_task(console.following.run())
            await console.until(lambda p: p.known)
            gateway.cluster = "c2"
            gateway.tell()
            with pytest.raises(Over, match="cluster c2"):
                await task

    run(story())


def test_another_cluster_at_an_address_that_was_learnt_is_forgotten():
    async def story():
        ours, others = Gateway(nodes=named("node-1")), Gateway(cluster="c2", term="9.9", nodes=named("strange"))
        async with up(ours, others):
            ours.told = others.url
            async with following_them(ours) as console:
                await console.until(lambda p: p.known)
                await ours.stop()
                await console.until(lambda p: "c2" in p.link.why)
                await ours.start()
                await console.until(lambda p: p.link.down_since is None)
                assert list(console.picture.nodes) == ["node-1"]

    run(story())


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/snapshot", {"seq": 1, "status": {"cluster_id": "c1", "term": "0.1"}, "leader": {}}),
        ("/snapshot", {}),
        ("/snapshot", {"status": 5}),
        ("/snapshot", {"status": None}),
        ("/snapshot", {"seq": "soon", "status": {}, "leader": {}}),
        ("/events", {}),
        ("/events", {"events": [], "missed": "many", "last": 1}),
        ("/events", {"events": [{"kind": "node.back"}], "missed": 0, "last": 1}),
    ],
)
def test_an_answer_of_another_shape_ends_it_with_a_sentence(path, answer):
    async def story():
        gateway = Gateway(answers={path: lambda _: (200, answer)})
        async with up(gateway):
            with pytest.raises(Over, match="in a form that this console does not know"):
                await Console(gateway).following.run()

    run(story())
