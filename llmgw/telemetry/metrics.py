"""What is counted, and how it is shown to Prometheus.

One Trio thread writes, so the hot path adds to plain integers; a collector makes metric families of them
when somebody scrapes. Labels come from configuration tables only, and their number is bounded. What the
fleet knows of endpoints is read at the scrape, so the series of a removed endpoint are gone.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from attrs import define, field
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

DURATIONS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
GAPS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
LATENCIES = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0)
PAIRS_MAX = 2000


class Buckets:
    """A histogram of floats; ``observe`` is a bisection and two additions."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """As Prometheus wants it: upper bound and how many are at or below it."""
        total, listed = 0, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            listed.append((bound, float(total)))
        return listed

    def quantile(self, share: float) -> float:
        """The upper bound of the bucket in which that share of values ends; 0 without values."""
        wanted, seen = share * self.count, 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            seen += count
            if count and seen >= wanted:
                return bound
        return 0.0


TokenGaps = Buckets


class RequestMetrics:
    """Of one tenant and model."""

    __slots__ = ("cached", "completion", "duration", "gaps", "outcomes", "prompt", "ttft")

    def __init__(self) -> None:
        self.outcomes: dict[tuple[str, int], int] = {}
        self.prompt = self.completion = self.cached = 0
        self.duration, self.ttft, self.gaps = Buckets(DURATIONS), Buckets(DURATIONS), Buckets(GAPS)

    def ended(
        self,
        outcome: str,
        status: int,
        duration_s: float,
        ttft_s: float | None,
        prompt: int,
        completion: int,
        cached: int,
    ) -> None:
        key = (outcome, status)
        self.outcomes[key] = self.outcomes.get(key, 0) + 1
        self.duration.observe(duration_s)
        if ttft_s is not None:
            self.ttft.observe(ttft_s)
        self.prompt += prompt
        self.completion += completion
        self.cached += cached


@define(eq=False)
class Metrics:
    """``endpoints`` gives, at a scrape, one mapping per endpoint (see daemon); ``gauges`` single numbers by name."""

    version: str = ""
    endpoints: Callable[[], Iterable[Mapping[str, Any]]] = field(default=tuple)
    gauges: Callable[[], Mapping[str, tuple[str, float]]] = field(default=dict)
    in_flight: int = 0
    cancellation: Buckets = field(factory=lambda: Buckets(LATENCIES))
    loop_lag: Buckets = field(factory=lambda: Buckets(LATENCIES))
    retries: Counter[str] = field(factory=Counter)
    fallbacks: Counter[tuple[str, str]] = field(factory=Counter)
    deadlines: Counter[str] = field(factory=Counter)
    door_refusals: Counter[str] = field(factory=Counter)
    filter_drops: Counter[str] = field(factory=Counter)
    scorers: dict[str, list[float]] = field(factory=dict)  # name -> [count, sum]
    registry: CollectorRegistry = field(factory=lambda: CollectorRegistry(auto_describe=False), init=False)
    _pairs: dict[tuple[str, str], RequestMetrics] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.registry.register(_Shown(self))
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def requests(self, tenant: str, model: str) -> RequestMetrics:
        pair = self._pairs.get((tenant, model))
        if pair is None:
            key = (tenant, model) if len(self._pairs) < PAIRS_MAX else ("other", model if model == "none" else "other")
            pair = self._pairs.setdefault(key, RequestMetrics())
        return pair

    def pairs(self) -> Mapping[tuple[str, str], RequestMetrics]:
        return self._pairs

    def began(self) -> None:
        self.in_flight += 1

    def left(self) -> None:
        self.in_flight -= 1

    def retried(self, reason: str) -> None:
        self.retries[reason] += 1

    def fell_back(self, model: str, other: str) -> None:
        self.fallbacks[(model, other)] += 1

    def scored(self, names: tuple[str, ...], scores: tuple[float, ...]) -> None:
        for name, score in zip(names, scores, strict=False):
            sums = self.scorers.setdefault(name, [0.0, 0.0])
            sums[0] += 1
            sums[1] += score

    def render(self) -> bytes:
        """Prometheus text format."""
        return bytes(generate_latest(self.registry))


class _Shown(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._m = metrics

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield from self._road()
        yield from self._endpoints()
        yield from self._gauges()

    def _requests(self) -> Iterator[Metric]:
        labels = ["tenant", "model"]
        total = CounterMetricFamily("llmgw_requests", "requests ended", labels=[*labels, "outcome", "status"])
        tokens = CounterMetricFamily("llmgw_tokens", "tokens relayed", labels=[*labels, "kind"])
        duration = HistogramMetricFamily("llmgw_request_duration_seconds", "whole requests", labels=labels)
        ttft = HistogramMetricFamily("llmgw_time_to_first_token_seconds", "of streams", labels=labels)
        gaps = HistogramMetricFamily("llmgw_inter_token_gap_seconds", "between events of a stream", labels=labels)
        for pair, counted in list(self._m.pairs().items()):
            for (outcome, status), count in counted.outcomes.items():
                total.add_metric([*pair, outcome, str(status)], count)
            kinds = {"prompt": counted.prompt, "completion": counted.completion, "cached": counted.cached}
            for kind, count in kinds.items():
                tokens.add_metric([*pair, kind], count)
            for family, buckets in ((duration, counted.duration), (ttft, counted.ttft), (gaps, counted.gaps)):
                family.add_metric(list(pair), buckets.cumulative(), buckets.sum)
        yield from (total, tokens, duration, ttft, gaps)

    def _road(self) -> Iterator[Metric]:
        m = self._m
        yield GaugeMetricFamily("llmgw_requests_in_flight", "requests on the road", value=m.in_flight)
        yield _counter("llmgw_retries", "attempts after the first", "reason", m.retries)
        yield _counter("llmgw_deadlines_fired", "limits that ran out", "deadline", m.deadlines)
        yield _counter("llmgw_refusals", "answered without an engine, off the road", "reason", m.door_refusals)
        yield _counter("llmgw_filter_drops", "endpoints passed over", "filter", m.filter_drops)
        fallbacks = CounterMetricFamily("llmgw_fallbacks", "requests sent to another model", labels=["model", "to"])
        for pair, count in m.fallbacks.items():
            fallbacks.add_metric(list(pair), count)
        yield fallbacks
        sums = CounterMetricFamily("llmgw_scores_sum", "sum of a scorer's values", labels=["scorer"])
        counts = CounterMetricFamily("llmgw_scores_count", "how often it scored", labels=["scorer"])
        for name, (number, total) in m.scorers.items():
            sums.add_metric([name], total)
            counts.add_metric([name], number)
        yield from (sums, counts)
        for name, what, buckets in (
            ("llmgw_cancellation_latency_seconds", "client gone to engine closed", m.cancellation),
            ("llmgw_loop_lag_seconds", "how late the event loop runs", m.loop_lag),
        ):
            yield HistogramMetricFamily(name, what, buckets=buckets.cumulative(), sum_value=buckets.sum)

    def _endpoints(self) -> Iterator[Metric]:
        gauges: dict[str, GaugeMetricFamily] = {}
        counters: dict[str, CounterMetricFamily] = {}
        for facts in self._m.endpoints():
            labels = [str(facts["endpoint"]), str(facts["model"])]
            for name, (kind, what, value) in facts["values"].items():
                full = f"llmgw_endpoint_{name}"
                families: dict[str, Any] = gauges if kind == "gauge" else counters
                family = families.get(full)
                if family is None:
                    made: Any = GaugeMetricFamily if kind == "gauge" else CounterMetricFamily
                    family = families[full] = made(full, what, labels=["endpoint", "model"])
                if value is not None:
                    family.add_metric(labels, float(value))
        yield from gauges.values()
        yield from counters.values()

    def _gauges(self) -> Iterator[Metric]:
        info = GaugeMetricFamily("llmgw_build_info", "always 1", labels=["version"])
        info.add_metric([self._m.version], 1)
        yield info
        for name, (what, value) in self._m.gauges().items():
            if name.endswith("_total"):
                yield CounterMetricFamily(f"llmgw_{name.removesuffix('_total')}", what, value=value)
            else:
                yield GaugeMetricFamily(f"llmgw_{name}", what, value=value)


def _counter(name: str, what: str, label: str, counts: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, what, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family
