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
    tokens: int | None = None  # generated since the process began

    @property
    def held_up(self) -> int:
        """Waiting for a slot: what waits for something else (a transfer, a grammar) says nothing of room."""
        return (self.waiting_capacity if self.waiting_capacity is not None else self.waiting) or 0


@frozen
class Parts:
    """What makes an endpoint full: each 1 when it is, and the largest is its saturation."""

    load: float = 0.0  # of the capacity
    queue: float = 0.0  # of the queue limit
    kv: float = 0.0  # of the KV limit

    @property
    def saturation(self) -> float:
        return max(self.load, self.queue, self.kv)

    @property
    def fullest(self) -> str:
        """The part that decides."""
        return max(("load", "queue", "kv"), key=lambda name: float(getattr(self, name)))


@frozen
class Room:
    """What an endpoint shows besides what we sent: made once a sample, asked at every decision."""

    others: int = 0  # requests of others there
    runs: int | None = None  # what it can run now; None: no sample, so what we sent is all there is to know
    capacity: int | None = None
    kv: float = 0.0  # of the KV limit
    queue_limit: float = QUEUE_LIMIT

    def saturation(self, ours: int) -> float:
        """``ours``: requests of ours there, and granted on their way there."""
        load = ours + self.others
        s = load / self.capacity if self.capacity else 0.0
        if self.runs is not None:
            queue = (load - self.runs) / self.queue_limit
            if queue > s:
                s = queue
        return self.kv if self.kv > s else s

    def parts(self, ours: int) -> Parts:
        load = ours + self.others
        queued = max(0, load - self.runs) if self.runs is not None else 0
        return Parts(load / self.capacity if self.capacity else 0.0, queued / self.queue_limit, self.kv)


def room(
    sample: Sample | None,
    capacity: int | None,
    queue_limit: float = QUEUE_LIMIT,
    kv_limit: float = KV_LIMIT,
    ran: int = 0,
) -> Room:
    """As the last sample shows it. ``capacity`` is what it runs at once (None: nobody knows), ``ran`` what it ran in
    the samples before: requests that came between two steps of its scheduler wait though there is room for them."""
    if sample is None or sample.running is None:
        return Room(capacity=capacity, queue_limit=queue_limit)
    others = max(0, sample.running + (sample.waiting or 0) - sample.ours)
    kv = (sample.kv or 0.0) / kv_limit
    return Room(others, max(may_run(sample, capacity, kv_limit), ran), capacity, kv, queue_limit)


def may_run(sample: Sample, capacity: int | None, kv_limit: float = KV_LIMIT) -> int:
    """What the engine can run now, as far as the sample shows: more than before, but no more than its memory holds."""
    running = sample.running or 0
    if sample.held_up:
        return running
    grown = max(2 * running, running + QUEUE_LIMIT)
    if sample.kv and running * kv_limit < grown * sample.kv:  # so no division by next to nothing
        grown = max(running, int(running * kv_limit / sample.kv)) if running else grown
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
