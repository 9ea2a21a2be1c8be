"""Two control planes, one database, three agents: what may go wrong between them, in time that only the test moves.

Nothing here decides anything about leadership; it carries statements, answers and orders, late or not at all.
"""

from collections.abc import Callable, Iterator
from itertools import count
from math import inf

from attrs import define, evolve, field, frozen

from llmgw.core import lease
from llmgw.core.lease_facts import (
    Acquire,
    Acquired,
    Answer,
    Call,
    Failed,
    LeaseLimits,
    LeaseRow,
    Lift,
    Lifted,
    Look,
    Looked,
    Nudged,
    Refused,
    Release,
    Released,
    Renew,
    Renewed,
    Rest,
    Right,
    Ticked,
    Told,
    WorkEnded,
)
from llmgw.core.lease_moves import next_move
from llmgw.core.lease_state import Leadership
from llmgw.core.term import NO_TERM, Term

STEP_S = 0.25
LIMITS = LeaseLimits()
HOUR_S = 3600.0


@frozen
class Kept:
    """What the database has on disk."""

    row: LeaseRow = field(factory=lambda: LeaseRow(written=1))
    until: float = -1e9  # lease_until, by the database's clock


@define
class Db:
    """``offset``: its clock against the world's. ``past``: what it was, for a lagging standby or a dump."""

    kept: Kept = field(factory=Kept)
    offset: float = 0.0
    timeline: int = 1
    up_at: float = 0.0
    paused: bool = False
    past: list[tuple[float, Kept]] = field(factory=list)

    def run(self, call: Call, holder: str, nonce: str, now: float) -> Answer:
        row, clock = self.kept.row, now + self.offset
        match call:
            case Look():
                return Looked(evolve(row, remaining_s=self.kept.until - clock, timeline=self.timeline))
            case Acquire(right, seen):
                if not self._may_take(right, seen, clock):
                    return Refused()
                term = Term(max(row.term.n, self.timeline), row.term.epoch + 1, nonce)
                self._write(evolve(row, holder=holder, term=term, seq=row.seq + 1, released=False), now, clock)
                return Acquired(term, row.seq + 1)
            case _:
                if (row.holder, row.term, row.released) != (holder, call.term, False):
                    return Refused()
                return self._holders(call, nonce, now, clock)

    def _may_take(self, right: Right, seen: LeaseRow, clock: float) -> bool:
        row = self.kept.row
        if (row.seq, self.timeline) != (seen.seq, seen.timeline):
            return False
        expired = self.kept.until < clock
        return {Right.RELEASED: row.released, Right.EXPIRED: row.released or expired, Right.UNCHANGED: True}[right]

    def _holders(self, call: Renew | Lift | Release, nonce: str, now: float, clock: float) -> Answer:
        row = self.kept.row
        match call:
            case Renew():
                self._write(evolve(row, seq=row.seq + 1, ready=call.ready), now, clock)
                return Renewed(row.seq + 1)
            case Lift(above=above):
                term = Term(max(row.term.n, above.n), max(row.term.epoch, above.epoch) + 1, nonce)
                self._write(evolve(row, term=term), now, clock)
                return Lifted(term)
            case Release():
                self._write(evolve(row, released=True, ready=False), now, clock)
                return Released()

    def _write(self, row: LeaseRow, now: float, clock: float) -> None:
        self.past.append((now, self.kept))
        self.kept = Kept(evolve(row, written=self.timeline), clock + LIMITS.ttl)


@define
class Weather:
    """What becomes of one statement and its answer."""

    request_s: float | None = 0.0  # None: lost
    reply_s: float | None = 0.0
    patience_s: float = LIMITS.call_within  # before it gives a statement up; a slow thread may take longer


@define(eq=False)
class Node:
    name: str
    state: Leadership
    clock: float  # of its own, against the world's
    running: bool = True
    weathers: list[Weather] = field(factory=lambda: [Weather()])  # of its statements, in turn
    calls: int = 0
    work_ends_s: float = 0.0
    orders_s: float = 0.0  # so long its orders take to arrive


@define(eq=False)
class Agent:
    name: str
    seen: Term = NO_TERM
    heard_at: float | None = None
    cut_from: set[str] = field(factory=set)
    obeyed: list[Term] = field(factory=list)

    def would_obey(self, term: Term) -> bool:
        return not self.seen.is_newer_than(term) and not self.seen.conflicts_with(term)

    def execute(self, term: Term, now: float) -> bool:
        """An order of that term, checked when it is carried out and not only when it came."""
        if not self.would_obey(term):
            return False
        self.seen, self.heard_at = term, now
        if not self.obeyed or self.obeyed[-1] != term:
            self.obeyed.append(term)
        return True


@define(eq=False)
class World:
    now: float = 100.0
    db: Db = field(factory=Db)
    nodes: dict[str, Node] = field(factory=dict)
    agents: list[Agent] = field(factory=lambda: [Agent(name) for name in ("a1", "a2", "a3")])
    check: Callable[["World"], None] = lambda world: None
    led: list[tuple[float, str, Term]] = field(factory=list)  # who acted, each time somebody else did
    _later: list[tuple[float, int, Callable[[], None]]] = field(factory=list)
    _held_up: list[Callable[[], None]] = field(factory=list)
    _ids: Iterator[int] = field(factory=count)

    def __attrs_post_init__(self) -> None:
        for name in ("north", "south"):
            self.start(name)

    def start(self, name: str) -> None:
        """A new process; what it was before is gone."""
        id = next(self._ids)
        state = Leadership(f"{name}-{id}", LIMITS, spread=id % 3 / 2)
        self.nodes[name] = Node(name, state, clock=1000.0 * id)

    def later(self, after_s: float, do: Callable[[], None]) -> None:
        self._later.append((self.now + after_s, next(self._ids), do))

    # -- time ----------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now += STEP_S
            self._do_what_is_due()
            for node in self.nodes.values():
                if node.running:
                    self.turn(node)
            self.check(self)

    def _do_what_is_due(self) -> None:
        due = sorted(entry for entry in self._later if entry[0] <= self.now)
        self._later = [entry for entry in self._later if entry[0] > self.now]
        for _, _, do in due:
            do()

    def turn(self, node: Node) -> None:
        """What a process does when it gets to run: orders first, as a task may that was ready before the timers."""
        self._orders(node)
        node.state = lease.after(node.state, Ticked(), self._clock(node))
        self._end_work(node)
        for _ in range(4):
            move = next_move(node.state, self._clock(node))
            if isinstance(move, Rest):
                break
            self._send(node, move)
        self._orders(node)

    def _end_work(self, node: Node) -> None:
        if node.state.working and not node.state.leads:
            process = node.state.holder

            def ended() -> None:
                if node.state.holder == process and not node.state.leads and node.state.working:
                    node.state = lease.after(node.state, WorkEnded(), self._clock(node))

            self.later(node.work_ends_s, ended) if node.work_ends_s else ended()

    def _clock(self, node: Node) -> float:
        return self.now + node.clock

    # -- statements ------------------------------------------------------------------------------------------

    def _send(self, node: Node, call: Call) -> None:
        weather = node.weathers[node.calls % len(node.weathers)]
        node.calls += 1
        number = node.calls
        node.state = lease.begun(node.state, call, self._clock(node), f"nonce-{next(self._ids)}")
        assert node.state.sent is not None
        holder, nonce = node.state.holder, node.state.sent.nonce

        def carried_out() -> None:
            if self.db.paused:
                self._held_up.append(carried_out)
            elif self.now >= self.db.up_at:
                answer = self.db.run(call, holder, nonce, self.now)
                if isinstance(answer, Released):
                    self.nudge()
                self._after(weather.reply_s, lambda: self._answer(node, holder, number, answer))

        self._after(weather.request_s, carried_out)
        self.later(weather.patience_s, lambda: self._answer(node, holder, number, Failed("no answer")))

    def _after(self, seconds: float | None, do: Callable[[], None]) -> None:
        if seconds is not None:
            self.later(seconds, do) if seconds else do()

    def _answer(self, node: Node, holder: str, number: int, answer: Answer) -> None:
        """Heard when the process runs: one that is stopped finds it when it goes on."""
        if self.nodes[node.name] is not node or node.state.sent is None or node.calls != number:
            return
        if not node.running:
            self.later(STEP_S, lambda: self._answer(node, holder, number, answer))
            return
        node.state = lease.after(node.state, answer, self._clock(node))

    def nudge(self) -> None:
        for node in self.nodes.values():
            if node.running:
                self.later(0.0, lambda node=node: self._nudged(node))

    def _nudged(self, node: Node) -> None:
        if node.running:
            node.state = lease.after(node.state, Nudged(), self._clock(node))

    # -- orders ------------------------------------------------------------------------------------------------

    def may_act(self, node: Node) -> bool:
        return node.running and node.state.may_act(self._clock(node))

    def reach(self, node: Node) -> list[Agent]:
        return [agent for agent in self.agents if node.name not in agent.cut_from]

    def actors(self) -> list[str]:
        """Those whose orders some agent would carry out now."""
        return [
            name
            for name, node in self.nodes.items()
            if self.may_act(node) and any(agent.would_obey(node.state.term) for agent in self.reach(node))
        ]

    def _orders(self, node: Node) -> None:
        self.check(self)
        if not self.may_act(node):
            return
        term = node.state.term
        if not self.led or self.led[-1][1:] != (node.name, term):
            self.led.append((self.now, node.name, term))
        for agent in self.reach(node):
            if agent.would_obey(term):
                if node.orders_s:
                    self.later(node.orders_s, lambda agent=agent: agent.execute(term, self.now))
                else:
                    agent.execute(term, self.now)
            else:
                age = None if agent.heard_at is None else self.now - agent.heard_at
                node.state = lease.after(node.state, Told(agent.name, agent.seen, age), self._clock(node))

    # -- what goes wrong with the database -------------------------------------------------------------------------

    def pause(self, paused: bool) -> None:
        """Statements wait in its sockets, and are carried out when it goes on."""
        self.db.paused = paused
        if not paused:
            held_up, self._held_up = self._held_up, []
            for do in held_up:
                do()

    def promote(self, lag_s: float) -> None:
        """The standby database takes over; what the primary wrote in the last ``lag_s`` seconds it never got."""
        self._back_to(self.now - lag_s)
        self.db.timeline += 1
        self.db.up_at = max(self.db.up_at, self.now + 1.0)

    def restore(self, age_s: float, new_cluster: bool) -> None:
        """A dump from before; while it is read the tables are not there, for a ttl at least."""
        self._back_to(self.now - age_s)
        self.db.timeline = 1 if new_cluster else self.db.timeline
        self.db.up_at = self.now + LIMITS.ttl

    def _back_to(self, when: float) -> None:
        self._held_up.clear()
        self.db.paused = False
        while self.db.past and self.db.past[-1][0] > when:
            _, self.db.kept = self.db.past.pop()

    def heal(self) -> None:
        """Nothing is away, stands still or ends from now on."""
        self.db.up_at = self.now
        self.pause(False)
        for name, node in list(self.nodes.items()):
            if node.state.out_until == inf:  # it ends: another one is there already
                self.start(name)
        for node in self.nodes.values():
            node.running, node.weathers, node.work_ends_s, node.orders_s = True, [Weather()], 0.0, 0.0
        for agent in self.agents:
            agent.cut_from.clear()
