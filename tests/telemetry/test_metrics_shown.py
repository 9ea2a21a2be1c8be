"""What Prometheus is shown is what was counted, within bounds."""

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from llmgw.telemetry import metrics as counted
from llmgw.telemetry.metrics import DURATIONS, Buckets, Metrics
from llmgw.telemetry.shown import PAIRS_A_PIECE, cumulative


def samples(metrics):
    families = text_string_to_metric_families(metrics.render().decode())
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(metrics, name, **labels):
    return samples(metrics).get((name, frozenset(labels.items())))


@given(st.lists(st.floats(0, 1000)))
def test_a_histogram_holds_every_value_in_the_bucket_it_belongs_to(values):
    buckets = Buckets(DURATIONS)
    for one in values:
        buckets.observe(one)

    assert buckets.count == len(values)
    for bound, count in cumulative(buckets):
        assert count == sum(one <= float(bound) for one in values)


@given(st.lists(st.floats(0.001, 900), min_size=1), st.floats(0.01, 1))
def test_a_quantile_is_never_below_the_true_one_and_at_most_one_bucket_above(values, share):
    buckets = Buckets(DURATIONS)
    for one in values:
        buckets.observe(one)
    true = sorted(values)[max(0, -int(-share * len(values) // 1) - 1)]

    found = buckets.quantile(share)

    assert found == (*DURATIONS, float("inf"))[bisect_left(DURATIONS, true)]


def test_a_request_that_ended_is_in_every_family_of_its_tenant_and_model():
    metrics = Metrics("1.2.3")
    mine = {"tenant": "acme", "model": "llama"}

    metrics.requests("acme", "llama").ended("ok", 200, 1.5, 0.2, 10, 20, 5)
    metrics.requests("acme", "llama").gaps.observe(0.02)

    assert value(metrics, "llmgw_requests_total", **mine, outcome="ok", status="200") == 1
    tokens = {
        kind: value(metrics, "llmgw_tokens_total", **mine, kind=kind) for kind in ("prompt", "completion", "cached")
    }
    assert tokens == {"prompt": 10, "completion": 20, "cached": 5}
    assert value(metrics, "llmgw_request_duration_seconds_sum", **mine) == 1.5
    assert value(metrics, "llmgw_time_to_first_token_seconds_bucket", **mine, le="0.25") == 1
    assert value(metrics, "llmgw_inter_token_gap_seconds_count", **mine) == 1
    assert value(metrics, "llmgw_build_info", version="1.2.3") == 1


def test_a_pair_that_never_streamed_has_no_series_of_streams():
    metrics = Metrics()
    metrics.requests("acme", "embed").ended("ok", 200, 0.1, None, 4, 0, 0)

    names = {name for name, _ in samples(metrics)}

    assert "llmgw_request_duration_seconds_count" in names
    assert "llmgw_inter_token_gap_seconds_count" not in names


# A lone surrogate has no UTF-8 form; the others are line breaks to Python's parser, not to Prometheus.
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"))


@given(names, names)
def test_any_name_comes_through_as_a_label(tenant, model):
    metrics = Metrics()

    metrics.requests(tenant, model).ended("ok", 200, 1, None, 1, 0, 0)

    assert value(metrics, "llmgw_request_duration_seconds_count", tenant=tenant, model=model) == 1


def test_ever_new_names_end_in_the_others_series(monkeypatch):
    monkeypatch.setattr(counted, "PAIRS_MAX", 10)
    monkeypatch.setattr(counted, "OTHERS_MAX", 3)
    metrics = Metrics()

    for number in range(100):
        metrics.requests(f"tenant-{number}", f"model-{number}").ended("ok", 200, 1, None, 1, 0, 0)

    assert len(metrics.pairs()) == 10 + 3 + 1
    total = sum(v for (name, _), v in samples(metrics).items() if name == "llmgw_requests_total")
    assert total == 100
    assert metrics.requests("tenant-3", "model-3") is not metrics.requests("other", "model-10")
    assert metrics.requests("somebody", "model-10") is metrics.requests("other", "model-10")


def test_many_pairs_come_in_many_pieces_that_stay_one_text():
    metrics = Metrics()
    for number in range(3 * PAIRS_A_PIECE):
        metrics.requests(f"tenant-{number}", "m").ended("ok", 200, 1, 0.1, 1, 1, 0)

    pieces = list(metrics.pieces())

    assert len(pieces) > 15
    assert max(map(len, pieces)) < 200_000
    text = b"".join(pieces).decode()
    types = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(types) == len(set(types))
    assert value(metrics, "llmgw_requests_total", tenant="tenant-7", model="m", outcome="ok", status="200") == 1


def test_pairs_that_appear_during_a_scrape_do_not_break_it():
    metrics = Metrics()
    metrics.requests("a", "m").ended("ok", 200, 1, None, 1, 0, 0)
    pieces = metrics.pieces()
    text = [next(pieces), next(pieces)]

    metrics.requests("b", "m").ended("ok", 200, 1, None, 1, 0, 0)
    text += pieces

    assert list(text_string_to_metric_families(b"".join(text).decode()))


def test_the_series_of_a_removed_endpoint_are_gone():
    there = [
        {"endpoint": "a", "model": "m", "values": {"dials": ("counter", "made", 3), "kv": ("gauge", "used", None)}}
    ]
    metrics = Metrics(endpoints=lambda: there)
    assert value(metrics, "llmgw_endpoint_dials_total", endpoint="a", model="m") == 3
    assert value(metrics, "llmgw_endpoint_kv", endpoint="a", model="m") is None

    there.clear()

    assert not [name for name, labels in samples(metrics) if name.startswith("llmgw_endpoint")]


def test_what_happens_on_the_road_is_shown():
    metrics = Metrics(gauges=lambda: {"ready": ("1 if ready", 1.0), "log_lines_dropped_total": ("lost", 4)})
    metrics.began()
    metrics.began()
    metrics.left()
    metrics.retried("connect")
    metrics.fell_back("llama", "qwen")
    metrics.scored(("load", "prefix"), (0.5, 0.25))
    metrics.scored(("load", "prefix"), (1.0, 0.0))
    metrics.cancellation.observe(0.9)

    assert value(metrics, "llmgw_requests_in_flight") == 1
    assert value(metrics, "llmgw_retries_total", reason="connect") == 1
    assert value(metrics, "llmgw_fallbacks_total", model="llama", to="qwen") == 1
    assert value(metrics, "llmgw_score_count", scorer="load") == 2
    assert value(metrics, "llmgw_score_sum", scorer="load") == 1.5
    assert value(metrics, "llmgw_cancellation_latency_seconds_bucket", le="1.0") == 1
    assert value(metrics, "llmgw_cancellation_latency_seconds_bucket", le="0.75") == 0
    assert value(metrics, "llmgw_ready") == 1
    assert value(metrics, "llmgw_log_lines_dropped_total") == 4
    assert value(metrics, "process_open_fds") > 0
