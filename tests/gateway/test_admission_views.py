"""What an operator sees of admission while requests wait, and what stays of it afterwards."""

import msgspec
import pytest
import trio
import trio.testing
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock

from llmgw.core.bands import AdmissionLimits
from llmgw.core.fleet import Engine as Kind
from llmgw.core.fleet import fleet_of
from llmgw.core.identity import Band
from llmgw.core.saturation import Sample
from llmgw.engines.views import endpoint_json, endpoint_metrics, model_json
from llmgw.gateway import views
from llmgw.gateway.admission_views import lines_of, pool_json, pool_metrics, queues_json, seats_json
from llmgw.gateway.queue_explained import explain_queue
from llmgw.telemetry.metrics import Metrics
from tests.gateway.test_road_admission import RING, Slow, ask, slots, until_idle
from tests.gateway.world import Engine, World, world


def pool_of(w: World, model: str = "m") -> dict:
    admission = w.gate.admission
    (here,) = lines_of(admission, model)
    shown = pool_json(admission, here, trio.current_time())
    return msgspec.json.decode(msgspec.json.encode(shown))


def bands_of(w: World, model: str = "m") -> dict[str, dict]:
    (here,) = lines_of(w.gate.admission, model)
    return {row["band"]: row for row in queues_json(here, trio.current_time())}


def explained(w: World, model: str = "m"):
    return explain_queue(w.gate.admission, model, trio.current_time())


def series(w: World) -> dict[tuple[str, frozenset], float]:
    now = trio.current_time()
    shown = Metrics(endpoints=lambda: endpoint_metrics(w.live), waiting=lambda: pool_metrics(w.gate.admission, now))
    families = text_string_to_metric_families(shown.render().decode())
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(w: World, name: str, **labels: str) -> float | None:
    return series(w).get((name, frozenset(labels.items())))


async def test_a_pool_shows_how_full_it_is_and_what_makes_its_endpoint_full(autojump_clock: MockClock) -> None:
    slow = Slow()
    async with world(slots(slow, 4), ring=RING) as w:
        await trio.sleep(10)
        w.endpoint().sample = Sample(trio.current_time() - 2, running=4, waiting=1, kv=0.4, ours=1)
        await ask(w, band=Band.PLATINUM)
        await ask(w, band=Band.GOLD)
        pool = pool_of(w)

        assert (pool["mode"], pool["waiting"], pool["usable"], pool["why"]) == ("on", 1, 1, "")
        assert pool["saturation"] == 1.25
        (a,) = pool["endpoints"]
        assert a["parts"] == {"load": 1.25, "queue": 0.2, "kv": 0.5}
        assert (a["decides"], a["in_flight"], a["granted"], a["others"], a["may_run"]) == ("load", 1, 0, 4, 4)
        assert (a["running"], a["waiting"], a["kv"], a["sample_age_s"]) == (4, 1, 0.4, 2)
        assert (a["capacity"], a["capacity_how"], a["max_in_flight"]) == (4, "given in the config", None)
        gold, platinum = pool["bands"][1], pool["bands"][0]
        assert (gold["ceiling"], gold["floor"], gold["ttl_s"], gold["waiting"]) == (1.0, 0.0, 60.0, 1)
        assert (platinum["at_once"], gold["at_once"]) == (True, False)
        w.endpoint().sample = None
        w.gate.admission.left("m")
        await trio.testing.wait_all_tasks_blocked()
        await until_idle(slow)


@pytest.mark.parametrize(
    ("makes", "decides"),
    [
        (lambda live: setattr(live, "sample", Sample(0.0, running=1, waiting=10)), "queue"),
        (lambda live: setattr(live, "sample", Sample(0.0, running=1, waiting=0, kv=0.9)), "kv"),
        (lambda live: setattr(live, "silent", True), "silent"),
        (lambda live: setattr(live, "busy_until", 5.0), "busy"),
    ],
)
async def test_whatever_fills_an_endpoint_is_named_and_explained(
    autojump_clock: MockClock, makes, decides: str
) -> None:
    slow = Slow()
    async with world(slots(slow, 100), ring=RING) as w:
        makes(w.endpoint())
        pool, said = pool_of(w), explained(w)

        assert pool["endpoints"][0]["decides"] == decides
        assert pool["saturation"] >= 1
        assert [one.chosen for one in said.candidates] == [False]
        assert "has room" not in str(said.candidates[0].reasons)


async def test_an_endpoint_with_all_it_may_have_is_full_in_numbers_that_json_can_hold(
    autojump_clock: MockClock,
) -> None:
    slow = Slow()
    async with world(slots(slow, 8, max_in_flight=1), ring=RING) as w:
        await ask(w, band=Band.PLATINUM)
        await ask(w, band=Band.PLATINUM)
        pool, now = pool_of(w), trio.current_time()

        assert pool["saturation"] == 1.0
        assert "max_in_flight" in pool["why"]
        assert [band["at_once"] for band in pool["bands"]] == [False] * 4
        assert (pool["endpoints"][0]["decides"], pool["endpoints"][0]["max_in_flight"]) == ("max_in_flight", 1)
        assert endpoint_json(w.endpoint(), now)["saturation"] == 1.0
        assert model_json(w.live, "m", now)["saturation"] == 1.0
        assert value(w, "llmgw_pool_saturation", model="m") == 1.0
        said = explained(w)
        assert said.verdict.startswith("1 waits (1 of platinum) because every usable endpoint has as many requests")
        assert "a larger max_in_flight" in said.would_change_it
        await until_idle(slow)


async def test_a_pool_without_a_usable_endpoint_has_no_saturation_and_says_so(autojump_clock: MockClock) -> None:
    async with world(slots(Slow()), ring=RING) as w:
        w.endpoint().healthy, w.endpoint().health_why = False, "connect: refused"
        pool, said = pool_of(w), explained(w)

        assert (pool["saturation"], pool["why"], pool["usable"]) == (None, "no endpoint is usable", 0)
        assert not any(band["at_once"] for band in pool["bands"]), "nobody waits, and nobody goes"
        assert (pool["endpoints"][0]["why"], pool["endpoints"][0]["decides"]) == ("unhealthy: connect: refused", "")
        assert said.verdict == "nobody waits: no endpoint is usable, so requests are refused"
        assert said.candidates[0].reasons == ("unhealthy: connect: refused",)
        assert said.next_command == "llmgw ctl endpoints --model m"
        assert value(w, "llmgw_pool_saturation", model="m") is None


async def test_queues_show_who_waits_and_what_became_of_those_who_waited(autojump_clock: MockClock) -> None:
    slow = Slow()
    async with world(slots(slow), ring=RING) as w:
        await ask(w, "runs")
        await ask(w, "waits", tenant="many")
        await trio.sleep(4)
        await ask(w, "waits", tenant="many")
        await ask(w, "waits", tenant="few")
        gold = bands_of(w)["gold"]

        assert (gold["model"], gold["waiting"], gold["oldest_s"], gold["served"]) == ("m", 3, 4.0, 0)
        assert [(row["tenant"], row["waiting"], row["oldest_s"]) for row in gold["tenants"]] == [
            ("many", 2, 4.0),
            ("few", 1, 0.0),
        ]
        assert gold["bytes"] == sum(row["bytes"] for row in gold["tenants"]) > 0
        held = {row["band"]: row for row in seats_json(w.gate.admission)}["gold"]
        assert (held["waiting"], held["bytes"]) == (3, gold["bytes"])
        assert (held["seats_max"], held["bytes_max"]) == (1000, 64 * 1024**2)
        await trio.sleep(2)
        await until_idle(slow)

        gold = bands_of(w)["gold"]
        assert (gold["waiting"], gold["oldest_s"], gold["bytes"], gold["served"]) == (0, None, 0, 3)
        assert (gold["wait_mean_s"], gold["wait_longest_s"]) == (pytest.approx(10 / 3, abs=0.001), 6.0)
        many = next(row for row in gold["tenants"] if row["tenant"] == "many")
        assert (many["served"], many["wait_mean_s"], many["wait_longest_s"], many["refused"]) == (2, 4.0, 6.0, {})


async def test_whoever_waits_in_vain_is_counted_by_reason(autojump_clock: MockClock) -> None:
    slow = Slow()
    limits = AdmissionLimits(queue_seats_max=2, ttl={"gold": 5.0})
    async with world(slots(slow), ring=RING, admission=limits) as w:
        await ask(w, "runs")
        (await ask(w, "leaves")).leave()
        await ask(w, "late")
        await ask(w, "late")
        await ask(w, "finds no room")
        await trio.sleep(6)

        refused = bands_of(w)["gold"]["tenants"][0]["refused"]
        assert refused == {"gone": 1, "full": 1, "too_late": 2}
        for reason, count in refused.items():
            assert value(w, "llmgw_queue_refusals_total", model="m", band="gold", reason=reason) == count
        assert "waited in vain" in str(explained(w))
        await until_idle(slow)


async def test_tenants_beyond_the_bound_are_counted_together_and_none_is_lost(autojump_clock: MockClock) -> None:
    slow = Slow()
    async with world(slots(slow), ring=RING, admission=AdmissionLimits(tenants_max=2)) as w:
        await ask(w, "runs")
        for tenant in ("a", "b", "many", "few"):
            await ask(w, tenant=tenant)
        for _ in range(2):  # the same names whenever somebody looks
            gold = bands_of(w)["gold"]
            assert {row["tenant"]: row["waiting"] for row in gold["tenants"]} == {"a": 1, "b": 1, "other": 2}
            assert value(w, "llmgw_queue_tenant_waiting", model="m", band="gold", tenant="other") == 2
        await until_idle(slow)
        assert {row["tenant"]: row["served"] for row in bands_of(w)["gold"]["tenants"]} == {"a": 1, "b": 1, "other": 2}


async def test_metrics_show_depth_bytes_waits_and_what_fills_an_endpoint(autojump_clock: MockClock) -> None:
    slow = Slow()
    async with world(slots(slow), ring=RING) as w:
        await ask(w, "runs")
        await ask(w, "waits", Band.BRONZE, tenant="many")
        here = {"model": "m", "band": "bronze"}

        assert value(w, "llmgw_queue_depth", **here) == 1
        assert value(w, "llmgw_queue_bytes", **here) == bands_of(w)["bronze"]["bytes"]
        assert value(w, "llmgw_queue_tenant_waiting", **here, tenant="many") == 1
        assert value(w, "llmgw_queue_wait_seconds_count", **here) is None
        assert value(w, "llmgw_pool_saturation", model="m") == 1
        assert value(w, "llmgw_endpoint_saturation_part", endpoint="a", model="m", part="load") == 1
        assert value(w, "llmgw_endpoint_saturation_part", endpoint="a", model="m", part="kv") == 0
        assert value(w, "llmgw_endpoint_granted", endpoint="a", model="m") == 0
        await trio.sleep(3)
        await until_idle(slow)

        assert value(w, "llmgw_queue_depth", **here) == 0
        assert value(w, "llmgw_queue_tenant_waiting", **here, tenant="many") is None
        assert value(w, "llmgw_queue_wait_seconds_count", **here) == 1
        assert value(w, "llmgw_queue_wait_seconds_sum", **here) == pytest.approx(3)
        assert value(w, "llmgw_queue_wait_seconds_bucket", **here, le="2.5") == 0
        assert value(w, "llmgw_queue_wait_seconds_bucket", **here, le="5.0") == 1


async def test_the_series_and_views_of_a_removed_pool_are_gone(autojump_clock: MockClock) -> None:
    slow = Slow()
    async with world(slots(slow), Engine(slow.script, "b", model="n", kind=Kind.OPENAI), ring=RING) as w:
        await ask(w, "runs")
        await ask(w, "waits")
        await until_idle(slow)
        assert [one.model for one in lines_of(w.gate.admission, "")] == ["m", "n"]
        assert {dict(labels)["model"] for name, labels in series(w) if "queue" in name} == {"m", "n"}
        only_n = fleet_of((w.live.fleet.models["n"],), 2)
        w.live.apply(only_n, trio.current_time())
        w.gate.admission.apply(w.gate.admission.limits)

        assert [one.model for one in lines_of(w.gate.admission, "")] == ["n"]
        assert {dict(labels)["model"] for name, labels in series(w) if "model" in dict(labels)} == {"n"}
        assert lines_of(w.gate.admission, "m") is None
        assert explained(w, "m") is None


async def test_a_queue_nobody_waits_in_is_explained_too(autojump_clock: MockClock) -> None:
    async with world(slots(Slow(), 2), ring=RING, aliases={"m": ("fast",)}) as w:
        said = explained(w, "fast")

        assert (said.subject, said.verdict) == ("queue of model m", "nobody waits: saturation is 0.00")
        assert "fast means m" in str(said)
        assert said.candidates[0].chosen
        assert said.would_change_it == ()
        assert explained(w, "nothing") is None
        assert explained(w, "") is None


async def test_whoever_would_wait_is_named_before_anybody_does(autojump_clock: MockClock) -> None:
    slow = Slow()
    async with world(slots(slow), ring=RING) as w:
        await ask(w, "runs")
        said = explained(w)

        assert said.verdict == "nobody waits: saturation is 1.00; a newcomer of gold or silver or bronze would wait"
        await until_idle(slow)


async def test_why_requests_wait_is_one_sentence_with_facts_and_their_ages(autojump_clock: MockClock) -> None:
    slow = Slow()
    async with world(slots(slow, 2), slots(slow, 2, "b"), ring=RING) as w:
        await trio.sleep(10)
        w.endpoint("a").sample = Sample(trio.current_time() - 0.4, running=2, waiting=0, kv=0.1, ours=0)
        w.endpoint("b").healthy, w.endpoint("b").health_why = False, "no answer"
        for band, tenant in ((Band.GOLD, "few"), (Band.BRONZE, "many"), (Band.BRONZE, "many"), (Band.BRONZE, "few")):
            await ask(w, band=band, tenant=tenant)
        await trio.sleep(1)
        said = explained(w)

        assert said.verdict == (
            "4 wait (1 of gold, 3 of bronze) because saturation 1.00 is not below gold's ceiling 1"
            " and bronze's ceiling 0.9"
        )
        ages = {fact.text: fact.age_s for fact in said.because}
        (endpoint,) = [text for text in ages if text.startswith("a: ")]
        assert endpoint == (
            "a: saturation 1.00 by load (load 1.00, queue 0.00, kv 0.12); 0 of ours, 2 of others,"
            " runs 2 (given in the config); its sample: 2 running, 0 waiting, KV 10%"
        )
        assert ages[endpoint] == pytest.approx(1.4)
        assert "3 of bronze wait (many 2, few 1), the oldest for 1.0 s of at most 600 s; ceiling 0.9" in ages, (
            "the culprit is named"
        )
        reasons = {one.name: one.reasons for one in said.candidates}
        assert reasons == {"a": ("load: 0 of ours and 2 of others, it runs 2",), "b": ("unhealthy: no answer",)}
        assert said.would_change_it[0] == "saturation below 1 for gold, below 0.9 for bronze"
        assert any("floor share for bronze" in one for one in said.would_change_it)
        assert said.next_command == "llmgw ctl queues m --watch"
        w.endpoint("a").sample = None
        w.gate.admission.left("m")
        await trio.testing.wait_all_tasks_blocked()
        await until_idle(slow)


@pytest.mark.parametrize(("mode", "says"), [("off", "admission is off"), ("shadow", "holds nothing back")])
async def test_where_nobody_is_held_back_that_is_the_explanation(
    autojump_clock: MockClock, mode: str, says: str
) -> None:
    slow = Slow()
    async with world(slots(slow), ring=RING, admission=AdmissionLimits(mode=mode)) as w:
        await ask(w)
        await ask(w)

        assert says in explained(w).verdict
        assert (pool_of(w)["mode"], all(band["at_once"] for band in pool_of(w)["bands"])) == (mode, True)
        await until_idle(slow)


async def test_a_request_s_explanation_says_what_was_ahead_of_it_and_what_let_it_through(
    autojump_clock: MockClock,
) -> None:
    slow = Slow()
    async with world(slots(slow), ring=RING) as w:
        await ask(w, "first")
        await ask(w, "second")
        await trio.sleep(3)
        await until_idle(slow)
        facts = [fact.text for fact in views.explain(w.record).because]

        assert "it waited 3.000 s" in facts
        assert "ahead of it as it came: nobody; saturation 1.00 (load 1.00), gold's ceiling 1" in facts
        assert "it was let through: saturation 0.00 was below gold's ceiling 1" in facts
        assert not any("waited" in fact.text for fact in views.explain(w.closed[0]).because)


async def test_a_request_that_waited_too_long_is_sent_to_the_queue_s_explanation(autojump_clock: MockClock) -> None:
    slow = Slow()
    async with world(slots(slow), ring=RING) as w:
        await ask(w)
        await (await ask(w, "late")).answer()
        said = views.explain(w.record)

        assert "a longer admission.ttl of gold" in said.would_change_it
        assert said.next_command == "llmgw ctl explain queue m"
        assert not any("let through" in fact.text for fact in said.because)
        await until_idle(slow)
