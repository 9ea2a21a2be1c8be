"""Shadow mode on the road: nobody is held, and the culprit is named."""

import pytest
import trio
from trio.testing import MockClock

from llmgw.core.bands import AdmissionLimits
from llmgw.core.fleet import Engine as Kind
from llmgw.core.identity import Band
from llmgw.gateway.shadow import Shadow
from llmgw.gateway.shadow_report import quantile, report
from tests.gateway.engine_bytes import LAST, SSE_HEAD, chunk, delta
from tests.gateway.test_road_admission import PATH, RING, text_of
from tests.gateway.world import Caller, Engine, chat, world


class OneSlot:
    """An engine that serves one at a time, first come, first served: two seconds, its first token after one."""

    def __init__(self) -> None:
        self.slot = trio.StrictFIFOLock()

    async def script(self, caller: Caller) -> None:
        while await caller.request() is not None:
            async with self.slot:
                await trio.sleep(1)
                await caller.send(SSE_HEAD + chunk(delta("a")))
                await trio.sleep(1)
                await caller.send(chunk(b"data: [DONE]\n\n") + LAST)


async def test_the_culprits_band_and_tenant_are_named_and_nobody_is_held(autojump_clock: MockClock) -> None:
    limits = AdmissionLimits(mode="shadow")
    engine = Engine(OneSlot().script, kind=Kind.OPENAI, options={"capacity": 1})
    async with world(engine, ring=RING, admission=limits) as w:
        w.gate.shadow = shadow = Shadow(w.live, limits)

        async def asks(tenant: str, band: Band, at: float) -> None:
            await trio.sleep(at)
            client = w.client()
            await client.post(PATH, chat(True), key=text_of(tenant, band))
            assert (await client.answer()).status == 200

        async with trio.open_nursery() as nursery:
            for n in range(10):
                nursery.start_soon(asks, "many", Band.BRONZE, n * 0.01)
            nursery.start_soon(asks, "few", Band.PLATINUM, 1.0)
            nursery.start_soon(asks, "few", Band.PLATINUM, 40.0)
        assert [record.wait_s for record in w.closed] == [0.0] * 12
        await w.settled()
        tallies = shadow.take()
        (pool,) = report((*key, tally.as_json()) for key, tally in tallies.items())

    bands = {one["band"]: one for one in pool["bands"]}
    assert pool["culprits"] == [{"band": "bronze", "tenant": "many", "waited_behind_s": pytest.approx(19, abs=0.5)}]
    assert (bands["platinum"]["requests"], bands["bronze"]["requests"]) == (2, 10)
    assert bands["platinum"]["first_token_behind_p99_s"] == 20.0
    assert bands["platinum"]["first_token_alone_p99_s"] in (1.0, 1.5)
    assert bands["platinum"]["wait_p99_s"] <= 0.001, "it would have gone at once, up to twice full"
    assert bands["bronze"]["wait_p50_s"] >= 5
    assert pool["verdict"].startswith("platinum waited behind bronze of tenant many: its first token took up to 20 s")
    assert shadow.take() == {}
    assert not shadow._keys


async def test_a_quiet_pool_has_nothing_to_report_of_anybody(autojump_clock: MockClock) -> None:
    limits = AdmissionLimits(mode="shadow")
    engine = Engine(OneSlot().script, kind=Kind.OPENAI, options={"capacity": 1})
    async with world(engine, ring=RING, admission=limits) as w:
        w.gate.shadow = shadow = Shadow(w.live, limits)
        await w.post(PATH, chat(True), key=text_of("few", Band.GOLD))
        (pool,) = report((*key, tally.as_json()) for key, tally in shadow.take().items())

    assert pool["culprits"] == []
    assert "would change little" in pool["verdict"]
    assert report([]) == []


def test_a_quantile_is_the_bucket_it_falls_in():
    assert quantile((1.0, 2.0, 4.0), [50, 49, 1, 0], 0.5) == 1.0
    assert quantile((1.0, 2.0, 4.0), [50, 49, 1, 0], 0.99) == 2.0
    assert quantile((1.0, 2.0, 4.0), [0, 0, 0, 7], 0.99) == 4.0
    assert quantile((1.0, 2.0, 4.0), [0, 0, 0, 0], 0.99) is None
