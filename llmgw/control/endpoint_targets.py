"""Static endpoints out of service, and back: what operators ask, how far it has got, kept over restarts."""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import trio
from attrs import define, evolve, field

from llmgw.control.events import Events
from llmgw.control.nearest import meant
from llmgw.control.targets import plan_json
from llmgw.core.drain import AtDeadline, DrainEnd, DrainLimits, Target, asked_again, begins
from llmgw.core.drain_plan import NO_REQUESTS, DrainPlan, Move, Requests
from llmgw.core.endpoint_drain import EndpointNow, HeldOut, cuts, is_blocked, step, waits_on
from llmgw.core.identity import Declined, Operator
from llmgw.engines.live import LiveFleet
from llmgw.store import audit, held_out
from llmgw.store.errors import StoreUnavailable
from llmgw.store.face import Database, Written

LOOK_S = 0.25
PREFIX = "endpoint/"  # of a subject, where it could be a node


@define(eq=False)
class EndpointTargets:
    """``requests``: by endpoint id, what this gateway has there; ``cut``: ends what is there, and says how many."""

    store: Written
    live: LiveFleet
    events: Events
    limits: Callable[[], DrainLimits]
    wall: Callable[[], float]
    requests: Callable[[], Mapping[str, Requests]]
    cut: Callable[[str], int]
    report: Callable[[str, BaseException], None]
    held: dict[str, HeldOut] = field(factory=dict, init=False)
    counts: dict[str, int] = field(factory=dict, init=False)  # drains by how they ended, for metrics
    cuts: int = field(default=0, init=False)  # requests
    _turn: trio.Lock = field(factory=trio.Lock, init=False)

    async def load(self) -> None:
        self.held = {one.id: one for one in await self.store.read(held_out.every)}
        self._tell_pools()

    async def aim(
        self,
        by: Operator,
        id: str,
        target: Target,
        why: str = "",
        grace_s: float | None = None,
        at_deadline: AtDeadline | None = None,
        dry_run: bool = False,
    ) -> dict[str, Any] | Declined:
        if (declined := self.declined(id, target)) is not None:
            return declined
        told: dict[str, Any] = {"endpoint": id, "target": str(target)}
        if dry_run:
            return told | {"dry_run": True} | (self._plan(id) if target is Target.DRAINED else {})
        async with self._turn:
            if target is Target.SCHEDULABLE:
                await self._release(by, id, why)
                return told | {"confirmed": True, "said": f"{id} is in service"}
            await self._ask(by, id, why, grace_s, at_deadline)
            await self._step(self.held[id])
        status = self.status(id)
        said = f"{id} is {status['state']}" if status else ""
        return told | {"confirmed": True, "said": said, "drain": status}

    async def _ask(
        self, by: Operator, id: str, why: str, grace_s: float | None, at_deadline: AtDeadline | None
    ) -> None:
        """Where it is something new. While it stays drained, the last reason counts, and its time goes on."""
        wall, before = self.wall(), self.held.get(id)
        was = before.drain if before is not None else None
        drain = asked_again(was, grace_s, at_deadline, self.limits().grace, wall)
        if before is None:
            asked = HeldOut(id, by.name, wall, why, drain)
        elif begins(was, drain):
            asked = HeldOut(id, by.name, wall, why, drain, before.out)
        else:
            asked = evolve(before, by=by.name, why=why, drain=drain) if why else evolve(before, drain=drain)
        if asked == before:
            return
        await self._write(asked, self._act(by, id, "drained", why))
        self._tell(id, f"{id} is to be drained, says {by.name}" + (f": {why}" if why else ""))

    def status(self, id: str) -> dict[str, Any] | None:
        held = self.held.get(id)
        if held is None:
            return None
        now, drain, wall = self._now(id), held.drain, self.wall()
        state = str(drain.ended) if drain.ended else "blocked" if is_blocked(held, now) else "draining"
        return {
            "state": state,
            "left": [] if drain.ended is DrainEnd.DRAINED else [id],
            "processes": [],
            "waits_on": [waits_on(held, now)] if drain.under_way else [],
            "grace_s": drain.grace_s,
            "left_s": round(drain.ends_at - wall, 1) if drain.under_way else None,
            "at_deadline": str(drain.at_deadline),
            "planned": {},
            "replaced": [],
            "cut": drain.cut,
            "said": drain.said,
            "ended_at": drain.ended_at or None,
        }

    def drains(self) -> list[dict[str, Any]]:
        return [
            {
                "subject": f"{PREFIX}{one.id}",
                "target": str(Target.DRAINED),
                "by": one.by,
                "at": one.at,
                "why": one.why,
                "drain": self.status(one.id),
            }
            for one in self.held.values()
        ]

    # -- the service ----------------------------------------------------------------------------------

    async def run(self) -> NoReturn:
        """Service: each drain goes its way."""
        while True:
            for id in list(self.held):
                async with self._turn:
                    if (held := self.held.get(id)) is not None and held.drain.under_way:
                        await self._look_at(held)
            await trio.sleep(LOOK_S)

    async def _look_at(self, held: HeldOut) -> None:
        if cuts(held, self.wall()) and (count := self.cut(held.id)):
            held = evolve(held, drain=evolve(held.drain, cut=held.drain.cut + count))
            self.cuts += count
        await self._step(held)

    async def _step(self, held: HeldOut) -> None:
        now = self._now(held.id)
        while (after := step(held, now, self.wall())) != held:
            held = after
        if held == self.held[held.id]:
            return
        try:
            await self._write(held)
        except StoreUnavailable as error:
            self.report(f"how far the drain of {held.id} has got was not stored", error)
            return
        if held.drain.ended is not None:
            self.counts[str(held.drain.ended)] = self.counts.get(str(held.drain.ended), 0) + 1
            self._tell(held.id, held.drain.said, ended=str(held.drain.ended))

    # -- what there is --------------------------------------------------------------------------------

    def _now(self, id: str) -> EndpointNow:
        live, now = self.live.find(id), trio.current_time()
        requests = self.requests().get(id, NO_REQUESTS)
        if live is None:
            return EndpointNow("", requests.number, requests.oldest_s, (), known=False)
        pool = self.live.pool(live.endpoint.model)
        others = tuple(e.id for e in pool.endpoints if e is not live and e.usable(now)) if pool is not None else ()
        return EndpointNow(live.endpoint.model, max(live.in_flight, requests.number), requests.oldest_s, others)

    def _plan(self, id: str) -> dict[str, Any]:
        return {"plan": plan_json(DrainPlan(id, (self.move(id),), 0.0)), "refused": ""}

    def move(self, id: str) -> Move:
        """What a drain of it would do; there is nowhere that it goes."""
        now = self._now(id)
        serve = f"{', '.join(now.others)} {'serves' if len(now.others) == 1 else 'serve'} on"
        why = serve if now.others else f"no other endpoint of {now.model} serves"
        return Move(id, now.model, (), why, Requests(now.in_flight, now.oldest_s), blocked=not now.others)

    def declined(self, id: str, target: Target) -> Declined | None:
        live = self.live.find(id)
        if live is None and not (id in self.held and target is Target.SCHEDULABLE):
            there = [one.id for one in self.live if not one.endpoint.replica]
            return Declined("not_found", f"no endpoint is called {id[:128]!r}", meant(id, there) if there else "")
        if live is not None and live.endpoint.replica:
            hint = f"llmgw ctl move {live.endpoint.replica}, or llmgw ctl drain its node"
            return Declined("refused", f"{id} is a replica that an agent runs", hint)
        if target is Target.CORDONED:
            return Declined("refused", "an endpoint is drained or in service", f"llmgw ctl drain {PREFIX}{id}")
        return None

    # -- the store ------------------------------------------------------------------------------------

    async def _release(self, by: Operator, id: str, why: str) -> None:
        if id not in self.held:
            return
        act = self._act(by, id, "schedulable", why)

        def change(db: Database) -> None:
            held_out.release(db, id)
            audit.note(db, act)

        await self.store.write(change)
        del self.held[id]
        self._tell_pools()
        self._tell(id, f"{id} is in service again, says {by.name}" + (f": {why}" if why else ""))

    async def _write(self, held: HeldOut, act: audit.Act | None = None) -> None:
        def change(db: Database) -> None:
            held_out.save(db, held)
            if act is not None:
                audit.note(db, act)

        await self.store.write(change)
        self.held[held.id] = held
        self._tell_pools()

    def _act(self, by: Operator, id: str, target: str, why: str) -> audit.Act:
        before = "drained" if id in self.held else "schedulable"
        return audit.Act(self.wall(), by.name, str(by.role), "endpoints.target", id, why, before, target)

    def _tell_pools(self) -> None:
        out = {one.id: f"taken out of service by {one.by}" + (f": {one.why}" if one.why else "") for one in
               self.held.values() if one.out}  # fmt: skip
        self.live.hold_out(out)

    def _tell(self, id: str, sentence: str, **data: str) -> None:
        self.events.tell("endpoint.target", id, sentence, **data)
