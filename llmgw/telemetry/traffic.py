"""What each model was asked and has answered since this process began, over all tenants: counters that only grow."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from llmgw.core.outcome import Outcome
from llmgw.telemetry.metrics import DURATIONS, RequestMetrics

BOUNDS_S = DURATIONS
# Turned away before an engine was asked, because there was no room or a limit was reached: the gateway's word.
REFUSED = {
    Outcome.RATE_LIMITED, Outcome.BUDGET_SPENT, Outcome.QUEUE_FULL, Outcome.WAITED_TOO_LONG, Outcome.BODIES_FULL,
    Outcome.SHUTTING_DOWN,
}  # fmt: skip
_REFUSED = {one.label for one in REFUSED}
# A stream that breaks off has begun with 200, so it is the outcome that counts, and not the status.
# What an operator has ended has not failed: it is nobody's fault, and nothing to be woken for.
_NO_FAILURE = {*REFUSED, Outcome.CANCELLED}
_FAILED = {one.label for one in Outcome if one.end.blame in ("engine", "gateway") and one not in _NO_FAILURE}


def traffic_json(pairs: Mapping[tuple[str, str], RequestMetrics]) -> Iterator[dict[str, Any]]:
    """One by one by name, so that others may run between them."""
    by_model: defaultdict[str, list[RequestMetrics]] = defaultdict(list)
    for (_, model), pair in pairs.items():
        by_model[model].append(pair)
    for model in sorted(by_model):
        yield {"model": model, **_sum(by_model[model])}


def _sum(pairs: Iterable[RequestMetrics]) -> dict[str, Any]:
    requests = failed = refused = prompt = completion = 0
    counts = [0] * (len(BOUNDS_S) + 1)
    for pair in pairs:
        for (outcome, _), number in pair.outcomes.items():
            requests += number
            failed += number * (outcome in _FAILED)
            refused += number * (outcome in _REFUSED)
        prompt, completion = prompt + pair.prompt, completion + pair.completion
        counts = [one + more for one, more in zip(counts, pair.ttft.counts, strict=True)]
    return {
        "requests": requests,
        "failed": failed,
        "refused": refused,
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "ttft_counts": counts,
    }
