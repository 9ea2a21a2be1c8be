"""How much passes, from counters that only grow: what was counted between two looks."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import define, field, frozen

WINDOW_S = 60.0
SPACING_S = 3.0  # of the looks that are kept: so many of them fill the window, however often one looks
SHARE = 0.99

Json = Mapping[str, Any]


@frozen
class Rates:
    """Over the last minute or what is known of it; None: nothing was seen yet."""

    requests_s: float | None = None
    tokens_s: float | None = None
    failed_share: float | None = None
    ttft_p99_s: float | None = None  # the upper bound of its bucket, and of the last bucket the lower
    models: Mapping[str, "Rates"] = field(factory=dict)


@frozen
class Counts:
    """Of one model or of all. ``first``: first tokens by bucket."""

    requests: int = 0
    failed: int = 0
    tokens: int = 0
    first: tuple[int, ...] = ()

    def since(self, before: "Counts") -> "Counts":
        return Counts(
            self.requests - before.requests,
            self.failed - before.failed,
            self.tokens - before.tokens,
            tuple(now - then for now, then in zip(self.first, before.first or (0,) * len(self.first), strict=True)),
        )

    @property
    def sound(self) -> bool:
        return min(self.requests, self.failed, self.tokens, *self.first) >= 0


@frozen
class Look:
    at: float  # on the console's clock
    since: float  # wall time at which the counting began
    bounds_s: tuple[float, ...]
    models: Mapping[str, Counts]

    def goes_on(self, before: "Look") -> bool:
        """Whether the same process has counted on: one that has started again, or another, knows other numbers."""
        return (
            (self.since, self.bounds_s) == (before.since, before.bounds_s)
            and before.models.keys() <= self.models.keys()
            and all(self.models[name].since(counts).sound for name, counts in before.models.items())
        )


@define(eq=False)
class Traffic:
    _looks: deque[Look] = field(factory=deque, init=False)

    def take(self, said: Json, now: float) -> None:
        """``GET /traffic``; ``now`` only rises."""
        look, looks = _look(said, now), self._looks
        if looks and not look.goes_on(looks[-1]):
            looks.clear()
        if len(looks) > 1 and looks[-1].at - looks[-2].at < SPACING_S:
            looks.pop()
        looks.append(look)
        while looks[0].at < now - WINDOW_S:
            looks.popleft()

    def rates(self) -> Rates:
        if not self._looks or self._looks[-1].at <= self._looks[0].at:
            return Rates()
        first, last = self._looks[0], self._looks[-1]
        passed = {name: counts.since(first.models.get(name, Counts())) for name, counts in last.models.items()}
        span_s, bounds_s = last.at - first.at, last.bounds_s
        whole = _rates(_sum(passed.values()), span_s, bounds_s)
        return Rates(
            whole.requests_s,
            whole.tokens_s,
            whole.failed_share,
            whole.ttft_p99_s,
            {name: _rates(counts, span_s, bounds_s) for name, counts in passed.items()},
        )


def _look(said: Json, now: float) -> Look:
    models = {
        str(one["model"]): Counts(one["requests"], one["failed"], one["completion_tokens"], tuple(one["ttft_counts"]))
        for one in said["models"]
    }
    return Look(now, float(said["since"]), tuple(said["ttft_bounds_s"]), models)


def _sum(all_counts: Iterable[Counts]) -> Counts:
    found = list(all_counts)
    return Counts(
        sum(one.requests for one in found),
        sum(one.failed for one in found),
        sum(one.tokens for one in found),
        tuple(map(sum, zip(*(one.first for one in found), strict=True))),
    )


def _rates(passed: Counts, span_s: float, bounds_s: Sequence[float]) -> Rates:
    return Rates(
        passed.requests / span_s,
        passed.tokens / span_s,
        passed.failed / passed.requests if passed.requests else None,
        _quantile(passed.first, bounds_s),
    )


def _quantile(counts: Sequence[int], bounds_s: Sequence[float]) -> float | None:
    wanted, seen = SHARE * sum(counts), 0
    for count, bound_s in zip(counts, (*bounds_s, *bounds_s[-1:]), strict=False):
        seen += count
        if count and seen >= wanted:
            return bound_s
    return None
