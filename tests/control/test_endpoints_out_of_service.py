"""Static endpoints: out of service when another serves, back at any time, and the same after a restart."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from llmgw.core.drain import AtDeadline, Target
from llmgw.core.drain_plan import Requests
from llmgw.core.fleet import Endpoint, Model, fleet_of
from llmgw.core.identity import Declined
from llmgw.store import audit
from llmgw.store.place import Place
from llmgw.store.sqlite import open_store
from llmgw.store.turn import inline
from tests.clusters import Plane, plane
from tests.control.little_cluster import ANN

FLEET = fleet_of(
    (
        Model("m", endpoints=tuple(Endpoint(f"m/{i}", "m", f"http://127.0.0.1:{8000 + i}") for i in range(2))),
        Model("one", endpoints=(Endpoint("one/0", "one", "http://127.0.0.1:8100"),)),
        Model("run", endpoints=(Endpoint("run-1.g1", "run", "http://127.0.0.1:8200", replica="run-1"),)),
    )
)


@asynccontextmanager
async def control(folder: Path) -> AsyncIterator[Plane]:
    store = open_store(Place(folder, folder / "llmgw.db"), lambda: inline)
    made = await plane(store)
    made.cluster.live.apply(FLEET, trio.current_time())
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.endpoint_targets.run)
            yield made
            nursery.cancel_scope.cancel()
    finally:
        store.close()


async def drain(made: Plane, id: str, **more: Any) -> Any:
    return await made.endpoint_targets.aim(ANN, id, Target.DRAINED, "new disk", **more)


def usable(made: Plane) -> list[str]:
    return [one.id for one in made.cluster.live if one.usable(trio.current_time())]


def busy(made: Plane, id: str, number: int) -> None:
    made.requests[id] = Requests(number, 40.0)


def state(made: Plane, id: str) -> dict[str, Any]:
    status = made.endpoint_targets.status(id)
    assert status is not None
    return status


async def test_it_leaves_the_pool_at_once_where_another_serves_and_is_drained_when_its_requests_have_ended(
    tmp_path, autojump_clock
):
    async with control(tmp_path) as made:
        busy(made, "m/0", 2)
        answer = await drain(made, "m/0")
        assert (answer["confirmed"], answer["said"]) == (True, "m/0 is draining")
        assert "m/0" not in usable(made)
        live = made.cluster.live.find("m/0")
        assert live is not None
        assert live.unusable(0.0) == "taken out of service by ann: new disk"
        await trio.sleep(20)
        assert state(made, "m/0")["waits_on"] == ["m/0 finishes 2 requests, oldest 40 s"]
        made.requests.clear()
        await trio.sleep(1)
        told = state(made, "m/0")
        assert (told["state"], told["left_s"], told["left"]) == ("drained", None, [])
        assert told["said"] == "m/0 is drained after 20 s: no request is left there, 0 were cut"


async def test_the_last_one_serves_until_the_end_of_the_grace_and_is_then_cut(tmp_path, autojump_clock):
    async with control(tmp_path) as made:
        busy(made, "one/0", 3)
        answer = await drain(made, "one/0", grace_s=30)
        assert answer["drain"]["state"] == "blocked"
        assert answer["drain"]["waits_on"] == ["one/0 is blocked: no other endpoint of one serves"]
        await trio.sleep(29)
        assert "one/0" in usable(made)
        await trio.sleep(2)
        assert "one/0" not in usable(made)
        assert (state(made, "one/0")["state"], state(made, "one/0")["cut"]) == ("drained", 3)


async def test_or_is_kept_where_that_was_asked(tmp_path, autojump_clock):
    async with control(tmp_path) as made:
        await drain(made, "one/0", grace_s=30, at_deadline=AtDeadline.KEEP)
        await trio.sleep(60)
        told = state(made, "one/0")
        assert (told["state"], told["left_s"]) == ("blocked", None)
        assert told["said"].endswith("it serves on: one/0 is blocked: no other endpoint of one serves")
        assert "one/0" in usable(made)


async def test_of_two_that_are_drained_at_once_one_serves(tmp_path, autojump_clock):
    async with control(tmp_path) as made:
        await drain(made, "m/0")
        answer = await drain(made, "m/1")
        assert answer["drain"]["state"] == "blocked"
        assert "m/1" in usable(made)
        # As soon as the first one is back, the second goes.
        await made.endpoint_targets.aim(ANN, "m/0", Target.SCHEDULABLE)
        await trio.sleep(1)
        assert "m/0" in usable(made)
        assert state(made, "m/1")["state"] == "drained"


async def test_it_is_undone_at_any_step_and_who_waits_is_told(tmp_path, autojump_clock):
    async with control(tmp_path) as made:
        news = []
        made.cluster.live.on_news = news.append
        busy(made, "m/0", 1)
        await drain(made, "m/0")
        said = await made.endpoint_targets.aim(ANN, "m/0", Target.SCHEDULABLE)
        assert said["said"] == "m/0 is in service"
        assert "m/0" in usable(made)
        assert [one.id for one in news] == ["m/0"]
        assert made.endpoint_targets.status("m/0") is None
        again = await made.endpoint_targets.aim(ANN, "m/0", Target.SCHEDULABLE)
        assert again["said"] == said["said"]


async def test_it_outlives_a_restart_and_is_audited(tmp_path, autojump_clock):
    async with control(tmp_path) as made:
        busy(made, "m/0", 1)
        await drain(made, "m/0", grace_s=100)
        await trio.sleep(10)
    async with control(tmp_path) as made:
        assert "m/0" not in usable(made)
        await trio.sleep(1)
        assert state(made, "m/0")["state"] == "drained"
        [act] = await made.store.read(audit.recent)
        assert (act.who, act.what, act.subject, act.why) == ("ann", "endpoints.target", "m/0", "new disk")
        [one] = made.endpoint_targets.drains()
        assert (one["subject"], one["by"]) == ("endpoint/m/0", "ann")


async def test_the_last_word_counts_and_what_is_not_said_again_stays(tmp_path, autojump_clock):
    async with control(tmp_path) as made:
        busy(made, "m/0", 1)
        aim = made.endpoint_targets.aim
        await drain(made, "m/0", grace_s=500, at_deadline=AtDeadline.KEEP)
        since = made.endpoint_targets.held["m/0"].at
        await trio.sleep(20)
        await aim(ANN, "m/0", Target.DRAINED, "old disk")
        await aim(ANN, "m/0", Target.DRAINED, "")
        held = made.endpoint_targets.held["m/0"]
        assert (held.why, held.at, round(state(made, "m/0")["left_s"])) == ("old disk", since, 480)
        await aim(ANN, "m/0", Target.DRAINED, grace_s=100)
        assert (state(made, "m/0")["left_s"], state(made, "m/0")["at_deadline"]) == (100, "keep")
        assert made.endpoint_targets.held["m/0"].why == "old disk"
        assert [act.why for act in await made.store.read(audit.recent)] == ["", "old disk", "new disk"]


async def test_a_dry_run_tells_who_serves_on_and_changes_nothing(tmp_path, autojump_clock):
    async with control(tmp_path) as made:
        busy(made, "m/0", 2)
        for id, why, blocked in (("m/0", "m/1 serves on", False), ("one/0", "no other endpoint of one serves", True)):
            dry = await drain(made, id, dry_run=True)
            [move] = dry["plan"]["moves"]
            assert (move["why"], move["blocked"]) == (why, blocked)
        assert made.endpoint_targets.held == {}


async def test_what_is_no_static_endpoint_is_refused_with_the_way_out(tmp_path, autojump_clock):
    async with control(tmp_path) as made:
        replica, unknown = await drain(made, "run-1.g1"), await drain(made, "m/7")
        cordoned = await made.endpoint_targets.aim(ANN, "m/0", Target.CORDONED)
        assert isinstance(replica, Declined)
        assert isinstance(unknown, Declined)
        assert isinstance(cordoned, Declined)
        assert (replica.code, replica.hint) == ("refused", "llmgw ctl move run-1, or llmgw ctl drain its node")
        assert (unknown.code, "did you mean 'm/" in unknown.hint) == ("not_found", True)
        assert cordoned.hint == "llmgw ctl drain endpoint/m/0"


async def test_an_endpoint_that_a_reload_brings_back_stays_out(tmp_path, autojump_clock):
    async with control(tmp_path) as made:
        await drain(made, "m/0")
        made.cluster.live.apply(fleet_of(()), trio.current_time())
        assert state(made, "m/0")["state"] == "drained"
        made.cluster.live.apply(FLEET, trio.current_time())
        assert "m/0" not in usable(made)
        assert "m/1" in usable(made)
