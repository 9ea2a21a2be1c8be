"""This process's part in who leads: asks the core what to do, does it, and runs the leader's work while it leads.

The clock is given (CLOCK_BOOTTIME, where the host may sleep); only how long to wait is Trio's. Whatever acts as the
leader asks ``may_act`` immediately before; nothing else is a promise, for a task may be late.
"""

import os
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn, Protocol

import trio
from attrs import define, evolve, field

from llmgw.control.tenure import Tenure
from llmgw.core import lease
from llmgw.core.explain import Explanation
from llmgw.core.lease_explained import Leader, Readiness, Transition, changes, explain, has_handed_over, readiness
from llmgw.core.lease_explained import leader as leader_of
from llmgw.core.lease_facts import (
    Addresses,
    Answer,
    Call,
    Failed,
    Happening,
    Nudged,
    Resign,
    Rest,
    Serving,
    Stop,
    Ticked,
    Told,
    WorkEnded,
)
from llmgw.core.lease_moves import next_move
from llmgw.core.lease_state import TICK_S, Leadership, Role
from llmgw.core.term import Term

SOON_S = 0.001  # shorter waits may end before their time, by rounding
EXIT_STILL_WORKING = 75  # a task of the leader runs on though it leads no more: only an end is safe


class LeaseStore(Protocol):
    """``PostgresLease``, and the one in the tests. ``carry_out`` answers Failed rather than raise."""

    async def carry_out(self, call: Call, nonce: str, within_s: float) -> Answer: ...

    async def nudges(self, nudge: Callable[[], None]) -> NoReturn: ...


async def _nothing(tenure: Tenure) -> None:
    await tenure.leaving.wait()


@define(eq=False)
class Candidacy:
    """``run`` is a service, started once. ``lead`` runs in a scope of its own while this process leads."""

    store: LeaseStore
    state: Leadership
    clock: Callable[[], float]
    lead: Callable[[Tenure], Awaitable[object]] = _nothing
    on_transition: Callable[[Transition], None] = lambda told: None
    report: Callable[[BaseException], None] = lambda error: None
    fresh_nonce: Callable[[], str] = lambda: secrets.token_hex(16)
    exit: Callable[[int], object] = os._exit
    tenure: Tenure | None = field(default=None, init=False)
    changed: trio.Event = field(factory=trio.Event, init=False)  # another one after each change of who leads
    _wake: trio.Event = field(factory=trio.Event, init=False)
    _nursery: trio.Nursery | None = field(default=None, init=False)

    # -- questions ---------------------------------------------------------------------------------------------

    def may_act(self) -> bool:
        """Whether an act of the leader may be sent now."""
        return self.state.may_act(self.clock())

    @property
    def term(self) -> Term | None:
        """None: this process does not lead."""
        return self.state.term if self.state.leads else None

    @property
    def leads_as(self) -> str:
        """The holder of the lease, as far as it is known; empty: nobody has held it."""
        state = self.state
        return state.holder if state.leads else state.row.holder if state.row is not None else ""

    @property
    def away_s(self) -> float:
        """Since the first statement without an answer after the last one with one; 0: the store answers."""
        since = self.state.away_since
        return 0.0 if since is None else self.clock() - since

    def leader(self) -> Leader | None:
        return leader_of(self.state, self.clock())

    def explain(self) -> Explanation:
        return explain(self.state, self.clock())

    def readiness(self, offline_grace_s: float) -> Readiness:
        return readiness(self.state, self.clock(), offline_grace_s)

    # -- what others tell ----------------------------------------------------------------------------------------

    def told(self, agent: str, seen: Term, heard_s: float | None) -> None:
        """An agent has obeyed a term that ours is not above."""
        self._apply(Told(agent, seen, heard_s))

    def reached_at(self, addresses: Addresses) -> None:
        """Before ``run``: what others shall know of us once we lead."""
        self.state = evolve(self.state, addresses=addresses)

    def look(self) -> None:
        """Somebody may have taken the lead: what only a leader writes was refused, or the row was written."""
        self._apply(Nudged())

    def serving(self, ready: bool) -> None:
        """Whether this process has somewhere to send requests; the lease row says it while we lead."""
        if ready != self.state.ready:
            self._apply(Serving(ready))

    def resign(self, why: str) -> bool:
        """Hand over and stay out for one ttl. False: this process does not lead."""
        if not self.state.leads:
            return False
        self._apply(Resign(why))
        return True

    async def stop(self) -> None:
        """Lead no more, take nothing any more, give back what is held; returns when that is done, at the latest
        after ``lease.ttl``. ``run`` goes on watching who comes next."""
        self._apply(Stop())
        with trio.move_on_after(self.state.limits.ttl):
            while self.state.leads or self.state.role is Role.LEAVING:
                await self.changed.wait()

    async def wait_handed_over(self) -> None:
        """After ``stop``: until the next leader is ready, or has had its time."""
        while not has_handed_over(self.state, self.clock()):
            with trio.move_on_after(TICK_S):
                await self.changed.wait()

    # -- the service -----------------------------------------------------------------------------------------------

    async def run(self) -> NoReturn:
        """Until cancelled. The lease is not released then: that is ``stop``."""
        self._begin_again()
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._tick)
                nursery.start_soon(self.store.nudges, self.look)
                while True:
                    await self._next(nursery)
        finally:
            self._nursery = None
        raise AssertionError("a service ends by being cancelled")

    def _begin_again(self) -> None:
        """After a run that failed: its tasks are gone, and what it had asked is not heard any more."""
        self.tenure = None
        if self.state.sent is not None:
            self._apply(Failed("the answer was not waited for"))
        if self.state.working:
            self._apply(Resign("the service that leads was started again", failed=True))
            self._apply(WorkEnded())

    async def _next(self, nursery: trio.Nursery) -> None:
        now = self.clock()
        self._apply(Ticked())
        move = next_move(self.state, now)
        if isinstance(move, Rest):
            with trio.move_on_after(max(SOON_S, move.until - now)):
                await self._wake.wait()
            self._wake = trio.Event()
            return
        self.state = lease.begun(self.state, move, self.clock(), self.fresh_nonce())
        nursery.start_soon(self._carry_out, move)

    async def _carry_out(self, call: Call) -> None:
        assert self.state.sent is not None
        self._apply(await self.store.carry_out(call, self.state.sent.nonce, self.state.limits.call_within))

    async def _tick(self) -> NoReturn:
        """So that a stall is noticed before anything else is done."""
        while True:
            await trio.sleep(TICK_S)
            self._apply(Ticked())

    def _apply(self, fact: Answer | Happening) -> None:
        before, self.state = self.state, lease.after(self.state, fact, self.clock())
        if not isinstance(fact, Ticked) or before.role is not self.state.role:
            self._wake.set()
        self._follow(before)
        told: Sequence[Transition] = changes(before, self.state)
        if told or _shown(before) != _shown(self.state):
            changed, self.changed = self.changed, trio.Event()
            changed.set()
        for transition in told:
            self.on_transition(transition)

    # -- what leads --------------------------------------------------------------------------------------------------

    def _follow(self, before: Leadership) -> None:
        """The leader's work begins and ends with its leadership."""
        if self.state.leads and not before.leads:
            assert self._nursery is not None
            self.tenure = Tenure(self)
            self._nursery.start_soon(self._lead, self.tenure)
        elif before.leads and not self.state.leads and self.tenure is not None:
            assert self._nursery is not None
            self.tenure.leaving.set()
            leaves = self.state.role is Role.LEAVING
            self._nursery.start_soon(self._end, self.tenure, self.state.limits.acks_within if leaves else 0.0)

    async def _lead(self, tenure: Tenure) -> None:
        why = "what leads has ended by itself"
        try:
            with tenure.scope:
                await self.lead(tenure)
        except* Exception as errors:
            self.report(errors)
            why = f"what leads has failed: {errors.exceptions[0]}"
        tenure.ended.set()
        if self.tenure is tenure:
            self.tenure = None
        if self.state.leads:
            self._apply(Resign(why, failed=True))
        self._apply(WorkEnded())

    async def _end(self, tenure: Tenure, acks_within_s: float) -> None:
        with trio.move_on_after(acks_within_s):
            await tenure.ended.wait()
            return
        tenure.scope.cancel(reason=self.state.why)
        with trio.move_on_after(self.state.limits.margin):
            await tenure.ended.wait()
            return
        self.exit(EXIT_STILL_WORKING)


def _shown(state: Leadership) -> tuple[object, ...]:
    row = state.row
    return state.role, state.term, row and (row.holder, row.term, row.ready, row.released)
