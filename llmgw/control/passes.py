"""The reconcile road, read from top to bottom: observe -> plan -> apply -> publish -> one sentence.

A pass runs when something happened, and at least each second. It decides from rows, reports and proofs alone;
what it decides is in the store before anybody is told.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import trio
from attrs import define, field

from llmgw.control.applying_plan import Applying
from llmgw.control.cluster import Cluster
from llmgw.control.events import Events
from llmgw.control.publishing import Publishing
from llmgw.control.watching import Watching
from llmgw.core.actions import Plan, Stop
from llmgw.core.drain import DrainLimits
from llmgw.core.reconcile import Seen, plan
from llmgw.store import replicas
from llmgw.store.errors import StoreUnavailable, StoreUncertain

EVERY_S = 1.0
BETWEEN_S = 0.05  # what happens together is looked at together


async def _nobody(*_: object) -> None: ...


@define(eq=False)
class Passes:
    cluster: Cluster
    applying: Applying
    publishing: Publishing
    watching: Watching
    events: Events
    log: Any
    number: int = field(default=0, init=False)
    seconds: float = field(default=0.0, init=False)  # in all passes
    said: str = field(default="", init=False)  # the last pass's sentence
    came_back: Callable[[tuple[str, ...]], Awaitable[None]] = field(default=_nobody, init=False)
    after: Callable[[Seen, Mapping[str, int]], Awaitable[None]] = field(default=_nobody, init=False)
    drains: Callable[[], DrainLimits] = field(default=DrainLimits, init=False)
    _held: str = field(default="", init=False)
    _unsure: bool = field(default=False, init=False)  # whether the rows may be others in the store

    async def run(self) -> None:
        """Service: pass after pass, until cancelled."""
        while True:
            await self._next()
            await self.once()

    async def once(self) -> Plan:
        began = trio.current_time()
        async with self.cluster.turn:
            await self._be_sure()
            seen = self.cluster.observe()
            made = plan(seen, self.cluster.limits(), self.drains())
            await self._apply(made, seen)
        self.publishing.publish(self.cluster.observe() if made.actions else seen)
        self._say(made, seen.hold, trio.current_time() - began)
        if back := self.watching.look(seen):
            await self._came_back(back)
        await self.after(seen, {act.replica: act.cut for act in made.actions if isinstance(act, Stop)})
        return made

    async def _next(self) -> None:
        cluster, due = self.cluster, trio.current_time() + EVERY_S
        with trio.move_on_at(due):
            await cluster.changed.wait()
            await trio.sleep(BETWEEN_S)
        cluster.changed = trio.Event()
        cluster.was_due(due)

    async def _apply(self, made: Plan, seen: Seen) -> None:
        try:
            await self.applying.apply(made, self.cluster.first_seen(seen))
        except StoreUnavailable as error:
            self.cluster.store_away = str(error)
            self._unsure = self._unsure or isinstance(error, StoreUncertain)
        else:
            self.cluster.store_away = self.events.failing

    async def _be_sure(self) -> None:
        """A plan whose storing got no answer may be in the store: what is there counts."""
        if not self._unsure:
            return
        try:
            rows = {row.name: row for row in await self.applying.store.read(replicas.every)}
        except StoreUnavailable as error:
            self.cluster.store_away = str(error)  # the next pass tries again; storing would fail as well
            return
        self.cluster.took(rows.values(), self.cluster.rows.keys() - rows.keys())
        self._unsure = False

    async def _came_back(self, names: tuple[str, ...]) -> None:
        try:
            await self.came_back(names)
        except StoreUnavailable as error:
            self.cluster.store_away = str(error)  # the next pass tries again

    def _say(self, made: Plan, hold: str, took_s: float) -> None:
        self.number, self.seconds = self.number + 1, self.seconds + took_s
        if hold != self._held:
            kind, what = ("leader.doubts", hold) if hold else ("leader.trusts", self._held)
            sentence = f"nothing is stopped: {hold}" if hold else f"what was held back goes on; it was because {what}"
            self.events.tell(kind, "leader", sentence)
            self.log.warning(kind, why=what)
            self._held = hold
        sentence = str(made)
        if sentence != self.said and (made.actions or made.held):
            self.log.info("pass", said=sentence, took_ms=round(took_s * 1000, 1))
        self.said = sentence
