"""A move can be taken back or sent elsewhere, and one that has no place any more holds up nobody."""

import pytest
import trio

from llmgw.control.acting import Acting
from llmgw.core.drain import Target
from llmgw.core.identity import Declined
from tests.control.little_cluster import ANN, Little, little_cluster, want
from tests.control.little_nodes import Manner

FOUR = {f"node-{i}": 1 for i in range(4)}


async def stuck(little: Little) -> tuple[Acting, str]:
    """m-1 is to go to a node that is cordoned before its replacement has been placed."""
    await little.until(lambda: len(little.serving()) == 2)
    homes = {little.home(name).name for name in little.serving()}
    other = next(name for name in FOUR if name not in homes)
    async with little.there.cluster.turn:
        pass  # no pass is at work
    await little.acting().move(ANN, "m-1", [other])
    await little.there.targets.aim(ANN, other, Target.CORDONED)
    await little.until(lambda: "m-3" in little.now and "1 cordoned" in little.now["m-3"].replica.why)
    return little.acting(), other


async def test_a_move_that_is_stuck_is_taken_back_by_the_name_of_either(tmp_path, autojump_clock):
    for name in ("m-1", "m-3"):
        async with little_cluster(tmp_path / name, FOUR, [want(n=2)]) as little:
            acting, _ = await stuck(little)
            assert await acting.cancel_move(ANN, name, "no") == {"replica": "m-1", "cancelled": True}
            await little.quiet()
            assert sorted(little.there.cluster.rows) == little.serving() == ["m-1", "m-2"]
            again = await acting.cancel_move(ANN, "m-1")
            assert isinstance(again, Declined)
            assert again.message == "m-1 is not being moved"
            assert (await acting.cancel_move(ANN, "m-9")).code == "not_found"


async def test_or_sent_elsewhere(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, FOUR, [want(n=2)]) as little:
        acting, cordoned = await stuck(little)
        homes = {little.home(name).name for name in little.serving()}
        free = next(name for name in FOUR if name not in {*homes, cordoned})
        assert (await acting.move(ANN, "m-1", [free]))["to"] == [free]
        await little.until(lambda: little.serving() == ["m-2", "m-4"])
        assert little.home("m-4").name == free


async def test_a_drain_of_another_of_its_model_goes_on(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, FOUR, [want(n=2)]) as little:
        await stuck(little)
        node = little.home("m-2")
        await little.there.targets.aim(ANN, node.name, Target.DRAINED, grace_s=120)
        await little.until(lambda: not node.running(), 60)
        assert len(little.serving()) == 2


@pytest.mark.parametrize("after_s", [0, 2, 5, 9, 13, 14, 16, 20])
async def test_while_the_old_one_is_there_it_stays_or_comes_back(tmp_path, autojump_clock, after_s):
    async with little_cluster(tmp_path, FOUR, [want()], manners={"m-2": Manner(ready_after_s=3)}) as little:
        await little.until(little.serving)
        live = little.there.cluster.live.find("m-1.g1")
        await little.acting().move(ANN, "m-1")
        live.in_flight = 1
        await trio.sleep(after_s)
        await little.acting().cancel_move(ANN, "m-1")
        live.in_flight = 0
        for _ in range(400):
            assert little.serving()
            await trio.sleep(0.1)
        assert sorted(little.there.cluster.rows) == little.serving() == ["m-1"]


async def test_one_that_has_left_its_place_for_a_move_is_freed_too(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, FOUR, [want()], manners={"m-1": Manner(ready_after_s=1000)}) as little:
        await little.until(lambda: "m-1" in little.now and little.now["m-1"].shards)
        other = next(name for name in FOUR if name != little.home("m-1").name)
        await little.acting().move(ANN, "m-1", [other])
        await little.there.targets.aim(ANN, other, Target.CORDONED)
        await little.until(lambda: "1 cordoned" in little.now["m-1"].replica.why)
        little.manners.clear()
        await little.acting().cancel_move(ANN, "m-1")
        await little.until(little.serving)
