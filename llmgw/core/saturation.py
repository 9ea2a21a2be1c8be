"""How full an endpoint is, and a pool: 1 is full, more is queueing.

``s = max(load / capacity, queued / queue_limit, kv / kv_limit)``. ``load`` is what we sent and what others
have there; ``queued`` is what of it the engine can't run. Unknown is not zero: an endpoint without a
sample is judged by what we sent it.
"""

from collections.abc import Iterable

from attrs import frozen

from llmgw.core.fleet import Engine

QUEUE_LIMIT = 5
KV_LIMIT = 0.8
# How many requests an engine runs at once unless told otherwise: vLLM's max_num_seqs, SGLang's default
# on one GPU, llama.cpp's --parallel 1; a hosted API does not say.
BATCH: dict[Engine, int | None] = {
    Engine.VLLM: 256,
    Engine.SGLANG: 256,
    Engine.LLAMACPP: 1,
    Engine.SIM: 32,
    Engine.OPENAI: None,
}


@frozen
class Sample:
    """One scrape of an engine's metrics. ``at`` on Trio's clock; None = the engine does not say."""

    at: float
    running: int | None = None
    waiting: int | None = None
    waiting_capacity: int | None = None  # waiting for a slot, where the engine tells reasons apart
    kv: float | None = None  # 0..1, the worst of several data-parallel ranks
    loaded_adapters: frozenset[str] = frozenset()
    adapters_max: int | None = None
    process_start: float | None = None  # another value: a new engine process
    ours: int = 0  # requests of ours there when it was taken

    @property
    def held_up(self) -> int:
        """Waiting for a slot: what waits for something else (a transfer, a grammar) says nothing of room."""
        return (self.waiting_capacity if self.waiting_capacity is not None else self.waiting) or 0


def saturation(in_flight: int, sample: Sample | None, capacity: int | None) -> float:
    """Of one endpoint; ``in_flight`` is ours, ``capacity`` what it runs at once (None: nobody knows)."""
    if sample is None or sample.running is None:
        return in_flight / capacity if capacity else 0.0
    waiting = sample.waiting or 0
    load = in_flight + max(0, sample.running + waiting - sample.ours)
    queued = max(0, load - may_run(sample, capacity))
    parts = [queued / QUEUE_LIMIT]
    if capacity:
        parts.append(load / capacity)
    if sample.kv is not None:
        parts.append(sample.kv / KV_LIMIT)
    return max(parts)


def may_run(sample: Sample, capacity: int | None) -> int:
    """What the engine can run now, as far as the sample shows."""
    running = sample.running or 0
    if sample.held_up:
        return running
    grown = max(2 * running, running + QUEUE_LIMIT)
    # It runs what it runs, whatever we believed it can.
    return max(running, min(capacity, grown)) if capacity else grown


def pool_saturation(members: Iterable[tuple[float, float]]) -> float:
    """Of a pool, from its usable endpoints' (saturation, weight): the weighted mean of ``min(s, 1)`` while any
    is below 1, else the smallest s. An empty pool is full."""
    known = list(members)
    if not known:
        return 1.0
    if all(s >= 1 for s, _ in known):
        return min(s for s, _ in known)
    total = sum(weight for _, weight in known)
    return sum(min(s, 1.0) * weight for s, weight in known) / total
