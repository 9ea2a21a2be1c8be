"""What operators do to replicas and nodes, audited in the transaction of the act."""

from collections.abc import Sequence
from typing import Any

import attrs
import trio
from attrs import define

from llmgw.control.cluster import Cluster
from llmgw.control.events import Events
from llmgw.control.nearest import meant
from llmgw.core.actions import Create
from llmgw.core.applied import created
from llmgw.core.claims import apart_of, board_of
from llmgw.core.identity import Declined, Operator
from llmgw.core.offers import Demand, NodeOffer
from llmgw.core.placement import Placed, place
from llmgw.core.placement_explained import reasons_in_short, scores_in_short
from llmgw.core.presets import stop_grace_of
from llmgw.core.reconcile import Seen
from llmgw.core.replicas import Phase, Replica, ReplicaNow, ShardNow, Standing
from llmgw.core.shards import ShardState
from llmgw.core.worth import demand_for
from llmgw.store import audit, replicas
from llmgw.store.face import Database, Written

STUCK_AFTER_S = 15.0  # beyond its engine's own grace to stop


@define(eq=False)
class Acting:
    store: Written
    cluster: Cluster
    events: Events

    async def restart(self, by: Operator, subject: str, why: str = "") -> Sequence[str] | Declined:
        """A replica, or every replica of a model, one after another; a replacement serves before each leaves."""
        async with self.cluster.turn:
            rows = self.cluster.rows
            found = [rows[subject]] if subject in rows else [row for row in rows.values() if row.model == subject]
            found = [row for row in found if row.phase in (Phase.WANTED, Phase.WAITING, Phase.RESTARTING)]
            if not found and subject in rows:
                told = f"replica {subject!r} is on its way out: {rows[subject].leave_why or 'it is not wanted'}"
                return Declined("not_found", told, "`llmgw ctl replicas` shows what replaces it")
            if not found:
                hint = meant(subject, [*rows, *self.cluster.desired.wants]) if rows else "nothing runs under agents"
                return Declined("not_found", f"no replica or model {subject!r} runs", hint)
            reason = f"restart asked by {by.name}" + (f": {why}" if why else "")
            changed = [attrs.evolve(row, leave_why=reason) for row in found]
            await self._write(by, "replicas.restart", subject, why, changed, [row.name for row in found])
        self.events.tell("operator.acted", subject, f"{by.name} asked for a restart of {subject}", why=why)
        return [row.name for row in changed]

    async def move(
        self, by: Operator, name: str, to: Sequence[str] = (), why: str = "", dry_run: bool = False
    ) -> dict[str, Any] | Declined:
        """A replica goes to another node, or to one of ``to``: a replacement serves there before this one leaves.

        Asked again before its replacement has a place, it goes where it is sent now.
        """
        async with self.cluster.turn:
            seen = self.cluster.observe()
            if (declined := self._may_not_move(seen, name, to)) is not None:
                return declined
            now = seen.replicas[name]
            away = () if to else tuple(dict.fromkeys(shard.node for shard in now.shards))
            result = place(*_moved(seen, now, tuple(to), away))
            if not isinstance(result, Placed):
                what = f"{name} fits nowhere {'there' if to else 'else'}: {reasons_in_short(result)}"
                return Declined(
                    "blocked", what, f"`llmgw ctl explain placement {now.replica.model}` tells of each node"
                )
            told: dict[str, Any] = {"replica": name, "to": list(result.nodes)}
            if dry_run:
                return told | {"dry_run": True, "why": scores_in_short(result)}
            reason = f"moved by {by.name}" + (f": {why}" if why else "")
            row = attrs.evolve(now.replica, leave_why=reason, move_to=tuple(to), move_from=away)
            await self._write(by, "replicas.move", name, why, [row], told["to"], _placeless(seen, name))
        where = " to " + ", ".join(to) if to else ""
        self.events.tell("operator.acted", name, f"{by.name} moves {name}{where}", why=why)
        return told | {"why": reason}

    def _may_not_move(self, seen: Seen, name: str, to: Sequence[str]) -> Declined | None:
        now = seen.replicas.get(name)
        if now is None:
            there = list(seen.replicas)
            return Declined("not_found", f"no replica {name[:128]!r} runs", meant(name, there) if there else "")
        want, phase = seen.wants.get(now.replica.model), now.replica.phase
        if phase in (Phase.LEAVING, Phase.STOPPING) or want is None:
            return Declined("refused", f"{name} is on its way out: {now.replica.why}")
        if (unknown := next((node for node in to if node not in seen.nodes), None)) is not None:
            return Declined("not_found", f"no node is called {unknown[:128]!r}", meant(unknown, list(seen.nodes)))
        if want.rules.nodes and (other := next((node for node in to if node not in want.rules.nodes), None)):
            return Declined("refused", f"placement.nodes of {want.model} does not name {other}", "change it and apply")
        successor = next((one for one in seen.replicas.values() if one.replica.replaces == name), None)
        if successor is not None and not _placeless(seen, name):
            what = f"{successor.name} is to take its place already: {successor.replica.reason}"
            return Declined("refused", what, f"llmgw ctl move {name} --cancel" if now.replica.moves else "")
        return None

    async def cancel_move(self, by: Operator, name: str, why: str = "") -> dict[str, Any] | Declined:
        """A move is taken back, as long as what was to move is there; ``name`` may be of its replacement too."""
        async with self.cluster.turn:
            seen = self.cluster.observe()
            row = self._moving(name)
            if row is None or row.phase is Phase.STOPPING:
                if name not in seen.replicas:
                    there = list(seen.replicas)
                    return Declined("not_found", f"no replica {name[:128]!r} runs", meant(name, there) if there else "")
                return Declined("refused", f"{name} is not being moved")
            back = attrs.evolve(row, leave_why="", move_to=(), move_from=(), only=(), avoid=())
            await self._write(by, "replicas.move", row.name, why, [back], "cancelled", _placeless(seen, row.name))
        self.events.tell("operator.acted", row.name, f"{by.name} takes back the move of {row.name}", why=why)
        return {"replica": row.name, "cancelled": True}

    def _moving(self, name: str) -> Replica | None:
        """The row that a move binds: the old one's, or that of one which has left its place and waits for another."""
        rows = self.cluster.rows
        row = rows.get(name)
        if row is not None and (old := rows.get(row.replaces)) is not None and old.moves:
            return old
        waits = row is not None and row.phase in (Phase.WAITING, Phase.RESTARTING) and not row.replaces
        return row if row is not None and (row.moves or (waits and (row.only or row.avoid))) else None

    async def purge(self, by: Operator, name: str, why: str = "") -> dict[str, Any] | Declined:
        """Forget a replica that does not end. What is left of it stays in sight, as shards of its nodes.

        ``memory`` of the answer: those that are left with GPU memory alone, and no process.
        """
        async with self.cluster.turn:
            seen = self.cluster.observe()
            now = seen.replicas.get(name)
            if now is None:
                there = list(seen.replicas)
                return Declined("not_found", f"no replica {name[:128]!r} runs", meant(name, there) if there else "")
            patience = stop_grace_of(now.replica.spec) + STUCK_AFTER_S
            if now.replica.phase is not Phase.STOPPING or now.age_s < patience:
                what = f"{name} is {now.standing}, and only what has been stopping for {patience:.0f} s is purged"
                return Declined("refused", what, f"llmgw ctl explain placement {name}")
            left = [shard.id for shard in now.shards if not shard.ended]
            memory = [shard.id for shard in now.shards if _holds_memory_alone(shard)]
            await self._write(by, "replicas.purge", name, why, [], {"left": left}, gone=[name])
        where = ", ".join(sorted({shard.node for shard in now.shards}))
        self.events.tell("operator.acted", name, f"{by.name} purged {name}: {_left(left, memory)} on {where}", why=why)
        return {"replica": name, "left": left, "memory": memory}

    async def clear_gpu(self, by: Operator, node: str, which: str, cause: str, why: str = "") -> Any:
        """An operator has looked at a GPU; its UUID. The node's agent forgets what spoke against it."""
        seen = self.cluster.nodes(trio.current_time()).get(node)
        gpus = seen.gpus if seen is not None else ()
        found = [gpu.uuid for gpu in gpus if which in (gpu.uuid, str(gpu.index))]
        if not found:
            there = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus) or "none"
            return Declined("not_found", f"{node} has no GPU {which!r}", f"it has {there}")
        answer = await self.cluster.registry.ask_clear(node, found[0], cause)
        if answer.error:
            return Declined("refused", answer.error, f"`llmgw ctl explain gpu {node} {which}` tells what there is")
        await self._write(by, "gpus.clear", f"{node}/{found[0]}", why, [], {"cause": cause})
        self.events.tell(
            "operator.acted", f"{node}/{found[0]}", f"{by.name} cleared {cause} of {node} {which}", why=why
        )
        return found[0]

    async def _write(
        self,
        by: Operator,
        what: str,
        subject: str,
        why: str,
        rows: Sequence[Replica],
        after: Any,
        gone: Sequence[str] = (),
    ) -> None:
        act = audit.Act(self.cluster.wall(), by.name, str(by.role), what, subject, why, None, after)

        def change(db: Database) -> None:
            replicas.save(db, rows)
            replicas.forget(db, gone)
            audit.note(db, act)

        await self.store.write(change)
        self.cluster.took(rows, gone)
        self.cluster.wake()


def _placeless(seen: Seen, name: str) -> tuple[str, ...]:
    """Its replacement, if that has no place yet: another is made, which goes where this one is sent now."""
    return tuple(
        one.name
        for one in seen.replicas.values()
        if one.replica.replaces == name and one.replica.phase is Phase.WAITING and not one.replica.stop_first
    )


def _holds_memory_alone(shard: ShardNow) -> bool:
    seen = shard.seen
    return seen is not None and seen.state is ShardState.RELEASING and not seen.pids


def _left(left: Sequence[str], memory: Sequence[str]) -> str:
    runs = [id for id in left if id not in memory]
    parts = [f"{', '.join(runs)} may still run"] if runs else []
    if memory:
        parts.append(f"memory of {', '.join(memory)}, which {'has' if len(memory) == 1 else 'have'} ended, is not back")
    return " and ".join(parts) or "nothing is left of it"


def _moved(seen: Seen, now: ReplicaNow, to: tuple[str, ...], away: tuple[str, ...]) -> tuple[Demand, list[NodeOffer]]:
    """What its successor asks for, and of whom; one that serves nobody leaves its own place first."""
    want = seen.wants[now.replica.model]
    successor = created(Create(want.model, want.spec, "", now.name, away, (), to), 0, seen.wall)
    demand = demand_for(successor, want, frozenset(shard.node for shard in now.shards))
    without = frozenset[str]() if now.standing is Standing.SERVING else frozenset({now.name})
    return demand, list(board_of(seen.nodes, seen.replicas.values(), without, apart_of(seen.wants)).offers())
