"""`llmgw agent drain` beside the agent: it finds who leads, tells what is waited for, and never holds up a shutdown."""

import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define, field

from agent import atomic
from agent.dialing import NoLink
from agent.draining import BEYOND_S, REACH_S, Draining, End, membership_in
from agent.membership import Joined
from agent.places import Places
from agent.proc import AGENT, INSTANCE
from llmgw.core.agent_settings import AgentSettings
from llmgw.core.identity import Declined
from llmgw.core.joining import Joined as Given
from llmgw.nodes.registry import NotLeading
from llmgw.wire.agent_joining import DrainAsked, DrainTold, JoinAsked
from tests.agent_links import AUTHORITY, ME, Leader, until

GRACE_S = 600.0
MOVES = DrainTold("draining", "drained", "agent of node-1", 590.0, ("m-1",), ("m-1 waits for m-2, which is loading",))
DRAINED = DrainTold("drained", "drained", "agent of node-1", said="node-1 is drained after 9 s")
STUCK = DrainTold("blocked", "drained", "agent of node-1", 590.0, ("m-1",), ("m-1 is blocked: no node fits",))


@define
class Drains:
    """``tells``: what, so many seconds after it was asked."""

    tells: Callable[[float], DrainTold]
    asked: list[DrainAsked] = field(factory=list)
    declined: Declined | None = None
    at: float = 0.0

    async def ask(self, node: str, asked: DrainAsked) -> DrainTold | Declined:
        assert node == "node-1"
        self.at = self.at or trio.current_time()
        self.asked.append(asked)
        return self.declined or self.told(node)

    def told(self, node: str) -> DrainTold:
        return self.tells(trio.current_time() - self.at)


@pytest.fixture
async def leader(tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[Leader]:
    leader = await Leader.make(tmp_path / "leader", nursery)
    yield leader
    assert leader.failures == []
    leader.store.close()


@define
class Asking:
    draining: Draining
    drains: Drains
    lines: list[str]
    places: Places


async def asking(
    leader: Leader, folder: Path, tells: Callable[[float], DrainTold], dial: Any = None, **how: Any
) -> Asking:
    given = await leader.joining.join(await leader.token(), JoinAsked("node-1"))
    assert isinstance(given, Given)
    places = Places((folder / "agent").resolve())
    places.prepare()
    joined = Joined(given.cluster, given.node, given.credential, "token")
    atomic.write_value(places.data / "node.json", joined)
    atomic.write(places.data / "ca.pem", AUTHORITY.pem)
    drains, lines = Drains(tells), []
    leader.listener.house.drains = drains
    settings = AgentSettings(servers=how.pop("servers", ("leader.test:7443",)), name="node-1")
    asked = DrainAsked("boot", how.pop("grace_s", GRACE_S))
    return Asking(
        Draining(settings, places, joined, asked, dial or leader.dial, lines.append, **how), drains, lines, places
    )


async def test_it_follows_until_nothing_is_left_and_tells_only_what_is_new(autojump_clock, leader, tmp_path):
    def tells(s: float) -> DrainTold:
        if s > 20:
            return DRAINED
        waits = f"m-1 finishes 3 requests, oldest {s:.0f} s" if s > 10 else f"m-1 waits for m-2, loading for {s:.0f} s"
        return DrainTold("draining", "drained", "agent of node-1", 600 - s, ("m-1",), (waits,))

    one = await asking(leader, tmp_path, tells)
    ended = await one.draining.run()

    assert (ended.how, ended.said) == (End.DRAINED, "node-1 is drained after 9 s")
    assert one.drains.asked == [DrainAsked("boot", GRACE_S)]
    assert one.lines == [
        "leader.test:7443: node-1 is to be drained, says agent of node-1",
        "draining, 600 s left: m-1 waits for m-2, loading for 0 s",
        "draining, 589 s left: m-1 finishes 3 requests, oldest 11 s",
    ]


async def test_what_does_not_change_is_said_again_from_time_to_time(autojump_clock, leader, tmp_path):
    one = await asking(leader, tmp_path, lambda s: MOVES if s < 100 else DRAINED)
    await one.draining.run()
    assert 4 <= len(one.lines) <= 5


async def test_who_does_not_lead_leads_to_who_does(autojump_clock, leader, tmp_path, nursery):
    other = await Leader.make(tmp_path / "other", nursery)
    other.lead = NotLeading("leader.test:7443")
    other.joining = other.listener.house.gatekeeper = leader.joining
    other.listener.house.drains = Drains(lambda s: STUCK)

    async def dial(server: str, ca: bytes | None) -> trio.abc.Stream:
        return await (other if server.startswith("other") else leader).dial(server, ca)

    one = await asking(leader, tmp_path, lambda s: DRAINED, dial, servers=("other.test:7443",))
    assert (await one.draining.run()).how is End.DRAINED
    assert other.listener.house.drains.asked == []
    other.store.close()


async def test_without_a_control_plane_it_gives_up_soon(autojump_clock, leader, tmp_path):
    one = await asking(leader, tmp_path, lambda s: DRAINED)
    leader.reachable, began = False, trio.current_time()

    ended = await one.draining.run()
    assert (ended.how, ended.said) == (
        End.UNREACHABLE,
        "no control plane answers: leader.test: connection refused",
    )
    assert trio.current_time() - began <= REACH_S


async def test_one_that_takes_connections_and_says_nothing_is_none(autojump_clock, leader, tmp_path):
    async def dial(server: str, ca: bytes | None) -> trio.abc.Stream:
        await trio.sleep(10)
        raise NoLink(f"{server} did not answer within 10 s")

    one = await asking(leader, tmp_path, lambda s: DRAINED, dial)
    began = trio.current_time()
    assert (await one.draining.run()).how is End.UNREACHABLE
    assert trio.current_time() - began <= REACH_S


async def test_a_leader_that_is_started_again_in_between_is_asked_again(autojump_clock, leader, tmp_path, nursery):
    one = await asking(leader, tmp_path, lambda s: MOVES if s < 60 else DRAINED)

    async def restarts() -> None:
        await until(lambda: len(one.lines) > 1)
        leader.reachable = False
        await trio.sleep(REACH_S / 2)
        leader.reachable = True

    nursery.start_soon(restarts)
    assert (await one.draining.run()).how is End.DRAINED
    assert len(one.drains.asked) == 1


async def test_a_store_that_comes_back_is_waited_for(autojump_clock, leader, tmp_path, nursery):
    one = await asking(leader, tmp_path, lambda s: DRAINED)
    one.drains.declined = Declined("unavailable", "the store is away")

    async def comes_back() -> None:
        await trio.sleep(REACH_S / 2)
        one.drains.declined = None

    nursery.start_soon(comes_back)
    assert (await one.draining.run()).how is End.DRAINED


async def test_what_has_nowhere_to_go_is_waited_for_with_bounded_patience(autojump_clock, leader, tmp_path):
    one = await asking(leader, tmp_path, lambda s: STUCK, patience_s=40.0)
    began = trio.current_time()

    ended = await one.draining.run()
    assert ended.how is End.BLOCKED
    assert ended.said == "what is left on node-1 has nowhere to go: m-1 is blocked: no node fits"
    assert 40 <= trio.current_time() - began < 45


async def test_a_place_that_is_found_meanwhile_ends_that_patience(autojump_clock, leader, tmp_path):
    def tells(s: float) -> DrainTold:
        return DRAINED if s > 100 else STUCK if s < 30 or 60 < s < 90 else MOVES

    one = await asking(leader, tmp_path, tells, patience_s=40.0)
    assert (await one.draining.run()).how is End.DRAINED


async def test_one_that_ended_blocked_is_told(autojump_clock, leader, tmp_path):
    ended = DrainTold("blocked", "drained", "ann", None, ("m-1",), (), "ends blocked: m-1 is kept")
    one = await asking(leader, tmp_path, lambda s: ended)
    found = await one.draining.run()
    assert (found.how, found.said) == (End.BLOCKED, "ends blocked: m-1 is kept")


async def test_whatever_happens_it_is_over_soon_after_its_grace(autojump_clock, leader, tmp_path):
    one = await asking(leader, tmp_path, lambda s: MOVES, grace_s=30.0)
    began = trio.current_time()

    ended = await one.draining.run()
    assert ended.how is End.BLOCKED
    assert ended.said == "node-1 is not drained, and its time is over: m-1 waits for m-2, which is loading"
    assert trio.current_time() - began == pytest.approx(30 + BEYOND_S)


async def test_an_operator_who_wants_the_node_back_ends_it(autojump_clock, leader, tmp_path):
    back = DrainTold("", "schedulable", "ann")
    one = await asking(leader, tmp_path, lambda s: MOVES if s < 5 else back)
    ended = await one.draining.run()
    assert (ended.how, ended.said) == (End.REFUSED, "node-1 is to be schedulable now, says ann")


async def test_a_node_that_was_removed_is_refused_at_once(autojump_clock, leader, tmp_path):
    one = await asking(leader, tmp_path, lambda s: DRAINED)
    await leader.joining.remove(ME, "node-1", "scrap")
    began = trio.current_time()
    ended = await one.draining.run()
    assert (ended.how, "scrap" in ended.said) == (End.REFUSED, True)
    assert trio.current_time() - began < 1


async def test_no_wait_asks_and_ends(autojump_clock, leader, tmp_path):
    one = await asking(leader, tmp_path, lambda s: MOVES, waits=False)
    assert (await one.draining.run()).how is End.ASKED
    assert len(one.drains.asked) == 1


SILENT = DrainTold("draining", "drained", "agent of node-1", 590.0, ("m-1",), ("node-1 is silent",), heard=False)


async def test_without_agent_and_engines_there_is_nothing_to_wait_for(autojump_clock, leader, tmp_path):
    one = await asking(leader, tmp_path, lambda s: SILENT)
    assert (await one.draining.run()).how is End.DRAINED


async def test_engines_without_an_agent_are_waited_for(autojump_clock, leader, tmp_path):
    one = await asking(leader, tmp_path, lambda s: SILENT, grace_s=20.0)
    marks = {**os.environ, AGENT: one.places.scope, INSTANCE: "m-1.g1.r0"}
    engine = await trio.lowlevel.open_process([sys.executable, "-c", "import time; time.sleep(600)"], env=marks)
    try:
        assert (await one.draining.run()).how is End.BLOCKED
    finally:
        engine.kill()
        await engine.wait()


async def test_nothing_in_the_agents_folder_changes(autojump_clock, leader, tmp_path):
    one = await asking(leader, tmp_path, lambda s: MOVES if s < 5 else DRAINED)
    before = everything(one.places.data)
    await one.draining.run()
    assert everything(one.places.data) == before


def everything(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {str(p): (p.stat().st_mtime_ns, p.read_bytes() if p.is_file() else b"") for p in folder.rglob("*")}


def test_a_folder_without_a_membership_belongs_nowhere(tmp_path):
    assert membership_in(Places(tmp_path / "nothing")) is None


def test_a_membership_that_is_garbage_is_said_to_be_and_left_alone(tmp_path):
    (tmp_path / "node.json").write_text("{")
    with pytest.raises(ValueError, match=r"node\.json can't be read"):
        membership_in(Places(tmp_path))
    assert (tmp_path / "node.json").exists()
