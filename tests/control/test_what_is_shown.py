"""State and message come from one moment and agree; what is not known is unknown, with its age (C19)."""

import trio

from llmgw.control.node_views import node_json
from llmgw.core.shards import Exit
from tests.control.little_cluster import SPEC, little_cluster, want
from tests.control.little_nodes import Manner

TWO = {"node-1": 1, "node-2": 1}


async def test_each_state_has_the_reason_that_belongs_to_it(tmp_path, autojump_clock):
    manners = {"m": Manner(starts_s=4, health_after_s=5, ready_after_s=15, releases_s=5)}
    async with little_cluster(tmp_path, {"node-1": 1}, [want()], manners=manners) as little:
        seen = []
        for step in range(700):
            for shown in little.now and [little.shown("m-1")]:
                if not seen or seen[-1] != (shown["state"], shown["why"]):
                    seen.append((shown["state"], shown["why"]))
                assert shown["serving"] == (shown["state"] == "ready")
                assert shown["in_pool"] == (f"m-1.g{shown['generation']}" in little.routed())
                states = {shard["state"] for shard in shown["shards"]}
                assert ("ready" in states) == (shown["state"] == "ready"), shown
            if step == 400:
                little.shard("m-1").kill(Exit(code=3))
            await trio.sleep(0.1)
        told = [(state, why) for state, why in seen if why]
        assert ("starting", "node-1 has not taken it in yet") in told
        assert ("loading", "/health: no engine") not in told
        assert ("failed", "on node-1 exited with 3") in told
        assert ("stopping", "on node-1 releasing: exited with 3; 20000 MiB of GPU memory") in told
        assert seen[-1] == ("ready", "")
        states = [state for state, _ in seen]
        assert [state for i, state in enumerate(states) if i == 0 or states[i - 1] != state] == [
            "waiting", "starting", "loading", "ready", "failed", "stopping", "waiting", "starting", "loading", "ready",
        ]  # fmt: skip


async def test_unknown_is_unknown_with_its_age_and_still_in_the_pool(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, TWO, [want()]) as little:
        await little.until(little.serving)
        little.home("m-1").cut = True
        await trio.sleep(40)
        shown = little.shown("m-1")
        assert shown["state"] == "unknown"
        age = shown["shards"][0]["age_s"]
        assert 38 <= age <= 41
        assert shown["why"] == shown["shards"][0]["why"] == f"node-1 is unreachable, silent for {age:.0f} s"
        assert shown["shards"][0]["state"] == "unknown"
        assert shown["in_pool"]  # its engine answers, and nobody else does
        node = node_json(little.there.cluster, "node-1")
        assert node["state"] == "unreachable"
        assert node["trouble"] == f"unreachable: silent for {age:.0f} s"
        assert node["heard_age_s"] == age


async def test_a_shard_that_was_proved_is_shown_so_while_the_other_is_unknown(tmp_path, autojump_clock):
    pair = [want(spec=SPEC.__class__("sim", gpus=1, gpu_memory_mib=20_000, shards=2))]
    async with little_cluster(tmp_path, TWO, pair) as little:
        await little.until(little.serving)
        little.home("m-1", 1).cut = True
        await little.until(lambda: little.shown("m-1")["state"] == "unknown")
        assert [shard["state"] for shard in little.shown("m-1")["shards"]] == ["ready", "unknown"]


async def test_a_stopped_agents_maintenance_and_silence_are_both_told(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, TWO, [want()]) as little:
        await little.until(little.serving)
        await little.aim("node-1", "cordoned", "new fans")
        little.nodes["node-1"].cut = True
        await trio.sleep(100)
        node = node_json(little.there.cluster, "node-1")
        assert node["target"]["target"] == "cordoned"
        assert node["target"]["why"] == "new fans"
        assert node["state"] == "unreachable"
        assert node["nothing_lands_because"].startswith("unreachable: silent for")
        little.nodes["node-1"].cut = False
        await little.until(lambda: node_json(little.there.cluster, "node-1")["state"] == "ready")
        assert node_json(little.there.cluster, "node-1")["nothing_lands_because"] == "cordoned by ann: new fans"
