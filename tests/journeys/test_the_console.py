"""What operators do at a console, on a cluster of real processes; and what is shown is true."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest

from console.screens.dialog import Dialog
from console.shown import Place
from tests.journeys.clustering import Cluster, cluster, model
from tests.journeys.consoles import Seat, at_console
from tests.journeys.running import House
from tests.journeys.talking import chat

TOKENS = 1200  # of a stream: a minute
Played = Callable[[Seat], Awaitable[None]]


@pytest.fixture(scope="module")
def full(shared_home: House) -> Iterator[Cluster]:
    """One model serves, and one finds no place; no story leaves it otherwise."""
    models = model(1, decode_rate=20) + model(1, "big", gpu_memory="40GiB")
    with cluster(shared_home, models) as made:
        made.wait(lambda: settled(made))
        yield made


def play(made: Cluster, story: Played, token: str = "") -> None:
    """At the end of every story the console shows what is true."""

    async def whole(seat: Seat) -> None:
        await story(seat)
        await seat.until_true(made)

    at_console(whole, [made.gateway.admin_url], token or made.gateway.token)


def home_of(made: Cluster) -> tuple[str, str, str]:
    """The one replica that serves, its node and its GPU."""
    (one,) = made.serving()
    (shard,) = one["shards"]
    return one["name"], shard["node"], shard["gpus"][0]


def settled(made: Cluster) -> bool:
    """One replica serves, and its memory has been seen."""
    return made.serves(1) and all(shard["gpu_mib"] for one in made.replicas() for shard in one["shards"])


async def what_if(seat: Seat, said: str) -> None:
    """After what was supposed before."""
    await seat.press("w")
    await seat.type(said)
    await seat.press("enter")


def other_than(node: str) -> str:
    return "node-2" if node == "node-1" else "node-1"


def acts(made: Cluster) -> list[tuple[str, str, str, str]]:
    """Of the audit, the oldest first: who, what, to whom, why."""
    told: list[dict[str, Any]] = made.get("/audit", limit=100)["audit"]
    return [(one["who"], one["what"], one["subject"], one["why"]) for one in reversed(told)]


def test_a_gpu_that_falls_sick_is_seen_on_the_overview_which_leads_to_why_and_what_clears_it(home: House):
    with cluster(home, model(1)) as made:
        made.wait(lambda: settled(made))
        name, node, uuid = home_of(made)

        async def story(seat: Seat) -> None:
            await seat.until_read("nothing is wrong")
            made.nodes[node].gpus.xid(uuid, 79)
            await seat.until_read(f"GPU 0 of {node} is excluded: fallen off the bus")
            await seat.follow(Place("gpu", f"{node}/{uuid}"))
            await seat.until_read("xid 79")
            await seat.say(":nodes")
            await seat.press("f")
            await seat.until(lambda: seat.rows() == [node])
            await seat.until_read("GPU 0: xid 79", "clears:", "0/1")
            await seat.press("enter")
            await seat.until_read("xid 79 (excluded", "clears:")
            await seat.say(":replicas")
            await seat.until(lambda: name not in seat.rows() and len(seat.rows()) == 1)
            await seat.until_read(other_than(node), "ready")

        play(made, story)


def test_why_a_model_is_placed_nowhere_is_read_check_by_check_and_what_if_finds_it_a_place(full: Cluster):
    _, node, _ = home_of(full)

    async def story(seat: Seat) -> None:
        await seat.until_read("no replica of big serves", "no node fits")
        await seat.follow(Place("placement", "big"))
        await seat.until_read(
            "needs 40.0 GiB, free 4.0 (claimed 20.0, foreign 0.0)",
            "needs 40.0 GiB, free 24.0 (claimed 0.0, foreign 0.0)",
            "asks for a card of its own",
        )
        assert seat.screen().count("needs 1 GPU, 0 of 1 would do") == 2
        await what_if(seat, "gpu_memory=22GiB")
        await seat.until_read("what if gpu_memory=22GiB", f"goes to {other_than(node)}")
        await what_if(seat, f", without {other_than(node)}")
        await seat.until_read(f"what if gpu_memory=22GiB, without {other_than(node)}", "needs 22.0 GiB, free 4.0")

    play(full, story)


def test_a_node_is_cordoned_drained_after_a_look_at_the_plan_watched_and_taken_back(home: House):
    with cluster(home, model(1)) as made:
        made.wait(lambda: settled(made))
        name, node, _ = home_of(made)

        async def story(seat: Seat) -> None:
            await seat.say(":nodes")
            await seat.until(lambda: len(seat.rows()) == 2)
            await seat.press("home", *(["down"] if node == "node-2" else []), "c")
            await seat.until_read(f"Cordon {node}", "Nothing new is placed there")
            await seat.type("new fans: 新しい")
            await seat.yes()
            await seat.until_read(f"{node} is cordoned", "Close")
            await seat.press("enter")
            await seat.until_read("cordoned by first-start: new fans: 新しい")

            await seat.press("D")
            await seat.until_read(f"Drain {node}", f"{name} → {other_than(node)}")
            assert made.get("/drains")["drains"] == []
            await seat.type("the fans are here")
            await seat.press("enter")
            await seat.type("5min")
            await seat.yes()
            await seat.until_read("Close")
            await seat.press("enter")
            await seat.say(":drains")
            await seat.until(lambda: seat.rows() == [node])
            await seat.until_read(f"✓ {name} → {other_than(node)} replaced", "1 of 1", "0 requests cut")
            await seat.until_read(f"{node} is drained after")
            assert made.node(node)["state"] == "drained"
            assert made.nodes[node].engine_pids() == set()

            await seat.press("u")
            await seat.until_read(f"Uncordon {node}")
            await seat.type("they turn")
            await seat.yes()
            await seat.until_read("Close")
            await seat.press("enter")
            await seat.until(lambda: seat.rows() == [])
            await seat.say(f":node {node}")
            await seat.press("escape")
            await seat.until(lambda: seat.picture.nodes[node]["state"] == "ready")

        play(made, story)
        assert acts(made)[-3:] == [
            ("first-start", "nodes.target", node, why) for why in ("new fans: 新しい", "the fans are here", "they turn")
        ]


def test_a_control_plane_that_is_killed_under_the_console_is_told_and_found_again(home: House):
    with cluster(home, model(1)) as made:
        made.wait(lambda: settled(made))
        name, _, _ = home_of(made)

        async def story(seat: Seat) -> None:
            await seat.say(":replicas")
            await seat.until(lambda: seat.rows() == [name])
            await asyncio.to_thread(made.kill_control_plane)
            await seat.until_read("stale: no answer for", "trying again")
            await seat.until(lambda: re.search(r"stale: no answer for [1-9]\d* s", seat.screen()))
            assert seat.rows() == [name]
            await asyncio.to_thread(made.start_control_plane)
            await seat.until(lambda: not seat.reads("stale"))
            await asyncio.to_thread(made.wait, lambda: made.serves(1))
            made.gateway.ctl("scale", "sim-model", "2")
            await seat.until(lambda: len(seat.rows()) == 2)
            await asyncio.to_thread(made.wait, lambda: made.serves(2))
            await seat.until_true(made)
            await seat.say(":events")
            await seat.until_read("vm leads, term 0.1", "vm leads, term 0.2")
            shown, told = seat.rows(), made.events()
            assert sorted(set(shown)) == sorted(shown)
            assert shown == [str(one["seq"]) for one in told[: len(shown)]]

        play(made, story)


def test_a_stream_is_cancelled_after_a_yes_and_its_client_is_told(full: Cluster):
    key, cancelled = full.gateway.make_key(), list[str]()

    async def story(seat: Seat) -> None:
        asked = asyncio.create_task(asyncio.to_thread(stream, full, key))
        await seat.say(":requests")
        await seat.until(lambda: len(seat.rows()) == 1)
        (id,) = seat.rows()
        await seat.press("x")
        await seat.until_read(f"Cancel {id}", "Its client gets an error")
        await seat.press("escape")
        assert not isinstance(seat.app.screen, Dialog)
        await seat.until(lambda: int(seat.picture.running[0]["tokens"]) > 20)
        await seat.press("x")
        await seat.type("it repeats itself")
        await seat.yes()
        await seat.until_read(f"{id} is cancelled")
        await seat.press("enter")
        told = (await asked).split("data: ")
        assert "an operator ended this request" in told[-1]
        assert 20 < len(told) < TOKENS
        cancelled.append(id)
        await seat.until(lambda: seat.rows() == [])
        await seat.press("r")
        await seat.until(lambda: seat.rows() == [id])
        await seat.until_read("cancelled", "an operator ended this request")

    play(full, story)
    assert len(cancelled) == 1
    assert acts(full)[-1] == ("first-start", "requests.cancel", cancelled[0], "it repeats itself")


def stream(made: Cluster, key: str) -> str:
    """The whole answer, as it came; of a minute unless somebody ends it."""
    body, head = chat(stream=True, max_tokens=TOKENS), {"authorization": f"Bearer {key}"}
    url = f"{made.gateway.url}/v1/chat/completions"
    return httpx.post(url, json=body, headers=head, timeout=60, trust_env=False).text


def test_a_viewer_is_shown_no_act_and_no_key_asks_for_one(full: Cluster):
    asked = {"name": "vic", "role": "viewer", "why": "a journey"}
    answer = full.gateway.admin("POST", "/admin/v1/tokens", json=asked).raise_for_status().json()
    before = acts(full)

    async def story(seat: Seat) -> None:
        await seat.until_read("vic (viewer)")
        for place in (":nodes", ":replicas", ":requests", ":leader"):
            await seat.say(place)
            await seat.press(*"cuDmRsxX")
            assert not isinstance(seat.app.screen, Dialog)
            assert not seat.reads("D drain")
        await seat.say(":drain node-1")
        await seat.until_read("drain is for operators")
        assert 403 not in seat.api.refusals

    play(full, story, answer["token"])
    assert acts(full) == before
