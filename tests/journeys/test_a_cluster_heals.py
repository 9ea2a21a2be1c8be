"""A config that says "two replicas, one GPU each": two engines run and serve, and one that is killed is replaced."""

import os
import signal

import trio

from tests.journeys.clustering import Cluster, Traffic, begin, cluster, model, until
from tests.journeys.running import House, values
from tests.journeys.talking import DONE, Clients


async def test_an_engine_that_is_killed_is_replaced_and_requests_keep_being_answered(home: House):
    with cluster(home, model(decode_rate=100)) as made:
        await until(made, lambda: made.serves(2))
        before = {one["name"]: one for one in made.replicas()}
        victim, other = sorted(before)
        assert {one["shards"][0]["node"] for one in before.values()} == {"node-1", "node-2"}
        clients = Clients(made.gateway, made.gateway.make_key())
        async with trio.open_nursery() as nursery:
            plain = begin(Traffic(clients), nursery)
            streams = begin(Traffic(clients, tokens=40, stream=True), nursery)
            await plain.more()
            await streams.more(8)
            os.kill(before[victim]["shards"][0]["pid"], signal.SIGKILL)
            killed_at = trio.current_time()
            await until(made, lambda: made.serves(2) and generation(made, victim) > before[victim]["generation"])
            await plain.more()
            await streams.more(8)
            plain.over = streams.over = True
        after = {one["name"]: one for one in made.replicas()}

        # Requests: a plain one goes elsewhere, of the streams only those that ran there were cut, and were told.
        assert plain.failed() == []
        cut = streams.failed()
        assert len(cut) <= 4
        for one in cut:
            assert one.began_at < killed_at
            assert one.answer is not None
            assert one.answer.whole
            assert DONE not in one.answer.events()
            assert one.answer.events()[-1]["error"]["code"] == "upstream_error"
        assert sum(values(made.gateway.metrics(), "llmgw_requests_total", outcome="ok")) >= len(plain.asked)

        # The replica: the same name, the next generation, another process; the other one knows nothing of it.
        assert after.keys() == before.keys()
        assert after[victim]["generation"] == 1 + max(one["generation"] for one in before.values())
        assert after[victim]["shards"][0]["pid"] != before[victim]["shards"][0]["pid"]
        assert "killed by signal 9" in after[victim]["last_end"]
        assert after[victim]["crashes"] == 1
        assert after[other]["shards"][0]["pid"] == before[other]["shards"][0]["pid"]
        assert after[other]["generation"] == before[other]["generation"]

        told(made, victim, before[victim]["generation"])
        explained(made, victim)


def generation(made: Cluster, name: str) -> int:
    return next(one["generation"] for one in made.replicas() if one["name"] == name)


def told(made: Cluster, victim: str, generation: int) -> None:
    """Each step is an event, in order, with a sentence."""
    events = made.events(subject=victim)
    kinds = [event["kind"] for event in events]
    first, failed = kinds.index("replica.ready"), kinds.index("replica.failed")
    assert first < failed < kinds.index("replica.started", failed) < kinds.index("replica.ready", failed)
    assert events[failed]["sentence"].startswith(f"{victim} failed: on node-1 killed by signal 9; its last line: ")
    assert events[failed]["data"]["generation"] == generation
    assert [event["seq"] for event in events] == sorted({event["seq"] for event in events})


def explained(made: Cluster, victim: str) -> None:
    """Where it went and why not elsewhere: the other node's GPU is taken, in numbers."""
    said = str(made.get(f"/explain/placement/{victim}"))
    assert "node-1" in said
    assert "node-2" in said
    assert "GPU-node-2-0" in said
    assert "claimed" in said
