"""How what was counted looks to Prometheus: its text format, in pieces.

A thousand pairs of tenant and model are 4 MB of text and 0.4 s in prometheus_client's hands, which the loop would
stand still for. So histograms and counters by pair are written here, a few dozen pairs at a time; the rest is
small and goes through a registry.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from llmgw.telemetry.metrics import Buckets, Metrics, RequestMetrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PAIRS_A_PIECE = 40
ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


Lines = Callable[[str, "RequestMetrics"], Iterator[str]]


def text(registry: CollectorRegistry, pairs: Mapping[tuple[str, str], "RequestMetrics"]) -> Iterator[bytes]:
    yield bytes(generate_latest(registry))
    for name, kind, what, lines in _FAMILIES:
        yield f"# HELP {name} {what}\n# TYPE {name} {kind}\n".encode()
        yield from _by_pair(list(pairs.items()), lines)


def _by_pair(pairs: list[tuple[tuple[str, str], "RequestMetrics"]], lines: Lines) -> Iterator[bytes]:
    for start in range(0, len(pairs), PAIRS_A_PIECE):
        piece = pairs[start : start + PAIRS_A_PIECE]
        shown = (line for (tenant, model), counted in piece for line in lines(_labels(tenant, model), counted))
        yield "".join(shown).encode("utf-8", "replace")


def _labels(tenant: str, model: str) -> str:
    return f'tenant="{tenant.translate(ESCAPES)}",model="{model.translate(ESCAPES)}"'


def _ended(labels: str, counted: "RequestMetrics") -> Iterator[str]:
    for (outcome, status), count in counted.outcomes.items():
        yield f'llmgw_requests_total{{{labels},outcome="{outcome}",status="{status}"}} {count}\n'


def _tokens(labels: str, counted: "RequestMetrics") -> Iterator[str]:
    for kind, count in (("prompt", counted.prompt), ("completion", counted.completion), ("cached", counted.cached)):
        yield f'llmgw_tokens_total{{{labels},kind="{kind}"}} {count}\n'


def _histogram(name: str, of: Callable[["RequestMetrics"], "Buckets"]) -> Lines:
    def lines(labels: str, counted: "RequestMetrics") -> Iterator[str]:
        buckets = of(counted)
        listed = cumulative(buckets)
        if not listed[-1][1]:
            return  # a pair that never streamed has no such series
        for bound, count in listed:
            yield f'{name}_bucket{{{labels},le="{bound}"}} {count}\n'
        yield f"{name}_sum{{{labels}}} {buckets.sum}\n{name}_count{{{labels}}} {listed[-1][1]}\n"

    return lines


def _histogram_family(name: str, what: str, of: Callable[["RequestMetrics"], "Buckets"]) -> tuple[str, str, str, Lines]:
    return name, "histogram", what, _histogram(name, of)


_FAMILIES: tuple[tuple[str, str, str, Lines], ...] = (
    ("llmgw_requests_total", "counter", "requests ended", _ended),
    ("llmgw_tokens_total", "counter", "tokens relayed", _tokens),
    _histogram_family("llmgw_request_duration_seconds", "whole requests", lambda one: one.duration),
    _histogram_family("llmgw_time_to_first_token_seconds", "of streams", lambda one: one.ttft),
    _histogram_family("llmgw_inter_token_gap_seconds", "between events of a stream", lambda one: one.gaps),
)


def cumulative(buckets: "Buckets") -> list[tuple[str, int]]:
    """As Prometheus wants it: upper bound and how many are at or below it."""
    total, listed = 0, []
    for bound, count in zip((*map(str, buckets.bounds), "+Inf"), buckets.counts, strict=True):
        total += count
        listed.append((bound, total))
    return listed


class RoadCollector(Collector):
    """What happened on the request road as a whole."""

    def __init__(self, road: "Metrics") -> None:
        self._road = road

    def collect(self) -> Iterator[Metric]:
        road = self._road
        yield GaugeMetricFamily("llmgw_requests_in_flight", "requests on the road", value=road.in_flight)
        yield _counter("llmgw_retries", "attempts after the first", "reason", road.retries)
        yield _counter("llmgw_deadlines_fired", "limits that ran out", "deadline", road.deadlines)
        yield _counter("llmgw_refusals", "answered without an engine, off the road", "reason", road.door_refusals)
        yield _counter("llmgw_filter_drops", "endpoints passed over", "filter", road.filter_drops)
        fallbacks = CounterMetricFamily("llmgw_fallbacks", "requests sent to another model", labels=["model", "to"])
        for pair, count in list(road.fallbacks.items()):
            fallbacks.add_metric(list(pair), count)
        yield fallbacks
        scores = SummaryMetricFamily("llmgw_score", "what a scorer gave the endpoints it weighed", labels=["scorer"])
        for name, (number, total) in list(road.scorers.items()):
            scores.add_metric([name], count_value=int(number), sum_value=total)
        yield scores
        yield _one_histogram("llmgw_cancellation_latency_seconds", "client gone to engine closed", road.cancellation)
        yield _one_histogram("llmgw_loop_lag_seconds", "how late the event loop runs", road.loop_lag)


class FleetCollector(Collector):
    """What is true of the process and of each endpoint at the moment somebody asks."""

    def __init__(self, fleet: "Metrics") -> None:
        self._fleet = fleet

    def collect(self) -> Iterator[Metric]:
        yield from self._endpoints()
        info = GaugeMetricFamily("llmgw_build_info", "always 1", labels=["version"])
        info.add_metric([self._fleet.version], 1)
        yield info
        for name, (what, value) in self._fleet.gauges().items():
            if name.endswith("_total"):
                yield CounterMetricFamily(f"llmgw_{name.removesuffix('_total')}", what, value=value)
            else:
                yield GaugeMetricFamily(f"llmgw_{name}", what, value=value)

    def _endpoints(self) -> Iterator[Metric]:
        families: dict[str, Any] = {}
        parts = GaugeMetricFamily(
            "llmgw_endpoint_saturation_part", "what fills it, each 1 when full", labels=["endpoint", "model", "part"]
        )
        for facts in self._fleet.endpoints():
            labels = [str(facts["endpoint"]), str(facts["model"])]
            for part, share in facts.get("parts", {}).items():
                parts.add_metric([*labels, part], share)
            for name, (kind, what, value) in facts["values"].items():
                if name not in families:
                    made: Any = GaugeMetricFamily if kind == "gauge" else CounterMetricFamily
                    families[name] = made(f"llmgw_endpoint_{name}", what, labels=["endpoint", "model"])
                if value is not None:
                    families[name].add_metric(labels, float(value))
        yield from families.values()
        yield parts


def _one_histogram(name: str, what: str, buckets: "Buckets") -> HistogramMetricFamily:
    return HistogramMetricFamily(name, what, buckets=cumulative(buckets), sum_value=buckets.sum)


def _counter(name: str, what: str, label: str, counts: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, what, labels=[label])
    for value, count in list(counts.items()):
        family.add_metric([value], count)
    return family
