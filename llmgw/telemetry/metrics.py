"""What is counted while requests pass.

One Trio thread writes, so the hot path adds to plain integers (an event of a stream costs 0.15 µs, a request
that ends 0.5 µs); ``shown`` makes text of them when somebody scrapes. Labels come from configuration and known
tenants only, and their number is bounded. What the fleet knows of endpoints is read at the scrape, so the
series of a removed endpoint are gone.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from attrs import define, field
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from llmgw.telemetry import families, queues
from llmgw.telemetry.shown import FleetCollector, RoadCollector, text

DURATIONS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
GAPS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
LATENCIES = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0)
PAIRS_MAX = 1000  # of tenant and model; beyond it the tenant is "other"
OTHERS_MAX = 200  # models of that tenant; beyond it the model is "other" too
OTHER = "other"


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
        self.duration: Buckets = Buckets(DURATIONS)
        self.ttft: Buckets = Buckets(DURATIONS)
        self.gaps: TokenGaps = Buckets(GAPS)

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
    """``endpoints`` gives, at a scrape, one mapping an endpoint: its ``endpoint`` and ``model``, and under ``values``
    by name what it is (gauge or counter, help, value; None: not known). ``gauges`` gives single numbers by name.
    ``waiting`` gives one mapping a pool, as ``telemetry.queues`` takes them.
    """

    version: str = ""
    endpoints: Callable[[], Iterable[Mapping[str, Any]]] = field(default=tuple)
    gauges: Callable[[], Mapping[str, tuple[str, float]]] = field(default=dict)
    waiting: Callable[[], Iterable[Mapping[str, Any]]] = field(default=tuple)
    more: Callable[[], Iterable[families.Family]] = field(default=tuple)  # what others reckon at the scrape
    in_flight: int = 0
    cancellation: Buckets = field(factory=lambda: Buckets(LATENCIES))
    loop_lag: Buckets = field(factory=lambda: Buckets(LATENCIES))
    retries: Counter[str] = field(factory=Counter)
    fallbacks: Counter[tuple[str, str]] = field(factory=Counter)
    deadlines: Counter[str] = field(factory=Counter)
    door_refusals: Counter[str] = field(factory=Counter)
    filter_drops: Counter[str] = field(factory=Counter)
    scorers: dict[str, list[float]] = field(factory=dict)  # by name: how often, and the sum
    registry: CollectorRegistry = field(factory=lambda: CollectorRegistry(auto_describe=False), init=False)
    _pairs: dict[tuple[str, str], RequestMetrics] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.registry.register(RoadCollector(self))
        self.registry.register(FleetCollector(self))
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def requests(self, tenant: str, model: str) -> RequestMetrics:
        pair = self._pairs.get((tenant, model))
        return pair if pair is not None else self._new_pair(tenant, model)

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

    def pieces(self) -> Iterator[bytes]:
        """Prometheus text format, in pieces of a millisecond or so: whoever sends it lets the loop run between them."""
        yield from text(self.registry, self._pairs)
        yield from queues.text(self.waiting())
        yield from families.text(self.more())

    def render(self) -> bytes:
        return b"".join(self.pieces())

    def _new_pair(self, tenant: str, model: str) -> RequestMetrics:
        known = self._pairs
        if len(known) < PAIRS_MAX:
            key = (tenant, model)
        elif (OTHER, model) in known or len(known) < PAIRS_MAX + OTHERS_MAX:
            key = (OTHER, model)
        else:
            key = (OTHER, OTHER)
        if key not in known:
            known[key] = RequestMetrics()
        return known[key]
