"""How many requests an engine runs at once: said by the operator, guessed from its kind, or learned.

No engine says it in its metrics. What is learned comes from scrapes alone: a full engine shows a queue that stays
and a batch that does not move; an engine that takes all it is given for a minute can take more.

A request that came between two steps of an engine's scheduler waits for the next one, in an engine that is far
from full. So a queue counts as one when it is more than half of what admission lets stand there, and it teaches
something when it has stood for ``ROW`` scrapes beside a batch of one size.

To believe in more than an engine can run puts a queue into it, which is what all this is to prevent. So a try that
puts one there is taken back at the second scrape, and the next one comes later each time.
"""

from collections import deque

from attrs import define, field

from llmgw.core.saturation import KV_LIMIT, QUEUE_LIMIT, Sample

LOADED = 0.9  # of the capacity: from here on, that nothing waits is news
PATIENCE_S = 60.0  # this long, until the capacity is believed to be larger; twice as long after each wrong belief
PATIENCE_MOST_S = 3600.0
ROW = 10  # scrapes
STEADY = 0.1  # of the batch: what it may vary by in a row
RECENT = 4  # scrapes that tell what it ran just now


@define(eq=False)
class Capacity:
    """``value`` is None where nobody knows (a hosted API). Times are the samples' own."""

    given: int | None = None  # the operator's word: nothing is learned
    preset: int | None = None  # of this kind of engine, unless told otherwise
    kv_limit: float = KV_LIMIT
    queue_limit: float = QUEUE_LIMIT
    learned: int | None = field(default=None, init=False)
    _why: str = field(default="", init=False)
    _row: "deque[int]" = field(factory=lambda: deque(maxlen=ROW), init=False)  # running, beside a queue
    _recent: "deque[int]" = field(factory=lambda: deque(maxlen=RECENT), init=False)  # running
    _unqueued_since: float | None = field(default=None, init=False)
    _patience_s: float = field(default=PATIENCE_S, init=False)
    _tried_from: int | None = field(default=None, init=False)  # what it was before a try that is not decided yet

    @property
    def value(self) -> int | None:
        return self.given or self.learned or self.preset

    @property
    def ran(self) -> int:
        """The most it ran in the last scrapes: what it could do two seconds ago it can do again."""
        return max(self._recent, default=0)

    @property
    def how(self) -> str:
        """How it is known, for people."""
        if self.given:
            return "given in the config"
        if self.learned is not None:
            return f"learned: {self._why}"
        return "not known" if self.preset is None else "usual for this engine"

    def sampled(self, sample: Sample, load: int) -> None:
        """One more scrape, and what is there by our reckoning."""
        if sample.running is None:
            return
        full_kv = sample.kv is not None and sample.kv >= self.kv_limit
        if full_kv:
            self._recent.clear()  # what it ran before, it has no memory for now
        self._recent.append(sample.running)
        capacity = self.value
        if not self.given and capacity is not None:
            self._learn(sample, sample.running, load, capacity, full_kv)

    def restarted(self) -> None:
        """Another process: what its predecessor could do is not known of it."""
        self.learned, self._why, self._unqueued_since = None, "", None
        self._patience_s, self._tried_from = PATIENCE_S, None
        self._row.clear()
        self._recent.clear()

    def _learn(self, sample: Sample, running: int, load: int, capacity: int, full_kv: bool) -> None:
        if self._tried_from is not None and running > self._tried_from:
            self._patience_s, self._tried_from = PATIENCE_S, None  # it could indeed take more
        if running > capacity:
            self._know(running, f"{running} were running")
        elif full_kv:
            # What holds it back is memory, and says nothing of slots.
            self._row.clear()
            self._unqueued_since = None
        elif sample.held_up > self.queue_limit / 2:
            self._queue_stands(sample, running, capacity)
        else:
            self._row.clear()
            self._takes_all(sample.at, load, capacity)

    def _queue_stands(self, sample: Sample, running: int, capacity: int) -> None:
        self._unqueued_since = None
        self._row.append(running)
        if self._tried_from is not None:
            self._take_back(sample, running, self._tried_from)
            return
        most = max(1, *self._row) if len(self._row) == ROW else capacity
        steady = min(self._row) >= most - max(1.0, STEADY * most)  # a batch that still fills is not full
        if most < capacity and steady:
            self._know(most, f"{sample.held_up} waited while {most} were running")

    def _take_back(self, sample: Sample, running: int, tried_from: int) -> None:
        if len(self._row) < 2:
            return  # once may be chance
        self._know(tried_from, f"{sample.held_up} waited with {running} running when it was given more")
        self._patience_s, self._tried_from = min(2 * self._patience_s, PATIENCE_MOST_S), None

    def _takes_all(self, at: float, load: int, capacity: int) -> None:
        if load < LOADED * capacity:
            self._unqueued_since = None
        elif self._unqueued_since is None:
            self._unqueued_since = at
        elif at - self._unqueued_since >= self._patience_s:
            self._know(2 * capacity, f"nothing waited for {self._patience_s:g} s with {load} there")
            self._tried_from = capacity

    def _know(self, capacity: int, why: str) -> None:
        self.learned, self._why = capacity, why
        self._row.clear()
        self._unqueued_since = None
