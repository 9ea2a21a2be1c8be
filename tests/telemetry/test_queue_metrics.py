"""How waiting looks to Prometheus: valid text, whatever the names, and no more than there is."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from llmgw.telemetry import queues
from llmgw.telemetry.metrics import Buckets, Metrics

BOUNDS = (0.1, 1.0)
# A lone surrogate has no UTF-8 form; the others are line breaks to Python's parser, not to Prometheus.
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"))


def pool(model, waits=(), depth=0, refusals=None, tenants=None, saturation=0.5):
    buckets = Buckets(BOUNDS)
    for one in waits:
        buckets.observe(one)
    return {
        "model": model,
        "saturation": saturation,
        "depth": {"gold": depth},
        "bytes": {"gold": 100 * depth},
        "waits": {"gold": buckets, "bronze": Buckets(BOUNDS)},
        "refusals": {"gold": refusals or {}},
        "tenants": {("gold", tenant): count for tenant, count in (tenants or {}).items()},
    }


def families(*pools):
    text = b"".join(queues.text(pools)).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


@given(names, names, st.lists(st.floats(0, 100)), st.integers(0, 50))
def test_whatever_is_counted_comes_through_under_any_name(model, tenant, waits, depth):
    found = families(pool(model, waits, depth, {"too_late": 2}, {tenant: depth}))

    value = {(s.name, *sorted(s.labels.items())): s.value for family in found.values() for s in family.samples}
    here = (("band", "gold"), ("model", model))
    assert value[("llmgw_queue_depth", *here)] == depth
    assert value[("llmgw_queue_bytes", *here)] == 100 * depth
    assert value[("llmgw_queue_refusals_total", *here, ("reason", "too_late"))] == 2
    assert value[("llmgw_queue_tenant_waiting", *here, ("tenant", tenant))] == depth
    assert value.get(("llmgw_queue_wait_seconds_count", *here), 0) == len(waits)
    below = value.get(("llmgw_queue_wait_seconds_bucket", ("band", "gold"), ("le", "1.0"), ("model", model)), 0)
    assert below == sum(one <= 1 for one in waits)


def test_families_have_their_types_and_each_stands_in_one_piece():
    text = b"".join(queues.text([pool("a", [0.5], 1), pool("b", [0.5], 2)])).decode()
    kinds = {name: family.type for name, family in families(pool("a", [0.5]), pool("b", [0.5])).items()}

    assert kinds["llmgw_queue_wait_seconds"] == "histogram"
    assert kinds["llmgw_queue_refusals"] == "counter"
    assert kinds["llmgw_queue_depth"] == kinds["llmgw_pool_saturation"] == "gauge"
    types = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(types) == len(set(types)) == 6


def test_a_band_that_never_waited_and_a_pool_that_serves_nobody_have_no_such_series():
    found = families(pool("m", saturation=None))

    assert not found["llmgw_queue_wait_seconds"].samples
    assert not found["llmgw_pool_saturation"].samples


def test_a_scrape_shows_the_pools_there_are_at_that_moment():
    there = [pool("m", depth=3)]
    metrics = Metrics(waiting=lambda: there)
    assert 'llmgw_queue_depth{model="m",band="gold"} 3' in metrics.render().decode()

    there.clear()

    assert 'model="m"' not in metrics.render().decode()
    assert len(list(text_string_to_metric_families(metrics.render().decode()))) > 20


def test_the_parts_of_an_endpoint_s_saturation_have_a_series_each():
    there = [{"endpoint": "a", "model": "m", "parts": {"load": 0.5, "kv": 0.25}, "values": {}}]
    metrics = Metrics(endpoints=lambda: there)

    assert 'llmgw_endpoint_saturation_part{endpoint="a",model="m",part="kv"} 0.25' in metrics.render().decode()
    there.clear()
    assert 'endpoint="a"' not in metrics.render().decode()
