"""What is said of drains is so: how many were replaced and cut, what a silent node has obeyed, what it waits for."""

import json

from llmgw.core.drain import AtDeadline, Target
from llmgw.nodes.limits import ClusterLimits
from llmgw.tasks.memory import MemoryStream
from tests.control.little_cluster import ANN, little_cluster, want
from tests.control.little_nodes import Shard
from tests.control.test_nodes_out_of_service import TWO, aim, busy, drain, state


async def test_a_replica_that_is_stopped_without_another_in_its_place_was_not_replaced(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, {"node-1": 1}, [want()]) as little:
        await little.until(little.serving)
        busy(little, "m-1", 2)
        await drain(little, "node-1", grace_s=20, at_deadline=AtDeadline.STOP)
        await little.until(lambda: state(little, "node-1")["state"] == "drained")
        told = state(little, "node-1")
        assert (told["replaced"], little.there.targets.replaced) == ([], 0)
        assert told["said"].endswith("no process is left, at most 2 requests were cut")


async def test_what_was_replaced_is_counted_once(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, TWO, [want()]) as little:
        await little.until(little.serving)
        node = little.home("m-1").name
        await drain(little, node)
        await little.until(lambda: state(little, node)["state"] == "drained")
        assert (state(little, node)["replaced"], little.there.targets.replaced) == (["m-1"], 1)


async def test_a_node_that_had_obeyed_is_called_silent_and_not_disobedient(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, TWO, [want()], times=ClusterLimits()) as little:
        await little.until(little.serving)
        node = little.home("m-1")
        assert (await aim(little, node.name, Target.CORDONED))["confirmed"]
        node.cut = True
        await little.until(lambda: little.there.cluster.observe().nodes[node.name].trouble)
        said = (await aim(little, node.name, Target.CORDONED))["said"]
        assert said.startswith(f"{node.name} is cordoned, unconfirmed: it is unreachable, silent for ")
        assert said.endswith("; until then it had obeyed all it was sent")


async def test_a_silent_node_has_no_fine_dry_run_and_its_drain_says_what_it_waits_for(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, TWO, [want()], times=ClusterLimits()) as little:
        await little.until(little.serving)
        node = little.home("m-1")
        node.cut = True
        await little.until(lambda: little.there.cluster.observe().nodes[node.name].trouble)
        dry = await little.there.targets.aim(ANN, node.name, Target.DRAINED, dry_run=True)
        (move,) = dry["plan"]["moves"]
        assert (move["blocked"], move["to"]) == (True, [])
        assert f"llmgw ctl nodes lost {node.name}" in move["why"]
        await drain(little, node.name)
        silence, waits = state(little, node.name)["waits_on"]
        assert silence.startswith(f"{node.name} is unreachable, silent for ")
        assert waits.startswith(f"m-1 waits until {node.name} reports, or for ")
        assert waits.endswith(f"s (cluster.node_grace), or for `llmgw ctl nodes lost {node.name}`")
        await little.until(lambda: little.serving() == ["m-2"], 120)


async def test_requests_that_came_through_another_control_plane_are_what_it_waits_for(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, TWO, [want()]) as little:
        await little.until(little.serving)
        node = little.home("m-1").name
        stream = await elsewhere_asked(little.shard("m-1"), tokens=3000)
        await drain(little, node)
        waits = "m-1 waits for its engine, which still has 1 request, none of them of this control plane"
        await little.until(lambda: state(little, node)["waits_on"] == [waits])
        stream.close()
        await little.until(lambda: state(little, node)["waits_on"] == ["m-1 has no request left and ends"], 5)
        await little.until(lambda: state(little, node)["state"] == "drained")


async def elsewhere_asked(shard: Shard, tokens: int) -> MemoryStream:
    """A stream that this leader's gateway knows nothing of."""
    messages, more = [{"role": "user", "content": "hi"}], {"stream": True, "ignore_eos": True}
    body = json.dumps({"model": "m", "messages": messages, "max_tokens": tokens, **more}).encode()
    stream = shard.listener.connect()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: e\r\n"
        f"authorization: Bearer {shard.launch.key}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    await stream.send(head.encode() + body)
    assert b" 200 " in await stream.receive()
    return stream
