"""Engines that say they are well and answer nothing, and those that only take their time (C17)."""

from contextlib import asynccontextmanager
from itertools import pairwise

import attrs
import trio

from llmgw.core.bands import AdmissionLimits
from llmgw.core.replicas import ReplicaLimits
from llmgw.core.retry import RetryBudget
from llmgw.gateway.admission import Admission
from llmgw.gateway.limits import RelayLimits
from llmgw.tasks.alarms import Alarms
from llmgw.tasks.memory import MemoryListener
from tests.control.little_cluster import SPEC, little_cluster, want
from tests.control.little_nodes import Manner
from tests.gateway import world

TWO = {"node-1": 1, "node-2": 1}
PATIENT = RelayLimits(first_token=5000, idle=5000, total=50_000)


@asynccontextmanager
async def clients(little):
    """The client's door before the cluster's pools."""
    live, alarms, listener = little.there.cluster.live, Alarms(), MemoryListener()
    admission = Admission(live, AdmissionLimits(), alarms)
    gate = world._gate(live, world._ring(frozenset()), PATIENT, RetryBudget(0.2, 10), admission)
    door = world._door(gate, alarms, None, frozenset())
    async with trio.open_nursery() as services, trio.open_nursery() as connections:
        services.start_soon(alarms.run)
        services.start_soon(door.serve, [listener], connections)
        yield lambda: world.Client(listener.connect())
        services.cancel_scope.cancel()
        connections.cancel_scope.cancel()


async def ask(client, stream, tokens):
    body = world.chat(stream, max_tokens=tokens, ignore_eos=True)
    await client.post("/v1/chat/completions", body)
    return client


async def test_one_that_makes_no_token_leaves_the_pool_and_is_restarted(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, TWO, [want(n=2)], samples=True) as little, clients(little) as client:
        await little.until(lambda: len(little.serving()) == 2)
        asked = [await ask(client(), True, 5000) for _ in range(2)]
        for one in asked:
            await one.until(b"data:")
        live = {one.endpoint.replica: one.in_flight for one in little.there.cluster.live}
        assert live == {"m-1": 1, "m-2": 1}
        old = little.shard("m-1")
        old.wedge()
        wedged = autojump_clock.current_time()
        await little.until(lambda: little.routed() == ["m-2.g2"])
        assert 30 <= autojump_clock.current_time() - wedged <= 33
        assert little.shown("m-1")["why"].startswith("out of the pool: no token for 30 s")
        assert not little.shown("m-1")["in_pool"]
        await little.until(lambda: len(little.serving()) == 2, 90)
        [failed] = little.told("replica.failed")
        assert failed.subject == "m-1"
        assert "unwell: no answer to a request for one token within 10 s" in failed.sentence
        assert little.there.cluster.rows["m-1"].generation == 3
        assert "m-2.g2" in little.routed()
        for one in asked:
            one.leave()


async def test_one_that_is_idle_and_hangs_is_found_out_by_canaries(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, TWO, [want(n=2)]) as little:
        await little.until(lambda: len(little.serving()) == 2)
        little.shard("m-1").wedge()
        took = await little.until(lambda: little.routed() == ["m-2.g2"])
        assert took <= 10 + 2 * 10 + 2 + 1  # between canaries, and two of them
        await little.until(lambda: little.told("replica.failed"), 60)
        await little.until(lambda: len(little.serving()) == 2)


async def test_a_long_stream_that_gets_on_stays_where_it_is(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, {"node-1": 1}, [want()], samples=True) as little, clients(little) as client:
        await little.until(little.serving)
        began = autojump_clock.current_time()
        one = await ask(client(), True, 5000)  # 100 s of it
        answer = await one.answer()
        assert answer.whole
        assert autojump_clock.current_time() - began > 95
        assert not little.told("replica.out")


async def test_a_long_plain_answer_of_an_engine_without_counters_is_not_a_hang(tmp_path, autojump_clock):
    """Nothing comes of it until it comes whole; its canaries are not sent either, for it may do one at a time."""
    spec = attrs.evolve(SPEC, speaks="openai")
    async with little_cluster(tmp_path, {"node-1": 1}, [want(spec=spec)]) as little, clients(little) as client:
        await little.until(little.serving)
        one = await ask(client(), False, 5000)
        answer = await one.answer()
        assert answer.status == 200
        assert not little.told("replica.out")


async def test_of_a_model_that_hangs_altogether_one_restarts_after_another_and_not_for_ever(tmp_path, autojump_clock):
    limits = ReplicaLimits(restarts_per_hour=3, restart_backoff=1)
    async with little_cluster(tmp_path, TWO, [want(n=2)], limits) as little:
        await little.until(lambda: len(little.serving()) == 2)
        for _ in range(2):
            for name in little.serving():
                little.shard(name).wedge()
            await trio.sleep(200)
        times = [one.at for one in little.told("replica.failed")]
        assert len(times) == 3
        assert min(later - earlier for earlier, later in pairwise(times)) >= 1
        assert len(little.serving()) == 1
        assert "3 restarts within an hour" in little.there.passes.said
        assert "unwell" in little.shown("m-2")["why"]


async def test_one_that_says_it_is_well_and_never_answers_is_started_again(tmp_path, autojump_clock):
    """Its log grows and its CPU is busy all the time: that is no progress once it has loaded."""
    spec = attrs.evolve(SPEC, start_within_s=60)
    manners = {"m-1.g1.r0": Manner(health_after_s=1, ready_after_s=1e6)}
    async with little_cluster(tmp_path, {"node-1": 1}, [want(spec=spec)], manners=manners) as little:
        took = await little.until(lambda: little.told("replica.failed"), 100)
        assert 60 <= took <= 66
        [failed] = little.told("replica.failed")
        assert "no progress for 61 s while it started: no answer to a request" in failed.sentence
        await little.until(little.serving)


async def test_one_that_hangs_while_nobody_leads_is_not_adopted_for_ever(tmp_path, autojump_clock):
    spec = attrs.evolve(SPEC, start_within_s=60)
    async with little_cluster(tmp_path, {"node-1": 1}, [want(spec=spec)]) as little:
        await little.until(little.serving)
        little.shard("m-1").wedge()
        await little.leader_dies()
        await little.lead()
        await little.until(lambda: little.told("replica.failed"), 70)
        await little.until(little.serving)
