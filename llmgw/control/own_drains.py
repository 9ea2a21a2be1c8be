"""Drains that nodes ask for themselves, because their machines shut down: until they boot again, and no longer.

What an operator asked of a node stands above: a drain of theirs is followed and never replaced, and what they asked
before holds again after the boot.
"""

from collections.abc import Callable

from attrs import define

from llmgw.control.cluster import Cluster
from llmgw.control.events import Events
from llmgw.control.targets import Targets
from llmgw.core.drain import Aim, Drain, Target, asks_anew, is_over_by_boot
from llmgw.core.identity import Declined, Operator, Role
from llmgw.core.joining import NodeRecord
from llmgw.core.node_life import NodeNow, NodeState
from llmgw.core.reconcile import Seen
from llmgw.store.errors import StoreUnavailable
from llmgw.wire.agent_joining import DrainAsked, DrainTold

TOLD_MAX = 100  # sentences and names in one answer
DOWN = "the machine shuts down"


@define(eq=False)
class OwnDrains:
    cluster: Cluster
    events: Events
    targets: Targets
    report: Callable[[str, BaseException], None]

    async def ask(self, name: str, asked: DrainAsked) -> DrainTold | Declined:
        """At once: what runs there leaves in the passes. ``name``: of the node whose credential was shown."""
        try:
            async with self.cluster.turn:  # the pass that is placing ends first
                record = self.cluster.joining.nodes.get(name)
                if record is None:
                    return Declined("not_found", f"no node is called {name}")
                if asks_anew(record.drain if record.target == Target.DRAINED else None, asked.boot):
                    await self._begin(record, asked)
        except StoreUnavailable as error:
            return Declined("unavailable", f"nothing can be asked of {name} now: {error}")
        self.cluster.wake()
        return self.told(name)

    async def _begin(self, record: NodeRecord, asked: DrainAsked) -> None:
        name, why, by = record.name, asked.why or DOWN, _itself(record.name)
        drain = Drain(
            asked.grace_s,
            self.cluster.wall() + asked.grace_s,
            asked.at_deadline,
            self.targets.plan(name).planned,
            until_boot=asked.boot,
            before=_before(record),
        )
        await self.cluster.joining.aim(by, name, str(Target.DRAINED), why, drain)
        said = f"{name} is to be drained until it boots again, says {by.name}: {why}"
        self.events.tell("node.target", name, said, target=str(Target.DRAINED))

    def told(self, name: str) -> DrainTold:
        record, node = self.cluster.joining.nodes[name], self.cluster.observe().nodes[name]
        status = self.targets.status(name) if record.target == Target.DRAINED else None
        heard = node.connected and node.state is NodeState.READY
        if status is None:
            return DrainTold(target=record.target, by=record.target_by, heard=heard)
        return DrainTold(
            status["state"],
            record.target,
            record.target_by,
            status["left_s"],
            tuple(status["left"][:TOLD_MAX]),
            tuple(status["waits_on"][:TOLD_MAX]),
            status["said"],
            heard,
        )

    async def look(self, seen: Seen) -> None:
        """After a pass: nodes that have booted again are what they were."""
        for node in seen.nodes.values():
            if _is_back(node):
                try:
                    await self._give_back(node)
                except StoreUnavailable as error:
                    self.report(f"that {node.name} has booted again was not stored", error)  # the next pass tries again

    async def _give_back(self, node: NodeNow) -> None:
        name = node.name
        async with self.cluster.turn:
            record = self.cluster.joining.nodes.get(name)
            if record is None or record.drain is None or not is_over_by_boot(record.drain, node.boot):
                return  # an operator was faster
            before, why = record.drain.before, "it has booted again"
            await self.cluster.joining.aim(_itself(name), name, str(before.target), why, None, before)
        said = f"{name} has booted again, so it is {before.target} as it was before it asked to be drained"
        self.events.tell("node.target", name, said, target=str(before.target))
        self.cluster.wake()


def _is_back(node: NodeNow) -> bool:
    return node.state is NodeState.READY and node.target == Target.DRAINED and is_over_by_boot(node.drain, node.boot)


def _itself(name: str) -> Operator:
    return Operator(f"agent of {name}", Role.OPERATOR)


def _before(record: NodeRecord) -> Aim:
    if record.drain is not None and record.drain.until_boot:
        return record.drain.before  # it shuts down again before it was back
    return Aim(Target(record.target), record.target_by, record.target_at, record.target_why)
