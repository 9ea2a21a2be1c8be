"""What happened, told once: a bounded history that many may follow, each at its own pace.

An event is a kind out of a fixed set, a subject, and a sentence. A reader that was away too long is told how
much it missed, and reads the state anew. Written to the store in batches; a crash loses at most the last second.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, NoReturn

import trio
from attrs import define, field

from llmgw.store import events as rows
from llmgw.store.errors import StoreUnavailable
from llmgw.store.events import Event
from llmgw.store.face import Store

FLUSH_S = 0.5
SKIPPED = 1000  # numbers, at each start: a crash loses the latest events, whose numbers must not mean others now
KINDS = frozenset(
    "node.joined node.linked node.silent node.back node.removed node.lost node.target gpu.evidence gpu.cleared"
    " replica.created replica.started replica.blocked replica.ready replica.out replica.failed replica.renewed"
    " replica.waiting replica.leaving replica.returned replica.stopping replica.gone replica.settled"
    " model.applied model.scaled leader.began leader.ended leader.suspended leader.resumed leader.lifted"
    " leader.store_back leader.misfit leader.doubts leader.trusts config.applied"
    " operator.acted endpoint.target".split()
)


@define(eq=False)
class Events:
    """Made by ``await Events.load(store, most)``; ``run`` is a service. ``most``: how many are kept."""

    _store: Store = field(repr=False)
    _most: Callable[[], int] = field(repr=False)
    _wall: Callable[[], float] = field(default=time.time, repr=False)
    last: int = field(default=0, init=False)  # number of the latest
    _ring: deque[Event] = field(factory=deque, init=False, repr=False)
    _unwritten: deque[Event] = field(factory=deque, init=False, repr=False)
    _news: trio.Event = field(factory=trio.Event, init=False, repr=False)
    failing: str = field(default="", init=False)  # why the store does not take them
    _forgotten: int = field(default=0, init=False, repr=False)  # number of the latest that is not remembered

    @classmethod
    async def load(cls, store: Store, most: Callable[[], int], wall: Callable[[], float] = time.time) -> "Events":
        events = cls(store, most, wall)
        await events.read_again()
        return events

    async def read_again(self) -> None:
        """What the leaders before us told; what we tell next is numbered after all of it. Raises StoreUnavailable."""
        most = self._most()
        kept = await self._store.read(lambda conn: rows.latest(conn, most))
        self._ring.clear()
        self._ring.extend(kept)
        if kept:
            self.last, self._forgotten = max(self.last, kept[-1].seq + SKIPPED), kept[0].seq - 1

    def tell(self, kind: str, subject: str, sentence: str, **data: Any) -> Event:
        assert kind in KINDS, kind
        self.last += 1
        event = Event(self.last, self._wall(), kind, subject, sentence, data)
        most = self._most()
        for kept in (self._ring, self._unwritten):
            kept.append(event)
        while len(self._ring) > most:
            self._forgotten = self._ring.popleft().seq
        while len(self._unwritten) > most:
            self._unwritten.popleft()
        news, self._news = self._news, trio.Event()
        news.set()
        return event

    @property
    def newest(self) -> int:
        """Number of the latest that is remembered; 0: none is."""
        return self._ring[-1].seq if self._ring else 0

    def since(self, seq: int, most: int | None = None) -> tuple[Sequence[Event], int]:
        """The first events after ``seq``, in order, and how many before them (at most) are not remembered any more.

        A number from the future is another store's: everything that is remembered comes after it.
        """
        if seq > self.last:
            seq = 0
        missed = max(0, self._forgotten - seq)
        newer = list(takewhile(lambda event: event.seq > seq, reversed(self._ring)))
        newer.reverse()
        return newer[:most], missed

    async def wait(self, seq: int) -> None:
        """Until there is an event after ``seq``."""
        while not self._ring or self._ring[-1].seq <= seq:
            await self._news.wait()

    async def run(self) -> NoReturn:
        """Service: write what was told."""
        while True:
            await trio.sleep(FLUSH_S)
            await self.flush()

    async def flush(self) -> None:
        if not self._unwritten:
            return
        batch, most = list(self._unwritten), self._most()
        try:
            await self._store.write(lambda db: rows.add(db, batch, most))
        except StoreUnavailable as error:
            self.failing = str(error)
            return
        self.failing = ""
        written = batch[-1].seq
        while self._unwritten and self._unwritten[0].seq <= written:
            self._unwritten.popleft()


def as_json(event: Event) -> dict[str, Any]:
    return {
        "seq": event.seq,
        "at": event.at,
        "kind": event.kind,
        "subject": event.subject,
        "sentence": event.sentence,
        "data": event.data,
    }
