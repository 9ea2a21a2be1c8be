"""How a plan becomes rows, decisions and events: the store first, memory after it."""

from collections.abc import Iterable
from typing import Any

import trio
from attrs import define, evolve, field, frozen

from llmgw.control.cluster import Cluster
from llmgw.control.events import Events
from llmgw.control.node_views import last_line
from llmgw.core.actions import (
    Action,
    Again,
    Blocked,
    Create,
    Fail,
    Forget,
    Leave,
    Plan,
    Renew,
    Return,
    Settled,
    Start,
    Stop,
    StopFirst,
    Waits,
)
from llmgw.core.applied import after, created
from llmgw.core.explain import Explanation
from llmgw.core.placement_explained import explain, main_reason
from llmgw.core.replicas import Replica
from llmgw.store import decisions, replicas
from llmgw.store.decisions import Decision
from llmgw.store.face import Database, Written
from llmgw.store.leader import counted

EVENT_OF: dict[type[Any], str] = {
    Create: "replica.created",
    Start: "replica.started",
    Blocked: "replica.blocked",
    Fail: "replica.failed",
    Renew: "replica.renewed",
    StopFirst: "replica.blocked",
    Waits: "replica.waiting",
    Again: "replica.waiting",
    Settled: "replica.settled",
    Leave: "replica.leaving",
    Return: "replica.returned",
    Stop: "replica.stopping",
    Forget: "replica.gone",
}


@frozen
class Changed:
    rows: tuple[Replica, ...]
    gone: tuple[str, ...]
    said: tuple[tuple[Action, str], ...]  # what was done, and to whom


@define(eq=False)
class Applying:
    store: Written
    cluster: Cluster
    events: Events
    _blocked: dict[str, str] = field(factory=dict, init=False)  # replica -> why, as told last

    async def apply(self, plan: Plan, more: Iterable[Replica] = ()) -> None:
        """One transaction, fenced. Raises StoreUnavailable, NotLeading; then nothing has changed anywhere."""
        actions = [self._with_last_words(one) for one in plan.actions if not self._told_already(one)]
        more = tuple(more)
        if not actions and not more:
            return
        cluster, wall = self.cluster, self.cluster.wall()
        told = [decision for action in actions if (decision := _decision(action, cluster, wall)) is not None]
        most = cluster.limits().decisions_max

        def change(db: Database) -> Changed:
            changed = _changed(db, {**cluster.rows, **{row.name: row for row in more}}, actions, more, wall)
            replicas.save(db, changed.rows)
            replicas.forget(db, changed.gone)
            for decision in told:
                decisions.add(db, decision, most)
            return changed

        changed = await self.store.write(change)
        cluster.took(changed.rows, changed.gone)
        self._blocked.update({action.replica: action.why for action in actions if isinstance(action, Blocked)})
        for action, subject in changed.said:
            self._tell(action, subject)

    def _with_last_words(self, action: Action) -> Action:
        """Why an engine failed is mostly the last line of its log."""
        if not isinstance(action, Fail) or action.ill:
            return action
        words = last_line(self.cluster, self.cluster.rows[action.replica])
        if not words or words in action.why:
            return action
        return evolve(action, why=f"{action.why}; its last line: {words}")

    def _told_already(self, action: Action) -> bool:
        """A replica that goes on waiting for the same reason is no news."""
        if not isinstance(action, Blocked):
            return False
        return self._blocked.get(action.replica) == action.why

    def _tell(self, action: Action, subject: str) -> None:
        if not isinstance(action, Blocked):
            self._blocked.pop(subject, None)
        self._count(action, subject)
        if isinstance(action, Fail) and action.ill:
            row = self.cluster.rows[subject]
            self.cluster.ill_restarts.setdefault(row.model, []).append(trio.current_time())
        known = self.cluster.rows.get(subject)
        data = {"model": known.model, "generation": known.generation} if known is not None else {}
        self.events.tell(EVENT_OF[type(action)], subject, str(action), why=getattr(action, "why", ""), **data)

    def _count(self, action: Action, subject: str) -> None:
        counts, row = self.cluster.counts, self.cluster.rows.get(subject)
        if row is None:
            return
        if isinstance(action, Start):
            counts.started[row.model] += 1
        elif isinstance(action, Fail):
            counts.failed[row.model] += 1
        elif isinstance(action, Blocked):
            counts.unplaced[row.model, main_reason(action.unplaceable)] += 1


def _changed(
    db: Database, rows: dict[str, Replica], actions: list[Action], more: tuple[Replica, ...], wall: float
) -> Changed:
    touched = {row.name: row for row in more}
    gone: list[str] = []
    said: list[tuple[Action, str]] = []
    for action in actions:
        if isinstance(action, Create):
            made = created(action, counted(db.conn, "replica_number", 1), wall)
            rows[made.name] = touched[made.name] = made
            said.append((action, made.name))
            continue
        generation = counted(db.conn, "generation", 1) if isinstance(action, Start) else 0
        changed = after(rows[action.replica], action, wall, generation)
        said.append((action, action.replica))
        if changed is None:
            gone.append(action.replica)
            touched.pop(action.replica, None)
        else:
            rows[changed.name] = touched[changed.name] = changed
    return Changed(tuple(touched.values()), tuple(gone), tuple(said))


def _decision(action: Action, cluster: Cluster, wall: float) -> Decision | None:
    if isinstance(action, Start):
        explained = explain(action.replica, action.demand, action.placed)
        return _kept("placed", action.replica, cluster, wall, explained)
    if isinstance(action, Blocked):
        explained = explain(action.replica, action.demand, action.unplaceable)
        return _kept("unplaceable", action.replica, cluster, wall, explained)
    return None


def _kept(kind: str, replica: str, cluster: Cluster, wall: float, explained: Explanation) -> Decision:
    told = {
        "subject": explained.subject,
        "verdict": explained.verdict,
        "because": [str(fact) for fact in explained.because],
        "candidates": [
            {"name": one.name, "chosen": one.chosen, "reasons": list(one.reasons), "scores": dict(one.scores)}
            for one in explained.candidates
        ],
        "would_change_it": list(explained.would_change_it),
        "next_command": explained.next_command,
    }
    return Decision(wall, kind, replica, cluster.rows[replica].model, explained.verdict, told)
