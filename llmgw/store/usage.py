"""One row a request, written in batches: the ledger. The loop hands rows over and never waits for the disk."""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import NoReturn

import trio
from attrs import define, field

from llmgw.store.errors import StoreUnavailable
from llmgw.store.face import Database, Store
from llmgw.store.limits import StoreLimits
from llmgw.store.spool import Spool

COLUMNS = (
    "request_id at tenant key_id band model endpoint route outcome status prompt_tokens completion_tokens"
    " cached_tokens estimated duration_s ttft_s attempts"
).split()
Row = tuple[str, float, str, str, str, str, str, str, str, int, int, int, int, bool, float, float | None, int]

PAUSES_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # between attempts while the store is away; the last one repeats
SLOW_S = 1.0  # of an attempt on a store that was well before
LAST_FLUSH_WITHIN_S = 3.0
LAST_SPOOL_WITHIN_S = 3.0
# Rows a statement. SQLite gives the GIL away at every step: with one row a step, a writer beside a busy
# loop waited for it 2,000 times a batch and wrote 2,500 rows/s; with 100 it writes 70,000.
TOGETHER = 100


@define(eq=False)
class UsageWriter:
    """``record`` from anywhere on the loop; ``run`` is a service. ``dropped`` and ``failing`` are for metrics."""

    _store: Store = field(repr=False)
    _limits: StoreLimits = field(factory=StoreLimits, repr=False)
    _rows: deque[Row] = field(factory=deque, init=False, repr=False)
    _some: trio.Event = field(factory=trio.Event, init=False, repr=False)
    _many: trio.Event = field(factory=trio.Event, init=False, repr=False)
    _crowded: trio.Event = field(factory=trio.Event, init=False, repr=False)  # half the queue is full
    _spool: Spool = field(init=False, repr=False)
    written: int = field(default=0, init=False)
    dropped: int = field(default=0, init=False)
    failing: str = field(default="", init=False)  # why the last batch was not written

    def __attrs_post_init__(self) -> None:
        self._spool = Spool(self._store.place.data_dir / "usage.spool", self._limits.spool_max)

    def record(self, row: Row) -> None:
        """Columns as in COLUMNS. Never waits; when too many wait already the row is dropped and counted."""
        waiting = len(self._rows)
        if waiting >= self._limits.usage_queue_max:
            self.dropped += 1
            return
        self._rows.append(row)
        if waiting == 0:
            self._some.set()
        if waiting + 1 == self._limits.usage_batch_max:
            self._many.set()
        if waiting >= self._half:
            self._crowded.set()

    @property
    def _half(self) -> int:
        return self._limits.usage_queue_max // 2

    @property
    def waiting(self) -> int:
        """Rows in memory that are not on disk yet."""
        return len(self._rows)

    @property
    def spooled(self) -> int:
        """Bytes of rows that wait on disk for the store."""
        return self._spool.size

    async def run(self) -> NoReturn:
        """Write what comes; at the end (cancel) what is left, for a bounded time."""
        try:
            await self._take_up_the_spool()
            while True:
                await self._wait_for_a_batch()
                await self._flush()
        finally:
            with trio.move_on_after(LAST_FLUSH_WITHIN_S, shield=True):
                await self._last_flush()
            with trio.move_on_after(LAST_SPOOL_WITHIN_S, shield=True):
                await self._keep_on_disk()

    async def _wait_for_a_batch(self) -> None:
        if not self._rows:
            self._some = trio.Event()
            await self._some.wait()
        self._many = trio.Event()
        if len(self._rows) < self._limits.usage_batch_max:
            with trio.move_on_after(self._limits.usage_flush):
                await self._many.wait()

    async def _flush(self) -> None:
        """Until nothing waits, however long the store is away."""
        pauses = chain(PAUSES_S, iter(lambda: PAUSES_S[-1], None))
        while self._rows:
            if await self._tried(self._next()):
                pauses = chain(PAUSES_S, iter(lambda: PAUSES_S[-1], None))
                await self._take_up_the_spool()
                continue
            if len(self._rows) > self._half:
                await self._make_room()
            await self._pause(next(pauses))

    async def _make_room(self) -> None:
        """Down to a quarter: the next attempt may then take as long as another quarter takes to come."""
        while len(self._rows) > self._half // 2 and await self._spooled():
            pass

    async def _pause(self, most_s: float) -> None:
        """Shorter when half the queue is full again, if the spool has room."""
        if len(self._rows) > self._half:
            await trio.sleep(most_s)
            return
        self._crowded = trio.Event()
        with trio.move_on_after(most_s):
            await self._crowded.wait()

    async def _tried(self, batch: Sequence[Row]) -> bool:
        """A store that takes its time is not waited for while rows crowd in."""
        written = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._let_go_when_crowded, nursery.cancel_scope)
            written = await self._written(batch)
            nursery.cancel_scope.cancel()
        if nursery.cancel_scope.cancelled_caught and not written:
            self.failing = self.failing or "the store does not answer"
        return written

    async def _let_go_when_crowded(self, attempt: trio.CancelScope) -> None:
        await trio.sleep(0 if self.failing else SLOW_S)
        if len(self._rows) <= self._half:
            self._crowded = trio.Event()
            await self._crowded.wait()
        attempt.cancel(reason="usage rows crowd in")

    async def _last_flush(self) -> None:
        while self._rows and await self._written(self._next()):
            pass

    async def _keep_on_disk(self) -> None:
        """What the store didn't take: the next start does. What the spool has no room for is counted."""
        while self._rows:
            if not await self._spooled():
                self.dropped += len(self._rows)
                self._rows.clear()

    def _next(self) -> list[Row]:
        return list(islice(self._rows, self._limits.usage_batch_max))

    async def _written(self, batch: Sequence[Row]) -> bool:
        """Rows leave the queue only once they are on disk. Let go in between they are written again: harmless."""
        try:
            await self._store.write(lambda db: insert(db, batch), abandon=True)
        except StoreUnavailable as error:
            self.failing = str(error)
            return False
        self._forget(batch)
        self.written += len(batch)
        self.failing = ""
        return True

    async def _spooled(self) -> bool:
        """Move a batch to the spool, to make room for newer rows."""
        batch = self._next()
        if not await self._store.beside(lambda: self._spool.put(batch)):
            return False
        self._forget(batch)
        return True

    def _forget(self, batch: Sequence[Row]) -> None:
        for _ in batch:
            self._rows.popleft()

    async def _take_up_the_spool(self) -> None:
        """Store what waits on disk. What can't be stored now stays for the next time."""
        if not self._spool.size:
            return
        lost = self._spool.lost
        try:
            for batch in self._spool.batches(self._limits.usage_batch_max, Row):
                await self._store.write(lambda db, batch=batch: insert(db, batch), abandon=True)  # type: ignore[misc]
                self.written += len(batch)
                if len(self._rows) >= self._limits.usage_batch_max:  # those of now go on, however long this takes
                    await self._written(self._next())
        except StoreUnavailable as error:
            self.failing = str(error)
            self._spool.lost = lost
            return
        self.dropped += self._spool.lost - lost
        self._spool.clear()


def insert(db: Database, rows: Sequence[Row]) -> None:
    """The same request twice is one row: a batch whose outcome was unknown may be written again."""
    for group in _grouped(rows, TOGETHER):
        one = f"({', '.join('?' * len(COLUMNS))})"
        values = ", ".join([one] * len(group))
        db.conn.execute(
            f"insert into usage ({', '.join(COLUMNS)}) values {values} on conflict do nothing",
            list(chain.from_iterable(group)),
        )


def _grouped(rows: Sequence[Row], size: int) -> Iterator[Sequence[Row]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
