"""A node that shuts down asks to be drained until it boots again; what an operator asked of it stands above that."""

import contextlib

import trio

from llmgw.core.drain import AtDeadline, Target
from llmgw.core.drain_plan import Requests
from llmgw.core.identity import Declined
from llmgw.store import audit
from llmgw.wire.agent_joining import DrainAsked, DrainTold
from tests.control.little_cluster import ANN, Little, little_cluster, want

BOOT, NEXT = "boot", "another boot"
ASKED = DrainAsked(BOOT, 600.0)


@contextlib.asynccontextmanager
async def serving(tmp_path, nodes: int = 2):
    async with little_cluster(tmp_path, {f"node-{n}": 1 for n in range(nodes)}, [want()]) as little:
        await little.until(lambda: little.serving() == ["m-1"])
        yield little


async def asks(little: Little, name: str, asked: DrainAsked = ASKED) -> DrainTold:
    told = await little.there.own_drains.ask(name, asked)
    assert isinstance(told, DrainTold), told
    return told


def state(little: Little, name: str) -> str:
    return little.there.own_drains.told(name).state


def aim(little: Little, name: str) -> tuple[str, str, str]:
    record = little.there.joining.nodes[name]
    return record.target, record.target_by, record.target_why


async def boots(little: Little, name: str, boot: str = NEXT, down_s: float = 10.0) -> None:
    node = little.nodes[name]
    node.cut = True
    await trio.sleep(down_s)
    for shard in node.shards.values():
        shard.kill()
    node.shards.clear()
    node.boot, node.cut = boot, False


async def operator(little: Little, name: str, target: Target, **how) -> None:
    told = await little.there.targets.aim(ANN, name, target, "fans", **how)
    assert not isinstance(told, Declined), told


async def test_it_is_left_replacement_first_and_comes_back_by_itself_with_its_next_boot(autojump_clock, tmp_path):
    async with serving(tmp_path) as little:
        home = little.home("m-1").name

        told = await asks(little, home)
        assert (told.state, told.left, told.by) == ("draining", ("m-1",), f"agent of {home}")
        await little.until(lambda: state(little, home) == "drained")
        assert little.serving() == ["m-2"]
        assert little.nodes[home].running() == []
        assert all(routes["m"] for _, routes in little.routes if routes)

        await boots(little, home)
        await little.until(lambda: aim(little, home) == ("schedulable", "", ""))
        assert little.there.joining.nodes[home].drain is None
        last = little.told("node.target")[-1].sentence
        assert last == f"{home} has booted again, so it is schedulable as it was before it asked to be drained"


async def test_its_agent_started_again_in_the_same_boot_changes_nothing(autojump_clock, tmp_path):
    async with serving(tmp_path) as little:
        home = little.home("m-1").name
        await asks(little, home)
        await little.until(lambda: state(little, home) == "drained")

        await boots(little, home, boot=BOOT)
        await trio.sleep(60)
        assert aim(little, home)[0] == "drained"


async def test_a_leader_that_began_since_gives_it_back_as_well(autojump_clock, tmp_path):
    async with serving(tmp_path) as little:
        home = little.home("m-1").name
        await asks(little, home)
        await little.until(lambda: state(little, home) == "drained")
        await little.leader_dies()
        little.nodes[home].boot = NEXT
        await little.lead()

        await little.until(lambda: aim(little, home)[0] == "schedulable")


async def test_a_cordon_by_an_operator_holds_again_after_the_boot(autojump_clock, tmp_path):
    async with serving(tmp_path) as little:
        home = little.home("m-1").name
        await operator(little, home, Target.CORDONED)
        at = little.there.joining.nodes[home].target_at

        await asks(little, home)
        await little.until(lambda: state(little, home) == "drained")
        assert little.serving() == ["m-2"]

        await boots(little, home)
        await little.until(lambda: aim(little, home) == ("cordoned", "ann", "fans"))
        assert little.there.joining.nodes[home].target_at == at


async def test_and_still_does_if_it_shuts_down_twice_before_it_was_heard(autojump_clock, tmp_path):
    async with serving(tmp_path) as little:
        home = little.home("m-1").name
        await operator(little, home, Target.CORDONED)
        await asks(little, home)
        little.nodes[home].cut = True
        await trio.sleep(10)
        await asks(little, home, DrainAsked("in between", 600.0))

        await boots(little, home)
        await little.until(lambda: aim(little, home) == ("cordoned", "ann", "fans"))


async def test_an_operators_drain_is_followed_and_never_lifted(autojump_clock, tmp_path):
    async with serving(tmp_path) as little:
        home = little.home("m-1").name
        await operator(little, home, Target.DRAINED, grace_s=900.0)

        told = await asks(little, home)
        assert told.by == "ann"
        assert told.left_s is not None
        assert told.left_s > 800
        await little.until(lambda: state(little, home) == "drained")

        await boots(little, home)
        await trio.sleep(60)
        assert aim(little, home) == ("drained", "ann", "fans")


async def test_a_drain_of_its_own_that_an_operator_asks_for_too_outlives_the_boot(autojump_clock, tmp_path):
    async with serving(tmp_path) as little:
        home = little.home("m-1").name
        await asks(little, home)
        await operator(little, home, Target.DRAINED)
        await little.until(lambda: state(little, home) == "drained")

        await boots(little, home)
        await trio.sleep(60)
        assert aim(little, home) == ("drained", "ann", "fans")


async def test_an_operator_who_wants_it_back_is_heard(autojump_clock, tmp_path):
    async with serving(tmp_path) as little:
        home = little.home("m-1").name
        await asks(little, home)
        await operator(little, home, Target.SCHEDULABLE)

        told = little.there.own_drains.told(home)
        assert (told.state, told.target, told.by) == ("", "schedulable", "ann")


async def test_asking_twice_is_asking_once(autojump_clock, tmp_path):
    async with serving(tmp_path) as little:
        home = little.home("m-1").name
        await asks(little, home)
        first = little.there.joining.nodes[home]
        await trio.sleep(1)
        await asks(little, home, DrainAsked(BOOT, 5.0))
        assert little.there.joining.nodes[home].drain.ends_at == first.drain.ends_at
        assert len(little.told("node.target")) == 1


async def test_one_that_ended_blocked_may_be_asked_for_again(autojump_clock, tmp_path):
    async with serving(tmp_path, nodes=1) as little:
        await asks(little, "node-0", DrainAsked(BOOT, 20.0, AtDeadline.KEEP))
        await little.until(lambda: little.there.own_drains.told("node-0").left_s is None)
        assert state(little, "node-0") == "blocked"
        assert little.serving() == ["m-1"]

        told = await asks(little, "node-0", DrainAsked(BOOT, 20.0))
        assert told.left_s is not None
        await little.until(lambda: state(little, "node-0") == "drained")


async def test_its_agents_link_from_before_the_boot_gives_nothing_back(autojump_clock, tmp_path):
    async with serving(tmp_path) as little:
        home = little.home("m-1").name
        little.nodes[home].cut = True
        little.there.registry.nodes[home].link = None
        await trio.sleep(1)

        await asks(little, home, DrainAsked(NEXT, 600.0))
        await trio.sleep(30)
        assert aim(little, home)[0] == "drained"
        assert not little.there.own_drains.told(home).heard


async def test_what_is_waited_for_is_told_and_who_asked_is_written_down(autojump_clock, tmp_path):
    async with serving(tmp_path) as little:
        home = little.home("m-1").name
        endpoint = little.there.cluster.rows["m-1"].endpoint_id
        little.there.requests[endpoint] = Requests(2, 30.0)

        await asks(little, home, DrainAsked(BOOT, 600.0, why="new kernel"))
        await little.until(lambda: "m-2" in "".join(little.there.own_drains.told(home).waits_on))
        acts = await little.there.store.read(lambda conn: audit.recent(conn, 5))
        act = next(one for one in acts if one.what == "nodes.target")
        assert (act.who, act.subject, act.after, act.why) == (f"agent of {home}", home, "drained", "new kernel")


async def test_without_a_store_it_is_refused(autojump_clock, tmp_path):
    async with serving(tmp_path) as little:
        little.store_goes_away()
        told = await little.there.own_drains.ask("node-0", ASKED)
        little.store_comes_back()
        assert isinstance(told, Declined)
        assert told.message == "nothing can be asked of node-0 now: disk full"
