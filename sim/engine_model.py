"""How fast does the engine produce tokens, for whom, and what waits?

A batch of slots, a FIFO queue in front of it, KV blocks behind it. One task a whole engine, the ticker, hands
tokens to every running sequence each step; whoever answers a request waits for its sequence to have some.
Trio's clock only, so the same engine runs in simulated time.
"""

import math
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

import outcome
import trio
from attrs import define, field, frozen

from sim.blocks import BLOCK_TOKENS, Blocks, Lease, block_hashes, tokens_of

_STEPS_CAUGHT_UP = 5  # a ticker that comes late makes up for this many steps, no more
_ROUNDING = 1e-6


@frozen
class EngineShape:
    """What the engine is made of."""

    models: tuple[str, ...] = ("sim",)
    slots: int = 32
    blocks: int = 4096
    prefill_rate: float = 20_000.0  # prompt tokens a second, all sequences together
    decode_rate: float = 50.0  # tokens a second for each sequence
    step: float = 0.02
    seed: int = 0
    context: int = 8192
    batch_rate: float = 0.0  # tokens a second of all sequences together; 0: as many as there are sequences
    prefill_s: float = 0.0  # seconds a prompt takes, however long and whatever else runs; 0: by prefill_rate

    @property
    def longest(self) -> int:
        """Tokens one sequence may have; a sequence alone must always fit."""
        return min(self.context, self.blocks * BLOCK_TOKENS)


class State(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    GONE = "gone"


@define(eq=False)
class Sequence:
    """One prompt and the tokens it is to get."""

    prompt: bytes
    wants: int  # tokens to generate; 0 for embeddings and scores
    name: str = ""  # of the answer it is for
    state: State = field(default=State.WAITING, init=False)
    prompt_tokens: int = field(init=False)
    hashes: list[bytes] = field(init=False)
    made: int = field(default=0, init=False)
    first_at: float | None = field(default=None, init=False)  # when it had its first token
    cached_tokens: int = field(default=0, init=False)
    lease: Lease = field(factory=Lease, init=False)
    _to_prefill: float = field(default=0.0, init=False)
    _prefill_s: float = field(default=0.0, init=False)  # left of a prefill that is reckoned by time
    _credit: float = field(default=0.0, init=False)
    _taken: int = field(default=0, init=False)
    _patient: bool = field(default=False, init=False)  # wants to hear of the end alone
    _waiter: trio.lowlevel.Task | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.prompt_tokens = max(1, tokens_of(self.prompt))
        self.hashes = block_hashes(self.prompt)

    async def tokens(self) -> int:
        """How many more there are since last asked, at least one; 0 when there will be no more."""
        while self.state is not State.DONE and (self._patient or self.made == self._taken):
            self._waiter = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._stop_waiting)
        more = self.made - self._taken
        self._taken = self.made
        return more

    async def all_tokens(self) -> int:
        """How many there are once there will be no more; wakes once, not for each token."""
        self._patient = True
        return await self.tokens()

    def admitted(self, lease: Lease, prefill_s: float = 0.0) -> None:
        self.lease, self.state = lease, State.RUNNING
        self.cached_tokens = lease.hit * BLOCK_TOKENS
        # After a preemption what was generated is computed again, with the prompt.
        self._prefill_s = prefill_s
        self._to_prefill = 0.0 if prefill_s else float(self.prompt_tokens + self.made - self.cached_tokens)
        self._credit = 0.0

    def prefill(self, budget: float, elapsed: float) -> float:
        """Spend of the step's budget; returns what is left of it."""
        self._prefill_s = left if (left := self._prefill_s - elapsed) > _ROUNDING else 0.0
        spent = min(budget, self._to_prefill)
        self._to_prefill -= spent
        if self._to_prefill < _ROUNDING:
            self._to_prefill = 0.0
        return budget - spent

    @property
    def prefilled(self) -> bool:
        return self._to_prefill == 0.0 and self._prefill_s == 0.0

    @property
    def computed_blocks(self) -> int:
        return int(self.prompt_tokens + self.made - self._to_prefill) // BLOCK_TOKENS

    def due(self, tokens: float) -> int:
        """Whole tokens to hand over now; the first comes with the prefill's end."""
        self._credit = max(1.0, self._credit + tokens) if not self.made else self._credit + tokens
        whole = min(int(self._credit + _ROUNDING), self.wants - self.made)
        self._credit -= whole
        return whole

    def wake(self) -> None:
        if self._waiter is not None and (self.state is State.DONE or not self._patient):
            task, self._waiter = self._waiter, None
            trio.lowlevel.reschedule(task, outcome.Value(None))

    def _stop_waiting(self, _: object) -> trio.lowlevel.Abort:
        self._waiter = None
        return trio.lowlevel.Abort.SUCCEEDED


@define
class Counters:
    served: int = 0
    aborted: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preempted: int = 0


@define(eq=False)
class Engine:
    shape: EngineShape
    blocks: Blocks = field(init=False)
    counters: Counters = field(factory=Counters, init=False)
    waiting: deque[Sequence] = field(factory=deque, init=False)
    running: dict[Sequence, None] = field(factory=dict, init=False)  # in the order they were admitted
    wedged: bool = field(default=False, init=False)  # takes requests, makes no token
    _work: trio.Event = field(factory=trio.Event, init=False)
    _ticked: float = field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        self.blocks = Blocks(self.shape.blocks)

    @contextmanager
    def sequence(self, prompt: bytes, wants: int, name: str = "") -> Iterator[Sequence]:
        """Queue a prompt; whatever ends the block, a cancel included, frees its slot and its blocks at once."""
        sequence = Sequence(prompt, wants, name)
        if sequence.prompt_tokens + wants > self.shape.longest:
            raise ValueError("longer than the engine's context")
        self.waiting.append(sequence)
        self._work.set()
        try:
            yield sequence
        finally:
            self._leave(sequence)

    async def run(self) -> None:
        """The ticker; for ever."""
        step = self.shape.step
        while True:
            if not self.waiting and not self.running:
                self._work = trio.Event()
                await self._work.wait()
                self._ticked = trio.current_time()
                # Whoever comes within the step is served by its end, as in a batch that has just begun.
            await trio.sleep_until(max(self._ticked + step, trio.current_time()))
            now = trio.current_time()
            elapsed = min(now - self._ticked, step * _STEPS_CAUGHT_UP)
            self._ticked = now
            if not self.wedged:
                self.tick(elapsed)

    def tick(self, elapsed: float) -> None:
        """One step: admit, prefill, decode."""
        self._admit()
        budget = self.shape.prefill_rate * elapsed
        tokens = self._rate() * elapsed
        for sequence in list(self.running):
            if sequence.state is not State.RUNNING:
                continue  # preempted by an earlier one in this very step
            if not sequence.prefilled:
                budget = sequence.prefill(budget, elapsed)
                if not sequence.prefilled:
                    continue
            self._decode(sequence, tokens)

    @property
    def kv_usage(self) -> float:
        return self.blocks.used / self.blocks.total

    def _rate(self) -> float:
        """Tokens a second for each: its own, or its share of what the batch makes."""
        shape = self.shape
        if not shape.batch_rate or not self.running:
            return shape.decode_rate
        return min(shape.decode_rate, shape.batch_rate / len(self.running))

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.shape.slots:
            first = self.waiting[0]
            lease = self.blocks.lease(first.hashes, first.prompt_tokens + first.made)
            if lease is None:
                return  # first come, first served: nobody overtakes
            self.waiting.popleft()
            first.admitted(lease, self.shape.prefill_s)
            self.running[first] = None
            self.counters.prefix_queries += first.prompt_tokens
            self.counters.prefix_hits += first.cached_tokens
            if not first.made:
                self.counters.prompt_tokens += first.prompt_tokens

    def _decode(self, sequence: Sequence, tokens: float) -> None:
        due = sequence.due(tokens)
        needs = math.ceil((sequence.prompt_tokens + sequence.made + due) / BLOCK_TOKENS)
        while sequence.lease.size < needs:
            if self.blocks.grow(sequence.lease):
                continue
            if self._preempt_last() is sequence:
                return
        sequence.made += due
        if due and sequence.first_at is None:
            sequence.first_at = self._ticked
        self.counters.generation_tokens += due
        if sequence.made >= sequence.wants:
            self._done(sequence)
        if due or sequence.state is State.DONE:
            sequence.wake()

    def _preempt_last(self) -> Sequence:
        """The youngest gives its blocks back and starts over, at the head of the queue."""
        youngest, _ = self.running.popitem()
        self.blocks.release(youngest.lease, youngest.computed_blocks)
        youngest.state = State.WAITING
        self.waiting.appendleft(youngest)
        self.counters.preempted += 1
        return youngest

    def _done(self, sequence: Sequence) -> None:
        del self.running[sequence]
        self.blocks.release(sequence.lease, sequence.computed_blocks)
        sequence.state = State.DONE

    def _leave(self, sequence: Sequence) -> None:
        if sequence.state is State.DONE:
            self.counters.served += 1
            return
        self.counters.aborted += 1
        if sequence.state is State.RUNNING:
            del self.running[sequence]
            self.blocks.release(sequence.lease, sequence.computed_blocks)
        else:
            self.waiting.remove(sequence)
        sequence.state = State.GONE
