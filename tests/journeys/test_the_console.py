"""What operators do at a console, on a cluster of real processes; and what is shown is true."""

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from console.screens.dialog import Dialog
from console.shown import Place
from tests.journeys.clustering import Cluster, cluster, model
from tests.journeys.consoles import Seat, Story, at_console
from tests.journeys.pairs import Pair, pair
from tests.journeys.running import House
from tests.journeys.talking import chat
from tests.postgres_server import Server

TOKENS = 1200  # of a stream: a minute
TTL_S = 10.0  # of a leader's lease
CARD_OF_ITS_OWN = "claimed by {}.g{}.r0, and this asks for a card of its own"
ACTS = "cuDmRsxX"  # every key that does something


@pytest.fixture(scope="module")
def shared(shared_home: House) -> Iterator[Cluster]:
    """One model serves, and one finds no place; no story leaves it otherwise, though perhaps on the other node."""
    models = model(1, decode_rate=20) + model(1, "big", gpu_memory="40GiB")
    with cluster(shared_home, models) as made:
        yield made


@pytest.fixture
def full(shared: Cluster) -> Cluster:
    shared.wait(lambda: settled(shared))
    return shared


def settled(made: Cluster) -> bool:
    """One replica serves, and its memory has been seen."""
    return made.serves(1) and all(shard["gpu_mib"] for one in made.replicas() for shard in one["shards"])


def play(made: Cluster, story: Story, token: str = "") -> None:
    """At the end of every story the console shows what is true."""

    async def whole(seat: Seat) -> None:
        await story(seat)
        await seat.until_true(made)

    at_console(whole, [made.gateway.admin_url], token or made.gateway.token)


def home_of(made: Cluster) -> tuple[dict[str, Any], str, str]:
    """The one replica that serves, its node and its GPU."""
    (one,) = made.serving()
    (shard,) = one["shards"]
    return one, shard["node"], shard["gpus"][0]


def other_than(node: str) -> str:
    return "node-2" if node == "node-1" else "node-1"


def acts(made: Cluster) -> list[tuple[str, str, str, str]]:
    """Of the audit, the oldest first: who, what, to whom, why."""
    told: list[dict[str, Any]] = made.get("/audit", limit=100)["audit"]
    return [(one["who"], one["what"], one["subject"], one["why"]) for one in reversed(told)]


# -- what is wrong, and why ---------------------------------------------------------------------------------


def test_a_gpu_that_falls_sick_is_seen_on_the_overview_which_leads_to_why_and_to_what_clears_it(full: Cluster):
    one, node, uuid = home_of(full)

    async def story(seat: Seat) -> None:
        full.nodes[node].gpus.xid(uuid, 119)
        await seat.until_read(f"GPU 0 of {node} is excluded: its system processor does not answer")
        await seat.follow(Place("gpu", f"{node}/{uuid}"))
        await seat.until_read("xid 119: its system processor", "clears: a reset of the GPU")
        await seat.until(lambda: seat.rows() == [])  # the replica has moved
        await seat.until_read("GPU 0 xid 119 (excluded, 1x, since", "clears: a reset of the GPU")
        await seat.say(":nodes")
        await seat.press("f")
        await seat.until(lambda: seat.rows() == [node])
        await seat.until_read("GPU 0: xid 119", "0/1")
        await seat.press("enter")
        await seat.until_read("excluded", "xid 119")
        await seat.say(":replicas sim-model")
        await seat.until(lambda: one["name"] not in seat.rows() and len(seat.rows()) == 1)
        await seat.until_read(other_than(node), "ready")
        # What was said to clear it does.
        full.nodes[node].gpus.reset(uuid)
        await seat.say(":overview")
        await seat.until(lambda: not seat.reads("is excluded"))

    play(full, story)


def test_why_a_model_is_placed_nowhere_is_read_check_by_check_and_what_if_finds_it_a_place(full: Cluster):
    one, node, _ = home_of(full)
    other = other_than(node)

    async def story(seat: Seat) -> None:
        await seat.until_read("no replica of big serves: no node fits: 2 short of GPU memory")
        await seat.follow(Place("placement", "big"))
        await seat.until_read(
            "needs 40.0 GiB, free 4.0 (claimed 20.0, foreign 0.0)",
            "needs 40.0 GiB, free 24.0 (claimed 0.0, foreign 0.0)",
            CARD_OF_ITS_OWN.format(one["name"], one["generation"]),
        )
        assert seat.screen().count("needs 1 GPU, 0 of 1 would do") == 2
        await what_if(seat, "gpu_memory=22GiB")
        await seat.until_read("what if gpu_memory=22GiB", f"goes to {other}", f"✓ {other}", f"✗ {node}")
        await what_if(seat, f", without {other}")
        await seat.until_read(f"what if gpu_memory=22GiB, without {other}", "needs 22.0 GiB, free 4.0", "no node fits")

    play(full, story)


async def what_if(seat: Seat, said: str) -> None:
    """After what was supposed before."""
    await seat.press("w")
    await seat.type(said)
    await seat.press("enter")


# -- acts ------------------------------------------------------------------------------------------------------


def test_a_node_is_cordoned_drained_after_a_look_at_the_plan_watched_and_taken_back(full: Cluster):
    one, node, _ = home_of(full)
    name, other = one["name"], other_than(node)

    async def story(seat: Seat) -> None:
        await seat.say(":nodes")
        await seat.until(lambda: len(seat.rows()) == 2)
        await seat.press("home", *(["down"] if node == "node-2" else []), "c")
        await seat.until_read(f"Cordon {node}", "Nothing new is placed there")
        await said_yes(seat, "new fans: 新しい", f"✓ {node} is cordoned")
        await seat.until_read("cordoned by first-start: new fans: 新しい")

        await seat.press("D")
        await seat.until_read(f"Drain {node}", f"✓ {name} → {other}")
        assert full.get("/drains")["drains"] == []
        await said_yes(seat, "the fans are here", f"{node} is")
        await seat.say(":drains")
        await seat.until(lambda: seat.rows() == [node])
        await seat.until_read(f"✓ {name} → {other} replaced", "1 of 1", f"{node} is drained after", "0 requests cut")
        assert full.node(node)["state"] == "drained"
        assert full.nodes[node].engine_pids() == set()

        await seat.press("u")
        await seat.until_read(f"Uncordon {node}")
        await said_yes(seat, "they turn", f"✓ {node} is schedulable")
        await seat.until(lambda: seat.rows() == [])

    play(full, story)
    whys = ("new fans: 新しい", "the fans are here", "they turn")
    assert acts(full)[-3:] == [("first-start", "nodes.target", node, why) for why in whys]


async def said_yes(seat: Seat, why: str, told: str) -> None:
    """Into the dialog's first field; it stays until what came of it was read."""
    await seat.type(why)
    await seat.yes()
    await seat.until_read(told, "Close")
    await seat.press("enter")
    assert not isinstance(seat.app.screen, Dialog)


def test_a_stream_is_cancelled_after_a_yes_and_its_client_is_told(full: Cluster):
    key, cancelled = full.gateway.make_key(), list[str]()

    async def story(seat: Seat) -> None:
        asked = asyncio.create_task(asyncio.to_thread(stream, full, key))
        await seat.say(":requests")
        await seat.until(lambda: len(seat.rows()) == 1)
        cancelled.extend(seat.rows())
        await seat.press("x")
        await seat.until_read(f"Cancel {cancelled[0]}", "Its client gets an error")
        await seat.press("escape")  # no yes, no act
        await seat.until(lambda: int(seat.picture.running[0]["tokens"]) > 20)
        await seat.press("x")
        await said_yes(seat, "it repeats itself", f"✓ {cancelled[0]} is cancelled")
        told = (await asked).split("data: ")
        assert "an operator ended this request" in told[-1]
        assert 20 < len(told) < TOKENS
        await seat.until(lambda: seat.rows() == [])
        await seat.press("r")
        await seat.until(lambda: seat.rows() == cancelled)
        await seat.until_read("cancelled", "an operator ended this request")

    play(full, story)
    assert acts(full)[-1] == ("first-start", "requests.cancel", cancelled[0], "it repeats itself")


def stream(made: Cluster, key: str) -> str:
    """The whole answer, as it came."""
    body, head = chat(stream=True, max_tokens=TOKENS), {"authorization": f"Bearer {key}"}
    url = f"{made.gateway.url}/v1/chat/completions"
    return httpx.post(url, json=body, headers=head, timeout=TOKENS, trust_env=False).text


def test_a_viewer_is_shown_no_act_and_no_key_asks_for_one(full: Cluster):
    asked = {"name": "vic", "role": "viewer", "why": "a journey"}
    answer = full.gateway.admin("POST", "/admin/v1/tokens", json=asked).raise_for_status().json()
    before = acts(full)

    async def story(seat: Seat) -> None:
        await seat.until_read("vic (viewer)")
        for place in (":nodes", ":replicas", ":leader"):
            await seat.say(place)
            await seat.press(*ACTS)
            assert not isinstance(seat.app.screen, Dialog)
            assert not re.search(
                r"\b[cuDmRsxX] (cordon|uncordon|drain|move|restart|scale|cancel|resign)", seat.screen()
            )
        await seat.say(":drain node-1")
        await seat.until_read("drain: it is for operators, and you are viewer")
        assert 403 not in seat.api.refusals

    play(full, story, answer["token"])
    assert acts(full) == before


# -- control planes that die -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_control_plane_that_is_killed_under_the_console_is_told_and_found_again(home: House):
    with cluster(home, model(1)) as made:
        made.wait(lambda: settled(made))
        name = home_of(made)[0]["name"]

        async def story(seat: Seat) -> None:
            await seat.say(":replicas")
            await seat.until(lambda: seat.rows() == [name])
            await asyncio.to_thread(made.kill_control_plane)
            await seat.until_read("stale: no answer for", "trying again")
            await seat.until(lambda: re.search(r"stale: no answer for [1-9]\d* s", seat.screen()))
            assert seat.rows() == [name]  # it is shown on
            await asyncio.to_thread(made.start_control_plane)
            await seat.until(lambda: not seat.reads("stale"))
            await asyncio.to_thread(made.wait, lambda: made.serves(1))
            await asyncio.to_thread(made.gateway.ctl, "scale", "sim-model", "2")
            await seat.until(lambda: len(seat.rows()) == 2)
            await asyncio.to_thread(made.wait, lambda: made.serves(2))
            await seat.until_true(made)
            await each_event_is_told_once(seat, "leads, term 0.1", "leads, term 0.2")

        play(made, story)


async def each_event_is_told_once(seat: Seat, *among: str) -> None:
    await seat.say(":events")
    await seat.until_read(*among)
    numbers = [int(key) for key in seat.rows()]
    assert numbers == sorted(set(numbers))


@pytest.fixture
def database(postgres: Server) -> Iterator[str]:
    name = postgres.fresh()
    yield postgres.url(name)
    postgres.forget(name)


@pytest.fixture
def two(home: House, database: str) -> Iterator[Pair]:
    """The first leads, and every node is there."""
    with pair(home, database, model(1)) as made:
        made.wait(lambda: made.serves(1) and made.arrived("gw-1"))
        yield made


def urls_of(made: Pair) -> list[str]:
    return [plane.gateway.admin_url for plane in made.planes.values()]


@pytest.mark.slow
def test_a_console_goes_on_with_the_other_control_plane_when_the_leader_is_killed(two: Pair):
    async def story(seat: Seat) -> None:
        await seat.say(":replicas")
        await seat.until_read("gw-1 leading, term 1.1")
        await asyncio.to_thread(two.kill, "gw-1")
        await seat.until_read("stale: no answer for", "who leads does not answer", "stands by")
        assert not seat.reads("unknown")  # what the leader told is shown on, not what the other one has not heard
        await seat.until_read("gw-2 leading, term 1.2", within_s=2 * TTL_S)
        await another_replica_is_seen(seat, two)
        await each_event_is_told_once(seat, "leads, term 1.1", "leads, term 1.2")

    at_console(story, urls_of(two), two.leading.gateway.token)


@pytest.mark.slow
def test_a_leader_resigns_at_a_key_and_a_console_that_knew_it_alone_goes_on_with_the_next(two: Pair):
    async def story(seat: Seat) -> None:
        await seat.say(":leader")
        await seat.until_read("gw-1 leading, term 1.1", "gw-2  ready to take over")
        await seat.press("X")
        await seat.until_read("one that stands by takes over, and no request fails", "now  gw-2 stands by")
        await said_yes(seat, "a new kernel", "term 1.1 is given back")
        await seat.until_read("gw-2 leading, term 1.2")
        await seat.until(lambda: seat.picture.link.url == urls_of(two)[1])
        await asyncio.to_thread(two.kill, "gw-1")
        await seat.say(":replicas")
        await another_replica_is_seen(seat, two)
        await each_event_is_told_once(seat, "leads, term 1.1", "leads, term 1.2")

    at_console(story, urls_of(two)[:1], two.leading.gateway.token)
    assert acts(two.leading)[-2:-1] == [("first-start", "leader.resign", "1.1", "a new kernel")]


async def another_replica_is_seen(seat: Seat, made: Pair) -> None:
    """With the new leader everything goes on."""
    await asyncio.to_thread(made.wait, lambda: made.serves(1))
    await asyncio.to_thread(made.leading.gateway.ctl, "scale", "sim-model", "2")
    await seat.until(lambda: len(seat.rows()) == 2)
    await asyncio.to_thread(made.wait, lambda: made.serves(2))
    await seat.until_true(made.leading)
    assert not seat.reads("stale")
