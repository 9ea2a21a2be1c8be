"""One row a request, written in batches: the ledger. The loop hands rows over and never waits for the disk."""

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import NoReturn

import trio
from attrs import define, field
from sqlite_utils import Database

from llmgw.store.errors import StoreUnavailable
from llmgw.store.limits import StoreLimits
from llmgw.store.sqlite import SqliteStore

COLUMNS = (
    "request_id at tenant key_id band model endpoint route outcome status prompt_tokens completion_tokens"
    " cached_tokens estimated duration_s ttft_s attempts"
).split()
Row = tuple[str, float, str, str, str, str, str, str, str, int, int, int, int, bool, float, float | None, int]

# The same request twice is one row: a batch whose outcome was unknown may be written again.
INSERT = f"insert or ignore into usage ({', '.join(COLUMNS)}) values ({', '.join('?' * len(COLUMNS))})"
PAUSES_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # between attempts while the store is away
LAST_FLUSH_WITHIN_S = 5.0


@define(eq=False)
class UsageWriter:
    """``record`` from anywhere on the loop; ``run`` is a service. ``dropped`` and ``failing`` are for metrics."""

    _store: SqliteStore = field(repr=False)
    _limits: StoreLimits = field(factory=StoreLimits, repr=False)
    _rows: deque[Row] = field(factory=deque, init=False, repr=False)
    _some: trio.Event = field(factory=trio.Event, init=False, repr=False)
    _many: trio.Event = field(factory=trio.Event, init=False, repr=False)
    written: int = field(default=0, init=False)
    dropped: int = field(default=0, init=False)
    failing: str = field(default="", init=False)  # why the last batch was not written

    def record(self, row: Row) -> None:
        """Columns as in COLUMNS. Never waits; when too many wait already the row is dropped and counted."""
        waiting = len(self._rows)
        if waiting >= self._limits.usage_queue_max:
            self.dropped += 1
            return
        self._rows.append(row)
        if waiting == 0:
            self._some.set()
        elif waiting + 1 == self._limits.usage_batch_max:
            self._many.set()

    @property
    def waiting(self) -> int:
        return len(self._rows)

    async def run(self) -> NoReturn:
        """Write what comes; at the end (cancel) what is left, for a bounded time."""
        try:
            while True:
                await self._wait_for_a_batch()
                await self._flush()
        finally:
            with trio.move_on_after(LAST_FLUSH_WITHIN_S, shield=True):
                await self._flush()

    async def _wait_for_a_batch(self) -> None:
        if not self._rows:
            self._some = trio.Event()
            await self._some.wait()
        self._many = trio.Event()
        if len(self._rows) < self._limits.usage_batch_max:
            with trio.move_on_after(self._limits.usage_flush):
                await self._many.wait()

    async def _flush(self) -> None:
        """Until nothing waits. Rows leave the queue only once they are on disk."""
        pauses = iter(PAUSES_S)
        pause = 0.0
        while self._rows:
            batch = list(islice(self._rows, self._limits.usage_batch_max))
            try:
                await self._store.write(lambda db, batch=batch: insert(db, batch))  # type: ignore[misc]
            except StoreUnavailable as error:
                self.failing = str(error)
                pause = next(pauses, pause)
                await trio.sleep(pause)
                continue
            for _ in batch:
                self._rows.popleft()
            self.written += len(batch)
            self.failing, pauses = "", iter(PAUSES_S)


def insert(db: Database, rows: Sequence[Row]) -> None:
    db.conn.executemany(INSERT, rows)
