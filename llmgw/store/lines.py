"""The connections to PostgreSQL: who may use one, for how long, and when one is thrown away.

A connection that failed takes all others with it: what killed it (a restart, a failover, a demotion) has mostly
killed or outdated them too, and a new one costs milliseconds. Whoever uses one waits no longer than WITHIN_S, whatever
the server does or does not do: then the socket is shut under the thread, which ends it.
"""

import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

import psycopg
import trio
from attrs import define, field

from llmgw.store.connecting import INCARNATION, QUICK, Raw, Target, connect, is_read_only
from llmgw.store.errors import StoreUnavailable, StoreUncertain
from llmgw.store.postgres_errors import is_lost
from llmgw.store.turn import RunBlocking

T = TypeVar("T")
WITHIN_S = 8.0  # one use, the wait for a connection included
PATIENT_S = 2.5  # after the last success: a server that restarts is waited for
BETWEEN_S = 0.1
ASK_AGAIN_S = 0.5  # a server known to be away is not asked more often; meanwhile the answer is the last one
OLD_S = 600.0  # of a connection: a name may mean another host by now


@define(eq=False)
class Line:
    """One connection. ``cut`` may be called from any thread, the rest from the one that uses it."""

    conn: Raw
    made_at: float = field(factory=time.monotonic)
    incarnation: str = field(init=False)  # of the server, see INCARNATION
    transaction: tuple[str, str] = ("", "")  # the number of the one begun last, and the incarnation that gave it
    _socket: socket.socket = field(init=False, repr=False)
    _closing: threading.Lock = field(factory=threading.Lock, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        # A descriptor of our own: libpq may close its one at any moment, and the number then means another file.
        self._socket = socket.fromfd(self.conn.fileno(), socket.AF_UNIX, socket.SOCK_STREAM)
        row = self.conn.execute(f"select {INCARNATION}").fetchone()
        self.incarnation = "" if row is None else str(row[0])

    def cut(self) -> None:
        """Whoever waits for an answer on it gets an error at once."""
        with self._closing:
            if self._socket.fileno() >= 0:
                try:
                    self._socket.shutdown(socket.SHUT_RDWR)
                except OSError:
                    return  # the other end was quicker

    def close(self) -> None:
        with self._closing:
            self._socket.close()
        self.conn.close()

    @property
    def is_good(self) -> bool:
        """As far as can be known without a question."""
        idle = self.conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        return idle and not is_read_only(self.conn) and time.monotonic() - self.made_at < OLD_S


@define(eq=False)
class Use:
    """What a thread is about, and whether anybody still waits for it."""

    line: Line | None = None
    committing: bool = False  # from here on its outcome may be unknown
    given_up: bool = False
    _turn: threading.Lock = field(factory=threading.Lock, init=False, repr=False)

    def takes(self, line: Line) -> None:
        with self._turn:
            self.line = line
            if self.given_up:
                line.cut()

    def give_up(self) -> None:
        """The thread ends soon, and what it has is thrown away."""
        with self._turn:
            self.given_up = True
            if self.line is not None:
                self.line.cut()

    def ends(self) -> bool:
        """Whether its line may be used again."""
        with self._turn:
            self.line = None
            return not self.given_up


@define(eq=False)
class Lines:
    """``writing`` and ``reading`` are who may be inside at once."""

    target: Target
    run: RunBlocking
    writing: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(1))
    reading: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(2))
    patient_s: float = PATIENT_S
    ask_again_s: float = ASK_AGAIN_S
    _idle: deque[tuple[int, Line]] = field(factory=deque, init=False, repr=False)
    _generation: int = field(default=0, init=False)
    _last_good: float = field(default=-1e9, init=False)
    _away: tuple[float, StoreUnavailable | None] = field(default=(-1e9, None), init=False)  # when, and what was found

    async def use(
        self,
        seats: trio.CapacityLimiter,
        work: Callable[[Line, Use], T],
        begin: Callable[[Line], None],
        *,
        abandon: bool,
    ) -> T:
        """``begin`` opens a transaction, ``work`` ends it. Raises StoreUnavailable when time is up.

        ``abandon``: a cancelled caller goes at once; else work that has begun is finished first.
        """
        deadline = trio.current_time() + WITHIN_S
        with trio.move_on_at(deadline) as queueing:
            await seats.acquire_on_behalf_of(use := Use())
        if queueing.cancelled_caught:
            raise StoreUnavailable(f"{self.target.shown} is busy; try again")
        try:
            with trio.CancelScope(deadline=deadline, shield=not abandon):
                return await self.run(lambda: self._on_a_thread(use, work, begin))
        finally:
            use.give_up()
            seats.release_on_behalf_of(use)
        silent = f"{self.target.shown} has not answered for {WITHIN_S:g} s"
        raise StoreUncertain(f"{silent}: it may be done") if use.committing else StoreUnavailable(silent)

    def close(self) -> None:
        self.forget()
        while self._idle:
            self._idle.popleft()[1].close()

    def keep(self, line: Line) -> None:
        """One that somebody else opened, and that nothing is begun on."""
        self._idle.append((self._generation, line))

    def forget(self) -> None:
        """No connection made before now is used again."""
        self._generation += 1

    # -- on a thread --------------------------------------------------------------------------------

    def _on_a_thread(self, use: Use, work: Callable[[Line, Use], T], begin: Callable[[Line], None]) -> T:
        generation, line = self._begun(use, begin)
        try:
            return work(line, use)
        except BaseException as error:
            if is_lost(error, line.conn):
                self.forget()
            raise
        finally:
            if use.ends() and line.is_good and generation == self._generation:
                self._last_good = time.monotonic()
                self._idle.append((generation, line))
            else:
                line.close()

    def _begun(self, use: Use, begin: Callable[[Line], None]) -> tuple[int, Line]:
        """A line with an open transaction. One that turns out dead is replaced: nothing has been done on it yet."""
        while True:
            fresh = (found := self._waiting()) is None
            generation, line = found or self._connected(use)
            use.takes(line)
            try:
                begin(line)
            except BaseException as error:
                lost = is_lost(error, line.conn)
                if lost:
                    self.forget()
                line.close()
                if fresh or not lost or not use.ends():
                    raise
            else:
                return generation, line

    def _waiting(self) -> tuple[int, Line] | None:
        while self._idle:
            generation, line = self._idle.pop()
            if generation == self._generation and line.is_good:
                return generation, line
            line.close()
        return None

    def _connected(self, use: Use) -> tuple[int, Line]:
        since, why = self._away
        if why is not None and time.monotonic() - since < self.ask_again_s:
            raise type(why)(str(why))
        patient_until = self._last_good + self.patient_s
        while True:
            generation = self._generation
            try:
                line = Line(connect(self.target, QUICK))
            except StoreUnavailable as error:
                if time.monotonic() > patient_until or use.given_up:
                    self._away = time.monotonic(), error
                    raise
                time.sleep(BETWEEN_S)
            else:
                return generation, line
