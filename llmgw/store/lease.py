"""The lease in PostgreSQL, over a connection of its own: never the pool's, which may be full when it counts.

A statement that has no answer in time leaves its thread and its connection behind: the socket is shut under it, and
the next statement gets a new one. What became of it is not known then, and the answer says so.
"""

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, TypeVar

import psycopg
import trio
from attrs import define, field

from llmgw.core.lease_facts import (
    Acquire,
    Acquired,
    Addresses,
    Answer,
    Call,
    Failed,
    LeaseRow,
    Lift,
    Lifted,
    Look,
    Looked,
    Refused,
    Release,
    Released,
    Renew,
    Renewed,
)
from llmgw.core.term import Term
from llmgw.store.connecting import Raw
from llmgw.store.errors import StoreUnavailable
from llmgw.store.lease_sql import ACQUIRE, CHANNEL, LIFT, LISTEN, LOOK, NOTIFY, RELEASE, RENEW
from llmgw.store.postgres_errors import POOLED

THREADS = 4  # one at work, the others left behind by statements without an answer
LISTEN_AGAIN_S = 1.0
HEARD_AT_MOST_S = 5.0  # for a question on the listening connection

Values = Mapping[str, Any]
T = TypeVar("T")


@define(eq=False)
class _Line:
    """One connection, used by one thread at a time. ``leave`` comes from the loop, whatever that thread does."""

    connect: Callable[[], Raw]
    conn: Raw | None = None
    backend: int | None = None
    left: bool = False
    _busy: bool = False

    def use(self, work: Callable[["_Line", Raw], T]) -> T:
        """In a thread. Raises psycopg.Error, StoreUnavailable."""
        self._busy = True
        try:
            if self.conn is None:
                self.conn = self.connect()
            if self.left:
                raise StoreUnavailable("the connection came too late")
            return work(self, self.conn)
        finally:
            self._busy = False
            if self.left:  # whoever of the two comes last closes it
                self._close()

    def leave(self) -> None:
        """It is not used again. A thread that waits on it is let go, without a word to a server that may not answer."""
        self.left = True
        if self.conn is not None:
            with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(self.conn.fileno())) as sock:
                sock.shutdown(socket.SHUT_RDWR)
        if not self._busy:
            self._close()

    def one(self, sql: str, values: Values) -> tuple[Any, ...] | None:
        """The row of a statement, whose last column is the backend it ran in. Raises StoreUnavailable."""
        assert self.conn is not None
        row = self.conn.execute(sql, values or None).fetchone()
        if row is None:
            return None
        if self.backend not in (None, row[-1]):
            raise StoreUnavailable(POOLED.format(where="the lease"))
        self.backend = row[-1]
        return tuple(row)

    def _close(self) -> None:
        if self.conn is not None:
            with suppress(psycopg.Error):
                self.conn.close()


@define(eq=False)
class PostgresLease:
    """``connect`` blocks and makes a connection in autocommit; ``holder`` is this process's, random."""

    connect: Callable[[], Raw]
    holder: str
    ttl: float
    addresses: Callable[[], Addresses] = Addresses
    connections: int = field(default=0, init=False)  # that were made
    listening: bool = field(default=False, init=False)
    _line: _Line | None = field(default=None, init=False, repr=False)
    _told_ready: bool = field(default=False, init=False)
    _threads: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(THREADS), init=False, repr=False)
    _ears: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(2), init=False, repr=False)

    async def carry_out(self, call: Call, nonce: str, within_s: float) -> Answer:
        """Never raises for what the store does; one call at a time."""
        line, answer = self._line or _Line(self._connect), None
        self._line = line
        try:
            with trio.move_on_after(within_s):
                work = partial(line.use, partial(self._ask, call, nonce))
                answer = await trio.to_thread.run_sync(work, limiter=self._threads, abandon_on_cancel=True)
                return answer
        except (psycopg.Error, StoreUnavailable, OSError) as error:
            return Failed(_short(error))
        finally:
            if answer is None:
                self.close()
        return Failed(f"PostgreSQL did not answer within {within_s:g} s")

    async def nudges(self, nudge: Callable[[], None]) -> NoReturn:
        """Service: ``nudge`` is called when somebody has written the lease row, or may have, unheard."""
        while True:
            with suppress(psycopg.Error, StoreUnavailable, OSError):
                await self._listen(nudge)
            self.listening = False
            await trio.sleep(LISTEN_AGAIN_S)

    def close(self) -> None:
        """Its connection; the lease stays as it is."""
        if self._line is not None:
            self._line.leave()
            self._line = None

    # -- in a thread ---------------------------------------------------------------------------------------

    def _connect(self) -> Raw:
        self.connections += 1
        return self.connect()

    def _ask(self, call: Call, nonce: str, line: _Line, conn: Raw) -> Answer:
        match call:
            case Look():
                row = line.one(LOOK, {})
                if row is None:
                    raise StoreUnavailable("the lease row is not there: is the store's schema complete?")
                return Looked(_read(row))
            case Acquire(right, seen):
                wanted = {"seq": seen.seq, "timeline": seen.timeline, "right": right.name, "fresh": nonce}
                row = line.one(ACQUIRE, {**self._own(), **wanted})
                self._told_ready = False
                return Refused() if row is None else Acquired(Term(row[0], row[1], nonce), row[2])
            case Renew(ready=ready):
                return self._renew(line, call.term, ready)
            case Lift(above=above):
                wanted = {"above_n": above.n, "above_epoch": above.epoch, "fresh": nonce}
                row = line.one(LIFT, {**self._own(), **_of(call.term), **wanted})
                return Refused() if row is None else Lifted(Term(row[0], row[1], nonce))
            case Release():
                row = line.one(RELEASE, {**self._own(), **_of(call.term)})
                return Refused() if row is None else Released()

    def _renew(self, line: _Line, term: Term, ready: bool) -> Answer:
        row = line.one(RENEW, {**self._own(), **_of(term), "ready": int(ready)})
        if row is None:
            return Refused()
        if ready and not self._told_ready:
            with suppress(psycopg.Error):  # those who listen look by themselves soon
                line.one(NOTIFY, {})
        self._told_ready = ready
        return Renewed(row[0])

    def _own(self) -> dict[str, Any]:
        at = self.addresses()
        where = {"name": at.name, "client": at.client, "admin": at.admin, "agents": at.agents}
        return {"me": self.holder, "ttl": self.ttl, **where}

    # -- listening -------------------------------------------------------------------------------------------

    async def _listen(self, nudge: Callable[[], None]) -> None:
        line = _Line(self.connect)
        try:
            number = await self._on_ears(line, _begin_to_listen)
            self.listening = True
            nudge()  # what was written before we listened
            while True:
                await trio.lowlevel.wait_readable(number)
                if CHANNEL in await self._on_ears(line, _heard):
                    nudge()
        finally:
            line.leave()

    async def _on_ears(self, line: _Line, work: Callable[[_Line, Raw], T]) -> T:
        with trio.move_on_after(HEARD_AT_MOST_S):
            return await trio.to_thread.run_sync(line.use, work, limiter=self._ears, abandon_on_cancel=True)
        raise StoreUnavailable("the listening connection does not answer")


def _begin_to_listen(line: _Line, conn: Raw) -> int:
    conn.execute(LISTEN)
    return conn.fileno()


def _heard(line: _Line, conn: Raw) -> list[str]:
    """Raises psycopg.OperationalError when the server is gone."""
    return [note.channel for note in conn.notifies(timeout=0)]


def _read(row: tuple[Any, ...]) -> LeaseRow:
    holder, n, epoch, nonce, seq, released, ready, written, timeline, renewals, remaining, held, *where, _ = row
    return LeaseRow(
        holder=holder,
        term=Term(n, epoch, nonce),
        seq=seq,
        released=released,
        remaining_s=float("-inf") if remaining is None else remaining,
        timeline=timeline,
        written=written,
        addresses=Addresses(*where),
        ready=ready,
        held_s=0.0 if held is None else held,
        renewals=renewals,
    )


def _of(term: Term) -> dict[str, Any]:
    return {"n": term.n, "epoch": term.epoch, "nonce": term.nonce}


def _short(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
