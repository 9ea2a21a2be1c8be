"""What operators ask of a node: schedulable, cordoned, drained. One act, idempotent, sure before it says so.

A cordon is said to be one once nothing can land there any more: the pass that was placing has ended, and the node
obeys everything that it was sent before. A drain goes on in the passes; this watches how far it gets.
"""

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import trio
from attrs import define, field

from llmgw.control.cluster import Cluster
from llmgw.control.events import Events
from llmgw.control.nearest import meant
from llmgw.core.drain import Aim, AtDeadline, Drain, DrainEnd, DrainLimits, Target, asked_again, begins, goes_on
from llmgw.core.drain_plan import (
    DrainPlan,
    Move,
    Requests,
    drain_plan,
    is_empty,
    left_on,
    processes_on,
    state_of_drain,
    waits_on,
)
from llmgw.core.identity import Declined, Operator
from llmgw.core.node_life import NodeNow, NodeState
from llmgw.core.presets import stop_grace_of
from llmgw.core.reconcile import Seen
from llmgw.core.replicas import Phase, ReplicaNow
from llmgw.store.errors import StoreUnavailable

LOOK_S = 0.05
OVERTIME_S = 15.0  # beyond the grace and the engines' own grace to stop: their memory comes back


@define(eq=False)
class Targets:
    """``requests``: by endpoint id, what this gateway has there. ``look`` is called with every pass."""

    cluster: Cluster
    events: Events
    limits: Callable[[], DrainLimits]
    requests: Callable[[], Mapping[str, Requests]]
    report: Callable[[str, BaseException], None]
    counts: dict[str, int] = field(factory=dict, init=False)  # drains by how they ended, for metrics
    cut: int = field(default=0, init=False)  # requests
    replaced: int = field(default=0, init=False)  # replicas

    async def aim(
        self,
        by: Operator,
        name: str,
        target: Target,
        why: str = "",
        grace_s: float | None = None,
        at_deadline: AtDeadline | None = None,
        dry_run: bool = False,
    ) -> dict[str, Any] | Declined:
        if name not in self.cluster.joining.nodes:
            there = list(self.cluster.joining.nodes)
            return Declined("not_found", f"no node is called {name!r}", meant(name, there) if there else "")
        plan, usual_s = self.plan(name) if target is Target.DRAINED else None, self.limits().grace
        refused = self._too_short(name, plan) if grace_s is None and at_deadline is None else None
        if dry_run:
            return self._told_dry(name, target, plan, refused)
        if refused is not None:
            return refused
        async with self.cluster.turn:  # the pass that is placing ends first, and the next one knows
            drain = None
            if plan is not None:
                before = self.cluster.joining.nodes[name].drain
                drain = asked_again(before, grace_s, at_deadline, usual_s, self.cluster.wall(), plan.planned)
            await self._ask(by, name, target, why, drain)
        self.cluster.wake()
        return await self._answer(name, target)

    async def _ask(self, by: Operator, name: str, target: Target, why: str, drain: Drain | None) -> None:
        """Where it is something new. While a target stays, the last reason counts, and its time goes on."""
        record = self.cluster.joining.nodes[name]
        before = Aim(Target(record.target), record.target_by, record.target_at, record.target_why)
        asked = Aim(target, by.name, self.cluster.wall(), why)
        if before.target is target and not begins(record.drain, drain):
            asked = attrs.evolve(asked, at=before.at) if why else before
        if asked == before and drain == record.drain:
            return
        await self.cluster.joining.aim(by, name, str(target), why, drain, asked)
        self.events.tell("node.target", name, _sentence(name, target, by, why), target=str(target))

    def plan(self, name: str) -> DrainPlan:
        starts = {m: total / number for m, (number, total) in self.cluster.counts.start_times.items() if number}
        seen, limits, most = self.cluster.observe(), self.cluster.limits(), self.limits().surges_max
        return drain_plan(seen, name, limits, starts, self._by_replica(), most)

    def moves(self, name: str) -> tuple[Move, ...]:
        """Where each replica goes now, or where its successor has gone already."""
        successors = {
            now.replica.replaces: now
            for now in self.cluster.observe().replicas.values()
            if now.replica.replaces and now.shards
        }
        return tuple(
            _gone(move, successors[move.replica]) if move.replica in successors else move
            for move in self.plan(name).moves
        )

    def _too_short(self, name: str, plan: DrainPlan | None) -> Declined | None:
        """Of a drain that begins now, without a grace of its own."""
        usual_s, drain = self.limits().grace, self.cluster.joining.nodes[name].drain
        if plan is None or goes_on(drain) or plan.estimate_s <= usual_s:
            return None
        what = f"draining {name} takes about {plan.estimate_s:.0f} s, and drain.grace is {usual_s:.0f} s"
        return Declined("too_short", what, "give --grace, or --at-deadline stop|keep for what is left then")

    # -- answering ------------------------------------------------------------------------------------

    async def _answer(self, name: str, target: Target) -> dict[str, Any]:
        """Within ``drain.cordon_within``: whether nothing can land there any more."""
        if target is Target.SCHEDULABLE:
            return {"node": name, "target": str(target), "confirmed": True, "said": f"{name} is schedulable"}
        with trio.move_on_after(self.limits().cordon_within):
            while not self._node(name).obedient:  # noqa: ASYNC110 - a report tells it, and nothing waits for reports
                await trio.sleep(LOOK_S)
        node = self._node(name)
        may = [] if node.obedient else self._may_still_start(node)
        told: dict[str, Any] = {"node": name, "target": str(target), "confirmed": node.obedient}
        word = "cordoned" if target is Target.CORDONED else "draining"
        told["said"] = f"{name} is {word}" if node.obedient else _unconfirmed(node, word, may)
        told["may_still_start"] = may
        if target is Target.DRAINED:
            told |= {"drain": self.status(name), "plan": {"moves": [move_json(move) for move in self.moves(name)]}}
        return told

    def _may_still_start(self, node: NodeNow) -> list[str]:
        sent = self.cluster.sent.get(node.name)
        running = {id for id, seen in node.shards.items() if seen.pid}
        return sorted(entry.id for entry in (sent.entries if sent else ()) if entry.id not in running)

    def _node(self, name: str) -> NodeNow:
        return self.cluster.nodes(trio.current_time())[name]

    def _told_dry(self, name: str, target: Target, plan: DrainPlan | None, refused: Declined | None) -> dict[str, Any]:
        told: dict[str, Any] = {"node": name, "target": str(target), "dry_run": True}
        if plan is not None:
            told |= {"plan": plan_json(plan), "refused": refused.message if refused is not None else ""}
        return told

    # -- progress -------------------------------------------------------------------------------------

    def status(self, name: str) -> dict[str, Any] | None:
        """How far a node's drain has got; None: it never had one, or is schedulable again."""
        return self._status(self.cluster.observe(), name)

    def _status(self, seen: Seen, name: str) -> dict[str, Any] | None:
        node = seen.nodes.get(name)
        if node is None or node.drain is None:
            return None
        drain, waits = node.drain, list(waits_on(seen, node, self._by_replica()))
        return {
            "state": state_of_drain(seen, node),
            "left": [now.name for now in left_on(seen, node)],
            "processes": processes_on(node),
            "waits_on": waits if drain.under_way else [],
            "grace_s": drain.grace_s,
            "left_s": round(node.drain_left_s, 1) if drain.under_way else None,
            "at_deadline": str(drain.at_deadline),
            "planned": {replica: list(to) for replica, to in drain.planned.items()},
            "replaced": list(drain.replaced),
            "cut": drain.cut,
            "said": drain.said,
            "ended_at": drain.ended_at or None,
        }

    def drains(self, seen: Seen | None = None) -> list[dict[str, Any]]:
        """Every node that is drained, or on its way there."""
        asked = [record for record in self.cluster.joining.nodes.values() if record.drain is not None]
        if not asked:
            return []
        seen = seen or self.cluster.observe()
        return [
            {
                "subject": record.name,
                "target": record.target,
                "by": record.target_by,
                "at": record.target_at,
                "why": record.target_why,
                "drain": self._status(seen, record.name),
            }
            for record in asked
        ]

    def overtime_s(self, seen: Seen, node: NodeNow) -> float:
        """How long engines may take to end once they are told to."""
        graces = (stop_grace_of(now.replica.spec) for now in left_on(seen, node))
        return max(graces, default=0.0) + OVERTIME_S

    async def look(self, seen: Seen, stopped: Mapping[str, int]) -> None:
        """After a pass. ``stopped``: replicas that it stopped, with the requests that were cut."""
        for node in seen.nodes.values():
            if node.drain is not None and node.drain.under_way:
                await self._look_at(seen, node, node.drain, stopped)

    async def _look_at(self, seen: Seen, node: NodeNow, drain: Drain, stopped: Mapping[str, int]) -> None:
        mine = {now.name for now in seen.replicas.values() if any(s.node == node.name for s in now.shards)}
        others = {one.replica.replaces for one in seen.replicas.values() if one.serving}
        ways = (Phase.LEAVING, Phase.STOPPING)
        leaves = {name for name in mine & others if seen.replicas[name].replica.phase in ways}
        cut = sum(count for name, count in stopped.items() if name in mine)
        now = attrs.evolve(drain, cut=drain.cut + cut, replaced=tuple(sorted({*drain.replaced, *leaves})))
        self.cut, self.replaced = self.cut + cut, self.replaced + len(now.replaced) - len(drain.replaced)
        if (end := self._end(seen, node, now)) is not None:
            now = end
            self.counts[str(now.ended)] = self.counts.get(str(now.ended), 0) + 1
            self.events.tell("node.target", node.name, now.said, ended=str(now.ended))
        if now != drain:
            try:
                await self.cluster.joining.note_drain(node.name, now)
            except StoreUnavailable as error:
                self.report(f"how far the drain of {node.name} has got was not stored", error)

    def _end(self, seen: Seen, node: NodeNow, drain: Drain) -> Drain | None:
        took = drain.grace_s - node.drain_left_s
        if is_empty(seen, node):
            said = f"{node.name} is drained after {took:.0f} s: no process is left, {drain.said_cut}"
            return attrs.evolve(drain, ended=DrainEnd.DRAINED, ended_at=self.cluster.wall(), said=said)
        keeps = drain.at_deadline is AtDeadline.KEEP
        if node.drain_left_s <= 0 and (keeps or -node.drain_left_s > self.overtime_s(seen, node)):
            waits = "; ".join(waits_on(seen, node, self._by_replica()))
            said = f"the drain of {node.name} ends blocked after {took:.0f} s, it stays cordoned: {waits}"
            return attrs.evolve(drain, ended=DrainEnd.BLOCKED, ended_at=self.cluster.wall(), said=said)
        return None

    def _by_replica(self) -> Mapping[str, Requests]:
        by_endpoint = self.requests()
        rows = self.cluster.rows.values()
        return {row.name: by_endpoint[row.endpoint_id] for row in rows if row.endpoint_id in by_endpoint}


def plan_json(plan: DrainPlan) -> dict[str, Any]:
    return {"moves": [move_json(move) for move in plan.moves], "estimate_s": round(plan.estimate_s, 1)}


def move_json(move: Move) -> dict[str, Any]:
    return {
        "replica": move.replica,
        "model": move.model,
        "to": list(move.to),
        "why": move.why,
        "blocked": move.blocked,
        "requests": move.requests.number,
        "oldest_s": round(move.requests.oldest_s, 1),
        "takes_s": round(move.takes_s, 1),
    }


def _gone(move: Move, successor: ReplicaNow) -> Move:
    to = tuple(dict.fromkeys(shard.node for shard in successor.shards))
    return attrs.evolve(move, to=to, why=f"{successor.name} is {successor.standing} there", blocked=False)


def _sentence(name: str, target: Target, by: Operator, why: str) -> str:
    word = {Target.SCHEDULABLE: "uncordoned", Target.CORDONED: "cordoned", Target.DRAINED: "drained"}[target]
    return f"{name} is to be {word}, says {by.name}" + (f": {why}" if why else "")


def _unconfirmed(node: NodeNow, word: str, may: list[str]) -> str:
    starts = f", may still start {', '.join(may)}" if may else ""
    silent = f"{node.state}, silent for {node.silence_s:.0f} s" if node.state is not NodeState.READY else ""
    if silent and node.obeys >= node.rev:
        why = f"it is {silent}; until then it had obeyed all it was sent"
    else:
        why = f"it has not obeyed rev {node.rev}" + (f" ({silent})" if silent else "")
    return f"{node.name} is {word}, unconfirmed: {why}{starts}"
