"""How many requests an engine runs at once: said by the operator, guessed from its kind, or learned.

No engine says it in its metrics. What is learned comes from scrapes alone: a full engine shows a queue and no
more running than before; an engine that takes all it is given for a minute can take more.
"""

from attrs import define, field

from llmgw.core.saturation import KV_LIMIT, Sample

LOADED = 0.9  # of the capacity: from here on an empty queue is news
PATIENCE_S = 60.0  # this long, until the capacity is believed to be larger


@define(eq=False)
class Capacity:
    """``value`` is None where nobody knows (a hosted API). Times are the samples' own."""

    given: int | None = None  # the operator's word: nothing is learned
    preset: int | None = None  # of this kind of engine, unless told otherwise
    kv_limit: float = KV_LIMIT
    learned: int | None = field(default=None, init=False)
    _why: str = field(default="", init=False)
    _before: Sample | None = field(default=None, init=False)  # the sample before, if it showed a queue
    _unqueued_since: float | None = field(default=None, init=False)

    @property
    def value(self) -> int | None:
        return self.given or self.learned or self.preset

    @property
    def how(self) -> str:
        """How it is known, for people."""
        if self.given:
            return "given in the config"
        if self.learned is not None:
            return f"learned: {self._why}"
        return "not known" if self.preset is None else "usual for this engine"

    def sampled(self, sample: Sample, load: int) -> bool:
        """One more scrape, and what is there by our reckoning; whether the capacity changed."""
        before = self.value
        if not self.given and before is not None and sample.running is not None:
            self._learn(sample, sample.running, load, before)
        return self.value != before

    def restarted(self) -> None:
        """Another process: what its predecessor could do is not known of it."""
        self.learned, self._why, self._before, self._unqueued_since = None, "", None, None

    def _learn(self, sample: Sample, running: int, load: int, capacity: int) -> None:
        if running > capacity:
            self._know(running, f"{running} were running")
        elif sample.kv is not None and sample.kv >= self.kv_limit:
            # What holds it back is memory, and says nothing of slots.
            self._before = self._unqueued_since = None
        elif sample.held_up:
            self._queue_seen(sample, running, capacity)
        else:
            self._before = None
            self._no_queue(sample.at, load, capacity)

    def _queue_seen(self, sample: Sample, running: int, capacity: int) -> None:
        before, self._before, self._unqueued_since = self._before, sample, None
        if before is None or before.running is None or running > before.running:
            return  # once may be chance, and a batch that still fills is not full
        most = max(1, before.running)
        if most < capacity:
            self._know(most, f"{sample.held_up} waited while {most} were running")

    def _no_queue(self, at: float, load: int, capacity: int) -> None:
        if load < LOADED * capacity:
            self._unqueued_since = None
        elif self._unqueued_since is None:
            self._unqueued_since = at
        elif at - self._unqueued_since >= PATIENCE_S:
            self._know(2 * capacity, f"nothing waited for {PATIENCE_S:g} s with {load} there")

    def _know(self, capacity: int, why: str) -> None:
        self.learned, self._why = capacity, why
        self._before = self._unqueued_since = None
