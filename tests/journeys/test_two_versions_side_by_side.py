"""Two versions of an engine run side by side, and a model goes from one to the other while clients ask."""

from collections import Counter
from pathlib import Path

import pytest
import trio
from attrs import define, field

from agent.proc import environ
from tests.journeys.clustering import ENGINE, Asked, Cluster, Traffic, begin, cluster, config_of, model, until
from tests.journeys.running import House
from tests.journeys.talking import Clients

A, B = "model-a", "model-b"


def version(home: House, name: str) -> Path:
    """An executable of its own, as two virtual environments would have; its engine says something else."""
    file = home.folder / f"engine-{name}"
    command = " ".join(f'"{word}"' for word in ENGINE)
    file.write_text(f'#!/bin/sh\nVERSION={name} exec {command} --seed {name} "$@"\n')
    file.chmod(0o755)
    return file


@define(eq=False)
class Watch:
    """How many replicas live and how many serve, as often as can be looked."""

    made: Cluster
    live: Counter[int] = field(factory=Counter, init=False)
    serving: Counter[int] = field(factory=Counter, init=False)

    async def run(self, task_status: trio.TaskStatus[trio.CancelScope] = trio.TASK_STATUS_IGNORED) -> None:
        with trio.CancelScope() as scope:
            task_status.started(scope)
            while True:
                found = await trio.to_thread.run_sync(self.made.replicas, A)
                self.live[sum(one["state"] in ("starting", "loading", "ready") for one in found)] += 1
                self.serving[sum(one["in_pool"] for one in found)] += 1
                await trio.sleep(0.05)


@pytest.mark.slow
async def test_a_model_goes_from_one_version_to_the_other_and_no_request_fails(home: House):
    old, new = version(home, "1"), version(home, "2")
    models = model(2, A, [str(old)], decode_rate=100) + model(1, B, [str(new)], decode_rate=100)
    changed = model(2, A, [str(new)], decode_rate=100) + model(1, B, [str(new)], decode_rate=100)
    with cluster(home, models, nodes=0) as made:
        made.add("node-1", gpus=2)
        made.add("node-2", gpus=2)
        await until(made, lambda: made.serves(2, A) and made.serves(1, B))
        assert versions(made, A) == ["1", "1"]
        assert versions(made, B) == ["2"]
        before, other = made.running(A), made.running(B)

        clients, watch = Clients(made.gateway, made.gateway.make_key()), Watch(made)
        async with trio.open_nursery() as nursery:
            plain = begin(Traffic(clients, name=A), nursery)
            streams = begin(Traffic(clients, tokens=40, stream=True, name=A), nursery)
            beside = begin(Traffic(clients, name=B), nursery, places=1)
            await plain.more()
            watching = await nursery.start(watch.run)
            await trio.to_thread.run_sync(made.apply, config_of(made, changed))
            await until(made, lambda: made.serves(2, A) and not made.running(A).keys() & before.keys(), 60)
            watching.cancel()
            await plain.more()
            plain.over = streams.over = beside.over = True

        assert versions(made, A) == ["2", "2"]
        assert plain.failed() == streams.failed() == beside.failed() == []
        assert len({said(one) for one in plain.asked}) == 8  # four questions, and each version's answer to each
        assert max(watch.live) == 3  # one more than wanted, and never another
        assert min(watch.serving) == 2  # never fewer than wanted
        assert made.running(B) == other
        gone = {pid for pid, _ in before.values()}
        assert not gone & {pid for node in made.nodes.values() for pid in node.engine_pids()}


def said(one: Asked) -> str:
    assert one.answer is not None
    return str(one.answer.json()["choices"][0]["message"]["content"])


def versions(made: Cluster, name: str) -> list[str]:
    """Of the processes themselves."""
    return [environ(pid).get("VERSION", "") for pid, _ in made.running(name).values()]
