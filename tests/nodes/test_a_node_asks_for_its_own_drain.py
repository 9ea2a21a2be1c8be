"""The route beside the link by which a node asks to be drained: itself and nobody else, and only of who leads."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from attrs import define, field

from agent.dialing import ask
from llmgw.core.identity import Declined
from llmgw.core.joining import Joined
from llmgw.nodes.registry import NotLeading
from llmgw.wire.agent_joining import BODY_MAX, DRAIN, Denied, DrainAsked, DrainTold, JoinAsked, encode, read
from tests.agent_links import AUTHORITY, ME, Leader, agent_on, until

ASKED = DrainAsked("boot", 60.0, why="new kernel")


@define
class Drains:
    """As ``control.own_drains`` answers; remembers who asked."""

    asked: list[tuple[str, DrainAsked]] = field(factory=list)
    declined: Declined | None = None

    async def ask(self, node: str, asked: DrainAsked) -> DrainTold | Declined:
        self.asked.append((node, asked))
        return self.declined or self.told(node)

    def told(self, node: str) -> DrainTold:
        return DrainTold("draining", "drained", f"agent of {node}", 60.0, ("m-1",), ("m-1 waits",))


@pytest.fixture
async def leader(tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[Leader]:
    leader = await Leader.make(tmp_path / "leader", nursery)
    leader.listener.house.drains = Drains()
    yield leader
    assert leader.failures == []
    leader.store.close()


async def joined(leader: Leader, name: str) -> str:
    given = await leader.joining.join(await leader.token(), JoinAsked(name))
    assert isinstance(given, Joined), given
    return given.credential


async def say(leader: Leader, credential: str, method: str = "PUT", body: bytes | None = None) -> tuple[int, bytes]:
    head = {":method": method, ":path": DRAIN, "authorization": f"Bearer {credential}"}
    answer = await ask(await leader.dial("leader.test", AUTHORITY.pem), "leader.test", head, body)
    return answer.status, bytes(answer.body)


async def test_a_node_asks_for_itself_by_its_credential(autojump_clock, leader):
    await joined(leader, "node-1")
    credential = await joined(leader, "node-2")

    status, body = await say(leader, credential, body=encode(ASKED))
    assert status == 200
    assert leader.listener.house.drains.asked == [("node-2", ASKED)]
    assert read(DrainTold, body).waits_on == ("m-1 waits",)

    status, body = await say(leader, credential, "GET")
    assert (status, read(DrainTold, body).by) == (200, "agent of node-2")


@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_who_does_not_lead_says_who_does(autojump_clock, leader, method):
    credential = await joined(leader, "node-1")
    leader.lead = NotLeading("other.test:7443")

    status, body = await say(leader, credential, method, encode(ASKED) if method == "PUT" else None)
    assert (status, read(Denied, body).leader) == (421, "other.test:7443")
    assert leader.listener.house.drains.asked == []


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{}", 400),
        (b'{"boot": "", "grace_s": 60}', 400),
        (b'{"boot": "b", "grace_s": 0}', 400),
        (b'{"boot": "b", "grace_s": 1e300}', 400),
        (b'{"boot": "b", "grace_s": 60, "at_deadline": "never"}', 400),
        (b" " * (BODY_MAX + 1), 413),
    ],
)
async def test_what_makes_no_sense_is_refused(autojump_clock, leader, body, status):
    credential = await joined(leader, "node-1")

    assert (await say(leader, credential, body=body))[0] == status
    assert leader.listener.house.drains.asked == []


async def test_what_can_not_be_done_now_may_be_tried_again(autojump_clock, leader):
    credential = await joined(leader, "node-1")
    leader.listener.house.drains.declined = Declined("unavailable", "the store is away")

    status, body = await say(leader, credential, body=encode(ASKED))
    assert (status, read(Denied, body).why) == (503, "the store is away")


async def test_a_removed_node_asks_for_nothing(autojump_clock, leader):
    credential = await joined(leader, "node-1")
    await leader.joining.remove(ME, "node-1")

    assert (await say(leader, credential, body=encode(ASKED)))[0] == 401
    assert leader.listener.house.drains.asked == []


@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_other_methods_are_not_there(autojump_clock, leader, method):
    assert (await say(leader, await joined(leader, "node-1"), method))[0] == 404


async def test_without_anybody_who_drains_the_route_is_not_there(autojump_clock, leader):
    leader.listener.house.drains = None
    assert (await say(leader, await joined(leader, "node-1"), "GET"))[0] == 404


async def test_the_link_of_its_agent_stays(autojump_clock, leader, tmp_path, nursery):
    agent = agent_on(tmp_path / "agent", leader.dial, token=await leader.token())
    nursery.start_soon(agent.run)
    await until(lambda: leader.registry.linked())
    node = leader.registry.nodes["node-1"]
    reports = node.counts["reports"]

    for _ in range(5):
        await say(leader, agent.membership.joined.credential, body=encode(ASKED))
    await until(lambda: node.counts["reports"] > reports + 2)
    assert (node.counts["links"], node.counts["replaced"], node.linked) == (1, 0, True)
