"""What operators do to replicas and nodes, audited in the transaction of the act."""

from collections.abc import Sequence
from typing import Any

import attrs
import trio
from attrs import define

from llmgw.control.cluster import Cluster
from llmgw.control.events import Events
from llmgw.control.nearest import meant
from llmgw.core.identity import Declined, Operator
from llmgw.core.replicas import Phase, Replica
from llmgw.store import audit, replicas
from llmgw.store.leader import fence
from llmgw.store.sqlite import SqliteStore
from llmgw.store.transaction import Database


@define(eq=False)
class Acting:
    store: SqliteStore
    cluster: Cluster
    events: Events

    async def restart(self, by: Operator, subject: str, why: str = "") -> Sequence[str] | Declined:
        """A replica, or every replica of a model, one after another; a replacement serves before each leaves."""
        async with self.cluster.turn:
            rows = self.cluster.rows
            found = [rows[subject]] if subject in rows else [row for row in rows.values() if row.model == subject]
            found = [row for row in found if row.phase in (Phase.WANTED, Phase.WAITING, Phase.RESTARTING)]
            if not found:
                hint = meant(subject, [*rows, *self.cluster.desired.wants]) if rows else "nothing runs under agents"
                return Declined("not_found", f"no replica or model {subject!r} runs", hint)
            reason = f"restart asked by {by.name}" + (f": {why}" if why else "")
            changed = [attrs.evolve(row, leave_why=reason) for row in found]
            await self._write(by, "replicas.restart", subject, why, changed, [row.name for row in found])
        self.events.tell("operator.acted", subject, f"{by.name} asked for a restart of {subject}", why=why)
        return [row.name for row in changed]

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
        self, by: Operator, what: str, subject: str, why: str, rows: Sequence[Replica], after: Any
    ) -> None:
        act = audit.Act(self.cluster.wall(), by.name, str(by.role), what, subject, why, None, after)
        epoch = self.store.epoch

        def change(db: Database) -> None:
            fence(db.conn, epoch)
            replicas.save(db, rows)
            audit.note(db, act)

        await self.store.write(change)
        self.cluster.took(rows, ())
        self.cluster.wake()
