"""A control plane that takes what is asked and does not answer: what is known of it, and what is told."""

import asyncio
import ssl

import httpx
import pytest
from textual.worker import WorkerFailed

from console.feed import following
from console.feed.listener import Listener
from tests.console.followers import following_them, hurry, run
from tests.console.gateways import Gateway, up
from tests.console.scenes import Scene, played


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    hurry(monkeypatch)


def test_a_gateway_that_hangs_is_stale_since_it_answered_last_and_no_more_once_it_answers(monkeypatch):
    monkeypatch.setattr(following, "LIVE_WITHIN_S", 0.2)

    async def story():
        gateway = Gateway()
        async with up(gateway), following_them(gateway) as console:
            await console.until(lambda p: "m" in p.pools)
            gateway.hang()
            heard_at = console.picture.link.heard_at
            await console.until(lambda p: p.link.down_since is not None)
            link, now = console.picture.link, asyncio.get_running_loop().time()
            assert link.why == f"{gateway.url} is not reachable: no answer in time"
            assert heard_at <= link.down_since <= now - 0.2
            gateway.goes_on()
            await console.until(lambda p: p.link.down_since is None)

    run(story())


def test_while_nobody_has_answered_it_is_known_who_is_asked_and_since_when():
    async def story():
        gateway = Gateway()
        async with up(gateway):
            gateway.hang()
            async with following_them(gateway) as console:
                began = asyncio.get_running_loop().time()
                await console.until(lambda p: p.link.asked)
                assert console.picture.link.asked == gateway.url
                assert console.picture.link.heard_at == pytest.approx(began, abs=5.0)
                gateway.goes_on()
                await console.until(lambda p: p.known)

    run(story())


def test_a_byte_of_the_feed_is_an_answer_too(monkeypatch):
    monkeypatch.setattr(following, "ALWAYS", {})
    monkeypatch.setattr(following, "SNAPSHOT_S", 60.0)

    async def story():
        gateway = Gateway()
        async with up(gateway), following_them(gateway) as console:
            await console.until(lambda p: p.known and gateway.feeds == 1)
            heard_at = console.picture.link.heard_at
            gateway.tell()
            await console.until(lambda p: len(p.events) == 1)
            assert console.picture.link.heard_at > heard_at

    run(story())


@pytest.mark.parametrize("kind", [httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError, httpx.ConnectError])
def test_a_failure_that_does_not_say_why_is_told_in_words_too(kind):
    why = Listener("http://a", "", ssl.create_default_context())._away(kind("")).why

    assert why == "http://a is not reachable: the connection broke"


# -- on the screen -----------------------------------------------------------------------------------------


def test_a_long_reason_for_a_doubt_is_folded_not_cut():
    async def story(scene: Scene) -> None:
        url = "http://control-plane-2.example.net:7442"
        scene.app.model.lost(f"who leads does not answer, and {url} stands by", now=190.0)
        await scene.say(":nodes")
        told = " ".join(scene.text().split())
        assert f"stale: no answer for 10 s, trying again: who leads does not answer, and {url} stands by" in told

    played(story)


def test_a_doubt_is_told_while_nothing_has_failed_yet_and_goes_with_the_answer():
    async def story(scene: Scene) -> None:
        scene.app.model.heard(196.0)
        while "no answer for 4 s" not in scene.text():
            await scene.pilot.pause(0.01)
        scene.app.model.heard(200.0)
        while "no answer for" in scene.text():
            await scene.pilot.pause(0.01)

    played(story)


def test_what_fails_beside_the_screen_is_told_by_its_own_name():
    apps = []

    async def story(scene: Scene) -> None:
        apps.append(scene.app)

        async def fails() -> None:
            raise KeyError("what the gateway did not say")

        scene.app.beside(scene.app, fails, "following")
        while scene.app.is_running:
            await scene.pilot.pause(0.01)

    with pytest.raises(WorkerFailed):  # as a test is told of it
        played(story)
    assert apps[0].return_value.startswith("the console failed: KeyError: 'what the gateway did not say'")
