"""Requests that wait: who goes first, who is refused and when to come back, and that a place is free at once."""

from collections import Counter

import pytest
import trio
import trio.testing
from attrs import evolve
from trio.testing import MockClock

from llmgw.core.bands import AdmissionLimits, PoolBands
from llmgw.core.fleet import Engine as Kind
from llmgw.core.fleet import Fallback, FallbackOn, fleet_of
from llmgw.core.identity import Band, KeyRecord, KeyRing, digest, shown
from llmgw.core.saturation import Sample
from llmgw.gateway.limits import RelayLimits
from tests.gateway.engine_bytes import ANSWER, CLOSE, SSE_HEAD, chunk, delta, plain, says
from tests.gateway.world import Caller, Client, Engine, World, chat, world

PATH = "/v1/chat/completions"


def key_of(tenant: str, band: Band) -> KeyRecord:
    text = f"sk-{tenant}-of-{band.value}-brought-along"
    return KeyRecord(f"key_{tenant}_{band.value}", digest(text), shown(text), tenant, band)


def text_of(tenant: str, band: Band) -> str:
    return f"sk-{tenant}-of-{band.value}-brought-along"


RING = KeyRing({key.digest: key for tenant in ("a", "b", "many", "few") for key in (key_of(tenant, b) for b in Band)})


class Slow:
    """An engine that answers when told, in the order it was asked."""

    def __init__(self) -> None:
        self.waiting: list[trio.Event] = []
        self.order: list[str] = []

    async def script(self, caller: Caller) -> None:
        while (got := await caller.request()) is not None:
            done = trio.Event()
            self.waiting.append(done)
            self.order.append(got.json()["messages"][0]["content"])
            await done.wait()
            await caller.send(ANSWER)

    def answer(self, count: int = 1) -> None:
        for _ in range(count):
            self.waiting.pop(0).set()


def slots(slow: Slow, capacity: int = 1, name: str = "a", **more: object) -> Engine:
    return Engine(slow.script, name, kind=Kind.OPENAI, options={"capacity": capacity, **more})


async def ask(w: World, who: str = "x", band: Band = Band.GOLD, tenant: str = "a", model: str = "m") -> Client:
    """Send one request and let it go as far as it can."""
    client = w.client()
    body = {"model": model, "messages": [{"role": "user", "content": who}]}
    await client.post(PATH, body, key=text_of(tenant, band))
    await trio.testing.wait_all_tasks_blocked()
    return client


async def until_idle(slow: Slow) -> None:
    """Answer everything, one after another."""
    while slow.waiting:
        slow.answer()
        await trio.testing.wait_all_tasks_blocked()


async def test_a_full_pool_lets_the_highest_band_go_first(autojump_clock: MockClock) -> None:
    slow = Slow()
    async with world(slots(slow), ring=RING) as w:
        for band in (Band.GOLD, Band.BRONZE, Band.SILVER, Band.GOLD):
            await ask(w, band.value, band)
        await ask(w, "platinum, which may queue in the engine", Band.PLATINUM)
        assert slow.order == ["gold", "platinum, which may queue in the engine"]
        assert w.gate.admission.waiting == 3
        await until_idle(slow)

        assert slow.order[2:] == ["gold", "silver", "bronze"]


async def test_a_request_that_waited_says_how_long_behind_what_and_what_let_it_through(
    autojump_clock: MockClock,
) -> None:
    slow = Slow()
    async with world(slots(slow), ring=RING) as w:
        await ask(w, "first")
        await ask(w, "second")
        await trio.sleep(3)
        slow.answer()
        await trio.testing.wait_all_tasks_blocked()
        slow.answer()
        await w.settled()

        assert w.record.wait_s == pytest.approx(3)
        assert w.record.waited_behind == "nobody; saturation 1.00 (load 1.00), gold's ceiling 1"
        assert w.record.let_through == "saturation 0.00 was below gold's ceiling 1"
        assert w.closed[0].wait_s == 0
        assert w.closed[0].let_through == ""


async def test_one_tenants_hundred_do_not_keep_out_anothers_ten(autojump_clock: MockClock) -> None:
    slow = Slow()
    async with world(slots(slow), ring=RING) as w:
        for _ in range(100):
            await ask(w, "many", tenant="many")
        for _ in range(10):
            await ask(w, "few", tenant="few")
        await until_idle(slow)

        assert slow.order[:25].count("few") == 10


async def test_a_full_queue_is_a_503_that_says_when_to_come_back(autojump_clock: MockClock) -> None:
    """G69: before any byte of a stream."""
    slow = Slow()
    async with world(slots(slow), ring=RING, admission=AdmissionLimits(queue_seats_max=2)) as w:
        for _ in range(3):
            await ask(w)
        answer = await (await ask(w)).answer()

        assert answer.status == 503
        assert answer.error["code"] == "service_unavailable"
        assert answer.header(b"content-type") == [b"application/json"]
        assert 1 <= int(answer.header(b"retry-after")[0]) <= 60
        assert w.record.outcome == "queue_full"
        await until_idle(slow)


async def test_the_newest_of_the_greedy_gives_way_to_who_holds_fewer(autojump_clock: MockClock) -> None:
    slow = Slow()
    async with world(slots(slow), ring=RING, admission=AdmissionLimits(queue_seats_max=3)) as w:
        await ask(w, "runs", tenant="many")
        greedy = [await ask(w, f"many {n}", tenant="many") for n in range(3)]
        await ask(w, "few", tenant="few")
        refused = await greedy[2].answer()

        assert refused.status == 503
        assert "went to a tenant that holds fewer" in refused.error["message"]
        await until_idle(slow)
        assert sorted(slow.order) == ["few", "many 0", "many 1", "runs"]


async def test_who_waited_its_time_to_live_gets_a_504_not_to_be_retried(autojump_clock: MockClock) -> None:
    slow = Slow()
    async with world(slots(slow), ring=RING) as w:
        await ask(w)
        began = trio.current_time()
        waits = await ask(w, "late", Band.GOLD)
        answer = await waits.answer()

        assert trio.current_time() - began == pytest.approx(60)
        assert (answer.status, answer.error["code"]) == (504, "queue_timeout")
        assert answer.header(b"x-should-retry") == [b"false"]
        assert w.record.wait_s == pytest.approx(60)
        await until_idle(slow)


async def test_the_total_deadline_counts_the_wait(autojump_clock: MockClock) -> None:
    slow = Slow()
    async with world(slots(slow), ring=RING, limits=RelayLimits(total=40)) as w:
        await ask(w, band=Band.PLATINUM)
        await trio.sleep(1)
        waits = await ask(w, "late", Band.BRONZE)
        answer = await waits.answer()

        assert (answer.status, w.record.outcome) == (504, "total_timeout")


async def test_a_place_is_free_the_moment_its_client_leaves(autojump_clock: MockClock) -> None:
    """G18, G75: a thousand leave at once while others come: none of these is refused, and who can run does at once."""
    slow = Slow()
    async with world(slots(slow, 5), ring=RING, admission=AdmissionLimits(queue_seats_max=1000)) as w:
        for _ in range(5):
            await ask(w, "runs")
        leavers = [w.client() for _ in range(1000)]
        for one in leavers:
            await one.post(PATH, chat(False), key=text_of("a", Band.GOLD))
        await trio.testing.wait_all_tasks_blocked()
        assert w.gate.admission.waiting == 1000
        stays = []
        for number, one in enumerate(leavers):
            one.leave()
            if number % 20 == 0:  # in the middle of it, with every seat taken but those just left
                stays.append(w.client())
                await stays[-1].post(PATH, chat(False), key=text_of("a", Band.GOLD))
        await trio.testing.wait_all_tasks_blocked()
        assert w.gate.admission.waiting == 50, "all who left have left"
        for _ in range(10):
            slow.answer(5)
            before = trio.current_time()
            await trio.testing.wait_all_tasks_blocked()
            assert (len(slow.waiting), trio.current_time()) == (5, before), "in the same tick"
        slow.answer(5)

        assert [(await one.answer()).status for one in stays] == [200] * 50
        await w.settled()
        outcomes = Counter(record.outcome for record in w.closed)
        assert outcomes == {"ok": 55, "client_gone": 1000}


async def test_a_grant_and_a_hang_up_in_one_tick_lose_no_slot(autojump_clock: MockClock) -> None:
    slow = Slow()
    async with world(slots(slow), ring=RING) as w:
        for _ in range(20):
            await ask(w, "runs")
            waits = await ask(w, "waits")
            slow.answer()
            waits.leave()
            await trio.testing.wait_all_tasks_blocked()
            await until_idle(slow)

        assert w.endpoint().granted == 0
        assert slow.order.count("runs") == 20


async def test_three_full_and_one_idle_traffic_goes_to_the_idle_one_and_only_there(autojump_clock: MockClock) -> None:
    """G64"""
    slow = Slow()
    engines = [slots(slow, 4, name) for name in "abcd"]
    async with world(*engines, ring=RING) as w:
        for name in "abc":
            w.endpoint(name).sample = Sample(0.0, running=4, waiting=20, ours=0)
        for n in range(4):
            await ask(w, str(n))
        assert [w.endpoint(name).in_flight for name in "abcd"] == [0, 0, 0, 4]
        await ask(w, "waits")
        assert w.gate.admission.waiting == 1
        await until_idle(slow)


async def test_outstanding_grants_count_so_a_burst_is_not_granted_twice(autojump_clock: MockClock) -> None:
    """Between a grant and its dispatch a request is visible nowhere else."""
    slow = Slow()
    async with world(slots(slow, 2), ring=RING) as w:
        for n in range(8):
            await ask(w, str(n))
        slow.answer(2)
        await trio.testing.wait_all_tasks_blocked()
        assert (w.endpoint().in_flight, w.gate.admission.waiting) == (2, 4)
        await until_idle(slow)


async def test_a_sample_that_shows_room_lets_who_waits_go(autojump_clock: MockClock) -> None:
    slow = Slow()
    async with world(slots(slow, 4), ring=RING) as w:
        live = w.endpoint()
        live.sample = Sample(trio.current_time(), running=4, waiting=9)
        client = await ask(w)
        assert w.gate.admission.waiting == 1
        live.sample = Sample(trio.current_time(), running=1, waiting=0)
        live.on_news(live)
        await trio.testing.wait_all_tasks_blocked()
        slow.answer()

        assert (await client.answer()).status == 200


async def test_two_hundred_are_not_sent_on_one_old_sample(autojump_clock: MockClock) -> None:
    """G57: what may run plus what may queue, and no more before the next sample."""
    slow = Slow()
    async with world(slots(slow, 256), ring=RING) as w:
        w.endpoint().sample = Sample(trio.current_time(), running=8, waiting=0)
        for n in range(200):
            await ask(w, str(n))

        assert w.endpoint().in_flight == 13
        w.endpoint().sample = None
        w.gate.admission.left("m")
        await trio.testing.wait_all_tasks_blocked()
        await until_idle(slow)


async def test_an_endpoint_without_a_sample_is_judged_by_what_we_sent(autojump_clock: MockClock) -> None:
    """G66: just added, its metrics unknown: neither empty for ever nor full."""
    slow = Slow()
    async with world(slots(slow, 3), ring=RING) as w:
        for n in range(5):
            await ask(w, str(n))
        assert (w.endpoint().in_flight, w.gate.admission.waiting) == (3, 2)
        await until_idle(slow)


@pytest.mark.parametrize("mode", ["off", "shadow"])
async def test_off_and_shadow_hold_nobody(autojump_clock: MockClock, mode: str) -> None:
    slow = Slow()
    async with world(slots(slow), ring=RING, admission=AdmissionLimits(mode=mode)) as w:
        for n in range(5):
            await ask(w, str(n), Band.BRONZE)
        assert (w.endpoint().in_flight, w.gate.admission.waiting) == (5, 0)
        await until_idle(slow)


async def test_what_an_engine_asked_for_is_waited_out_without_another_event(autojump_clock: MockClock) -> None:
    """Its own 429 makes it full until its Retry-After; nobody else ends meanwhile."""
    busy = plain({"error": {"message": "later"}}, 429, b"retry-after: 7")
    first = [busy, ANSWER]

    async def script(caller: Caller) -> None:
        while await caller.request() is not None:
            await caller.send(first.pop(0))

    async with world(Engine(script, kind=Kind.OPENAI, options={"capacity": 4}), ring=RING) as w:
        refused = await w.post(PATH, chat(False), key=text_of("a", Band.GOLD))
        began = trio.current_time()
        answer = await w.post(PATH, chat(False), key=text_of("a", Band.GOLD))

        assert refused.status == 429
        assert answer.status == 200
        assert 6.5 < trio.current_time() - began < 7.5


async def test_max_in_flight_is_no_room_even_for_platinum(autojump_clock: MockClock) -> None:
    slow = Slow()
    async with world(slots(slow, 64, max_in_flight=2), ring=RING) as w:
        for n in range(4):
            await ask(w, str(n), Band.PLATINUM)
        assert (w.endpoint().in_flight, w.gate.admission.waiting) == (2, 2)
        await until_idle(slow)
        assert slow.order == ["0", "1", "2", "3"]


# -- pools that leave, fill and overflow ------------------------------------------------------------


async def test_a_pool_that_loses_its_last_endpoint_tells_who_waits(autojump_clock: MockClock) -> None:
    slow = Slow()
    async with world(slots(slow), ring=RING) as w:
        await ask(w)
        waits = await ask(w, "waits")
        live = w.endpoint()
        live.healthy = False
        live.on_news(live)
        answer = await waits.answer()

        assert (answer.status, w.record.outcome) == (503, "no_endpoint")
        assert answer.error["message"] == "no endpoint can serve model m now (1 unhealthy)"
        live.healthy = True
        await until_idle(slow)


def saturated(to: str) -> dict[str, tuple[Fallback, ...]]:
    return {"m": (Fallback(to, frozenset({FallbackOn.SATURATED})),)}


async def test_a_full_queue_takes_the_fallback_on_saturated(autojump_clock: MockClock) -> None:
    slow, other = Slow(), Engine(says(ANSWER), "o", "other", Kind.OPENAI)
    limits = AdmissionLimits(queue_seats_max=1)
    async with world(slots(slow), other, ring=RING, admission=limits, fallback=saturated("other")) as w:
        await ask(w)
        await ask(w, "waits")
        answer = await (await ask(w)).answer()

        assert answer.status == 200
        assert (w.record.fallbacks, w.record.endpoint) == (["other"], "o")
        await until_idle(slow)


async def test_who_has_waited_enough_overflows_into_the_fallback(autojump_clock: MockClock) -> None:
    slow, other = Slow(), Engine(says(ANSWER), "o", "other", Kind.OPENAI)
    limits = AdmissionLimits(overflow_after=10)
    async with world(slots(slow), other, ring=RING, admission=limits, fallback=saturated("other")) as w:
        await ask(w)
        client = await ask(w, "waits")
        began = trio.current_time()
        answer = await client.answer()

        assert answer.status == 200
        assert trio.current_time() - began == pytest.approx(10)
        assert w.record.fallbacks == ["other"]
        assert w.record.fell_back_on == ["saturated: it waited 10.0 s, and another pool may serve it"]
        assert w.record.wait_s == pytest.approx(10)
        await until_idle(slow)


async def test_a_fallback_queues_with_the_time_it_first_arrived_and_the_time_it_has_left(
    autojump_clock: MockClock,
) -> None:
    slow, full = Slow(), Slow()
    limits = AdmissionLimits(overflow_after=10)
    other = Engine(full.script, "o", "other", Kind.OPENAI, {"capacity": 1})
    async with world(slots(slow), other, ring=RING, admission=limits, fallback=saturated("other")) as w:
        await ask(w, "runs", model="other")
        await ask(w, "runs")
        moves = await ask(w, "moves")
        await trio.sleep(5)
        later = await ask(w, "later", model="other")
        await trio.sleep(6)
        assert w.gate.admission.waiting == 2, "both wait for the other pool"
        full.answer()
        await trio.testing.wait_all_tasks_blocked()
        assert full.order == ["runs", "moves"], "it came first"
        full.answer()
        assert (await moves.answer()).status == 200
        await trio.testing.wait_all_tasks_blocked()
        full.answer()
        assert (await later.answer()).status == 200
        late = await ask(w, "moves too", model="m")
        await ask(w, "runs", model="other")
        began = trio.current_time()
        answer = await late.answer()
        assert answer.status == 504
        assert trio.current_time() - began == pytest.approx(60), "ten seconds here, fifty there"
        await until_idle(slow)
        await until_idle(full)


async def test_a_retry_keeps_its_grant_and_lets_another_into_the_place_it_left(autojump_clock: MockClock) -> None:
    slow = Slow()
    dies = trio.Event()

    async def broken(caller: Caller) -> None:
        while await caller.request() is not None:
            await dies.wait()
            caller.stream.close()
            return

    first = Engine(broken, "a", kind=Kind.OPENAI, options={"capacity": 1})
    async with world(first, slots(slow, 1, "b"), ring=RING) as w:
        one = await ask(w, "one")
        two = await ask(w, "two")
        three = await ask(w, "three")
        assert (w.endpoint("a").in_flight, w.endpoint("b").in_flight, w.gate.admission.waiting) == (1, 1, 1)
        dies.set()
        await trio.testing.wait_all_tasks_blocked()
        await until_idle(slow)

        statuses = {(await client.answer()).status for client in (one, two, three)}
        assert statuses == {200}


async def test_a_stream_gives_its_place_back_when_it_ends_or_breaks(autojump_clock: MockClock) -> None:
    ends = trio.Event()
    engine = Engine(says(SSE_HEAD, chunk(delta("a")), ends, CLOSE), kind=Kind.OPENAI, options={"capacity": 1})
    async with world(engine, ring=RING) as w:
        one, two = w.client(), w.client()
        await one.post(PATH, chat(True), key=text_of("a", Band.GOLD))
        await one.until(delta("a"))
        await two.post(PATH, chat(True), key=text_of("a", Band.GOLD))
        await trio.testing.wait_all_tasks_blocked()
        assert w.gate.admission.waiting == 1
        ends.set()
        await two.until(delta("a"))

        assert w.gate.admission.waiting == 0


async def test_a_reload_changes_the_rules_under_those_who_wait(autojump_clock: MockClock) -> None:
    """The model's own word comes before that of all, and a pool that goes away tells who waits."""
    slow = Slow()
    async with world(slots(slow, 10), ring=RING) as w:
        for n in range(10):
            await ask(w, str(n), Band.BRONZE)
        assert (w.endpoint().in_flight, w.gate.admission.waiting) == (9, 1)
        model = w.live.fleet.models["m"]
        own = evolve(model, bands=PoolBands(ceilings={"bronze": 0.95}))
        w.live.apply(fleet_of((own,)), trio.current_time())
        w.gate.admission.apply(AdmissionLimits())
        await trio.testing.wait_all_tasks_blocked()
        assert (w.endpoint().in_flight, w.gate.admission.waiting) == (10, 0)
        waits = await ask(w, "waits", Band.GOLD)
        w.live.apply(fleet_of(()), trio.current_time())
        w.gate.admission.apply(AdmissionLimits())
        answer = await waits.answer()

        assert (answer.status, w.record.outcome) == (503, "no_endpoint")
        assert w.record.message == "the model was removed while the request waited"
        await until_idle(slow)


async def test_who_waits_for_a_model_whose_last_replica_went_is_told_so(autojump_clock: MockClock) -> None:
    slow = Slow()
    async with world(slots(slow), ring=RING) as w:
        await ask(w)
        waits = await ask(w, "waits")
        gone = evolve(w.live.fleet.models["m"], endpoints=(), run_by_agents=True)
        w.live.apply(fleet_of((gone,)), trio.current_time())
        w.gate.admission.apply(AdmissionLimits())
        answer = await waits.answer()

        assert answer.error["message"] == "no endpoint can serve model m now (no replica of it serves)"
        await until_idle(slow)


@pytest.mark.parametrize(("before", "after"), [(60.0, 20.0), (20.0, 60.0)], ids=["shorter", "longer"])
async def test_a_reload_of_the_time_to_live_counts_for_those_who_wait(
    autojump_clock: MockClock, before: float, after: float
) -> None:
    slow = Slow()
    async with world(slots(slow), ring=RING, admission=AdmissionLimits(ttl={"gold": before})) as w:
        await ask(w)
        waits, began = await ask(w, "waits"), trio.current_time()
        await trio.sleep(10)
        w.gate.admission.apply(AdmissionLimits(ttl={"gold": after}))
        answer = await waits.answer()

        assert (answer.status, answer.error["code"]) == (504, "queue_timeout")
        assert trio.current_time() - began == pytest.approx(after)
        await until_idle(slow)


async def test_who_is_let_through_at_once_did_not_wait(autojump_clock: MockClock) -> None:
    """Platinum finds bronze waiting, and goes past it in the same step."""
    slow = Slow()
    async with world(slots(slow), ring=RING) as w:
        await ask(w)
        await ask(w, "bronze", Band.BRONZE)
        await ask(w, "platinum", Band.PLATINUM)
        waits = w.gate.admission.pools()[0].waits
        assert waits.by == {}
        await until_idle(slow)
        await w.settled()

        assert [one.served for one in waits.by.values()] == [1]
        assert {(r.band, r.waited_behind) for r in w.closed if r.band == "platinum"} == {("platinum", "")}


async def test_switched_off_while_some_wait_all_go(autojump_clock: MockClock) -> None:
    slow = Slow()
    async with world(slots(slow), ring=RING) as w:
        for n in range(5):
            await ask(w, str(n), Band.BRONZE)
        assert w.gate.admission.waiting == 4
        w.gate.admission.apply(AdmissionLimits(mode="off"))
        await trio.testing.wait_all_tasks_blocked()

        assert (w.endpoint().in_flight, w.gate.admission.waiting) == (5, 0)
        await until_idle(slow)


async def test_an_endpoint_whose_limits_change_by_a_reload_keeps_what_it_has(autojump_clock: MockClock) -> None:
    """It is not filled a second time, and nobody goes past its max_in_flight."""
    slow = Slow()
    async with world(slots(slow, 2), ring=RING) as w:
        for n in range(6):
            await ask(w, str(n), Band.PLATINUM if n < 2 else Band.GOLD)
        assert (w.endpoint().in_flight, w.gate.admission.waiting) == (2, 4)
        model = w.live.fleet.models["m"]
        before = w.endpoint()
        less = evolve(model.endpoints[0], max_in_flight=2, capacity=3)
        w.live.apply(fleet_of((evolve(model, endpoints=(less,)),)), trio.current_time())
        w.gate.admission.apply(AdmissionLimits())
        await trio.testing.wait_all_tasks_blocked()

        assert w.endpoint() is before
        assert (w.endpoint().in_flight, w.endpoint().capacity, w.gate.admission.waiting) == (2, 3, 4)
        await until_idle(slow)
