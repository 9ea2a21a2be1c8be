"""Whoever watches over engines is killed, again and again: engines and their streams know nothing of it."""

import threading
import time

import httpx
import pytest
import trio

from tests.journeys.clustering import Cluster, Traffic, begin, cluster, model, until
from tests.journeys.running import House
from tests.journeys.talking import Clients, chat

TOKENS = 40
READY_WITHIN_S = 15.0  # what is asked for; 5 s is what is promised
often = pytest.mark.parametrize("times", [2, pytest.param(10, marks=pytest.mark.slow)])


@often
async def test_an_agent_that_is_killed_costs_no_engine_and_no_stream(
    home: House, times: int, capsys: pytest.CaptureFixture[str]
):
    with cluster(home, model(decode_rate=15)) as made:
        await until(made, lambda: made.serves(2))
        before, spans = made.running(), []
        clients = Clients(made.gateway, made.gateway.make_key())
        async with trio.open_nursery() as nursery:
            streams = begin(Traffic(clients, TOKENS, stream=True), nursery, places=8, apart_s=0.3)
            for number in range(times):
                spans.append(await agent_dies(made, f"node-{1 + number % 2}"))
            streams.over = True

        assert made.running() == before  # the same processes in the same generations
        assert streams.failed() == []
        assert made.events("replica.failed") == []
        for killed_at, adopted_at in spans:
            through = [one for one in streams.asked if one.began_at < killed_at and one.ended_at > adopted_at]
            assert through, "no stream outlived the agent: nothing was tried"
    with capsys.disabled():
        took = sorted(adopted - killed for killed, adopted in spans)
        print(f"\n{times} agents killed: adopted again after {took[len(took) // 2]:.1f} s, at most {took[-1]:.1f} s")


async def agent_dies(made: Cluster, name: str) -> tuple[float, float]:
    """When it was killed, and when the next one was heard to have adopted its engine."""
    await until(made, lambda: all(one["in_flight"] for one in made.replicas()))
    killed_at = trio.current_time()
    await trio.to_thread.run_sync(made.kill_agent, name)
    await until(made, lambda: not made.node(name)["agent"]["linked"])
    made.start_agent(name)
    await until(made, lambda: adopted(made, name, made.nodes[name].pid))
    return killed_at, trio.current_time()


def adopted(made: Cluster, name: str, agent_pid: int) -> bool:
    shards = [shard for one in made.replicas() for shard in one["shards"] if shard["node"] == name]
    return made.node(name)["agent"]["linked"] and all(shard["adopted"] for shard in shards) and made.serves(2)


@often
async def test_a_control_plane_that_is_killed_costs_no_engine_and_is_ready_again_in_seconds(
    home: House, times: int, capsys: pytest.CaptureFixture[str]
):
    with cluster(home, model(decode_rate=15)) as made:
        await until(made, lambda: made.serves(2))
        before, key, took = made.running(), made.gateway.make_key(), []
        for number in range(times):
            # One that was never served since its predecessor died would be no leader that dies.
            await until(made, lambda: made.serves(2))
            streams = [Reader(made, key) for _ in range(4)]
            await until(made, lambda streams=streams: all(one.pieces > 3 for one in streams))
            made.kill_control_plane()
            began = time.monotonic()
            made.start_control_plane()
            await until(made, made.ready, READY_WITHIN_S)
            took.append(time.monotonic() - began)
            assert answered(made, key)
            for one in streams:
                one.thread.join(5)
                assert isinstance(one.ended, httpx.TransportError), f"in round {number}: {one.ended!r}"
        await until(made, lambda: made.serves(2))

        # The same processes in the same generations; a new leader asks the engines before their nodes have reported.
        await until(made, lambda: made.running() == before)
        assert made.events("replica.failed") == []
        plain = Traffic(Clients(made.gateway, key), tokens=2)
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                begin(plain, nursery)
                await plain.more(8)
                plain.over = True
        assert plain.failed() == []
    with capsys.disabled():
        took.sort()
        print(f"\n{times} control planes killed: ready after {took[len(took) // 2]:.1f} s, at most {took[-1]:.1f} s")


def answered(made: Cluster, key: str) -> bool:
    """Ready is no promise: a request is answered at once."""
    head, url = {"authorization": f"Bearer {key}"}, f"{made.gateway.url}/v1/chat/completions"
    return httpx.post(url, json=chat(max_tokens=1), headers=head, trust_env=False).status_code == 200


class Reader:
    """A client of its own library, reading a stream until it ends, however it ends."""

    def __init__(self, made: Cluster, key: str) -> None:
        self.pieces, self.ended = 0, None
        self._url, self._key = made.gateway.url, key
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        head = {"authorization": f"Bearer {self._key}"}
        url, body = f"{self._url}/v1/chat/completions", chat(stream=True, max_tokens=600)
        try:
            with httpx.stream("POST", url, json=body, headers=head, trust_env=False, timeout=20) as answer:
                answer.raise_for_status()
                for _ in answer.iter_raw():
                    self.pieces += 1
            self.ended = "a whole answer"
        except httpx.HTTPError as error:
            self.ended = error
