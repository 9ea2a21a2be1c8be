"""Why a replica is where it is, or nowhere; why a node or a GPU gets something, or nothing."""

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import trio
from attrs import define

from llmgw.control.cluster import Cluster, state_of
from llmgw.control.nearest import meant
from llmgw.control.node_views import state_shown, why_shown
from llmgw.core.claims import apart_of, board_of
from llmgw.core.explain import Considered, Explanation, Fact
from llmgw.core.identity import Declined
from llmgw.core.node_life import NodeNow
from llmgw.core.offers import GpuOffer, demand_of
from llmgw.core.placement import gib, place
from llmgw.core.placement_explained import explain, why_nothing_lands
from llmgw.core.reconcile import Seen
from llmgw.core.replicas import NO_PROOF, Phase, ReplicaNow
from llmgw.core.what_if import Unknown, World, suppose
from llmgw.core.worth import demand_for
from llmgw.store import decisions
from llmgw.store.face import Store

OPERATOR = "an operator"  # whose word clears some evidence


@define(eq=False)
class Explaining:
    cluster: Cluster
    store: Store
    bytes_of: Callable[[str], int]

    async def placement(self, subject: str, what_if: str = "") -> Explanation | dict[str, Any] | Declined:
        """Of a replica: as it was decided. Of a model, or with ``what_if``: the same function asked now."""
        seen = self.cluster.observe()
        replica = seen.replicas.get(subject)
        if replica is not None and not what_if and replica.replica.phase is not Phase.WAITING:
            kept = await self.store.read(lambda conn: decisions.latest(conn, subject))
            if kept is not None and kept.subject == subject:
                return _as_decided(kept, self.cluster.wall())
        return self._asked_now(seen, subject, replica, what_if)

    def _asked_now(self, seen: Seen, subject: str, replica: ReplicaNow | None, what_if: str) -> Explanation | Declined:
        model = replica.replica.model if replica is not None else subject
        want = seen.wants.get(model)
        if want is None:
            return Declined(
                "not_found", f"no replica or model {subject!r} is run by agents", self._meant(seen, subject)
            )
        demand = demand_for(replica.replica, want) if replica is not None else demand_of(want)
        without = frozenset({subject}) if replica is not None else frozenset()
        board = board_of(seen.nodes, seen.replicas.values(), without, apart_of(seen.wants))
        try:
            world = suppose(World(demand, tuple(board.offers())), what_if, self.bytes_of)
        except Unknown as unknown:
            return Declined("what_if", str(unknown))
        result = place(world.demand, world.nodes)
        title = subject if replica is not None else f"one more replica of {subject}"
        said = explain(title + (f", what if {what_if}" if what_if else ""), world.demand, result)
        return attrs.evolve(said, because=(*said.because, *self._standing(seen, model)))

    def _standing(self, seen: Seen, model: str) -> Iterator[Fact]:
        want = seen.wants[model]
        its = [now for now in seen.replicas.values() if now.replica.model == model]
        serving = sum(now.serving for now in its)
        yield Fact(f"{want.replicas} wanted, {serving} serving")
        for now in its:
            if not now.serving:
                proof = self.cluster.proofs.get(now.replica.endpoint_id, NO_PROOF)
                state, why = state_shown(now, self.cluster.limits()), why_shown(now, proof.why)
                yield Fact(f"{now.name} is {state}" + (f": {why}" if why else ""))

    def _meant(self, seen: Seen, subject: str) -> str:
        names = [*seen.replicas, *seen.wants]
        return meant(subject, names) if names else "no model has a [models.engine]"

    # -- nodes and GPUs -------------------------------------------------------------------------------

    def node(self, name: str) -> Explanation | Declined:
        seen = self.cluster.observe()
        node = seen.nodes.get(name)
        if node is None:
            return Declined("not_found", f"no node is called {name!r}", _names(seen))
        offer = board_of(seen.nodes, seen.replicas.values()).offer(name)
        nothing = why_nothing_lands(offer)
        lands = f"nothing new lands here: {nothing}" if nothing else "replicas may land here"
        candidates = tuple(_gpu_considered(one) for one in offer.gpus)
        here = [now for now in seen.replicas.values() if any(shard.node == name for shard in now.shards)]
        facts, changes = tuple(self._node_facts(node, here)), tuple(_node_changes(node))
        return Explanation(name, f"{state_of(node)}; {lands}", facts, candidates, changes, "llmgw ctl replicas")

    def _node_facts(self, node: NodeNow, here: list[ReplicaNow]) -> Iterator[Fact]:
        if node.heard_s is None:
            yield Fact("it has not reported since this control plane began", self.cluster_age())
        else:
            yield Fact("it reported", node.heard_s)
        if node.driver:
            yield Fact(f"GPU driver: {node.driver}")
        yield Fact(f"{len(node.gpus)} GPUs, {gib(node.memory_mib)} GiB of memory")
        for now in here:
            yield Fact(f"{now.name} is {state_shown(now, self.cluster.limits())} here")
        for orphan in node.orphans:
            yield Fact(f"orphan {orphan.id}: {orphan.why}, processes {', '.join(map(str, orphan.pids))}")
        if node.obeys < node.rev:
            yield Fact(f"it obeys revision {node.obeys} of {node.rev} that it was sent", node.behind_s)

    def cluster_age(self) -> float:
        return trio.current_time() - self.cluster.began_at

    def gpu(self, node: str, which: str) -> Explanation | Declined:
        """``which``: its UUID, the beginning of it, or its index."""
        seen = self.cluster.observe()
        if node not in seen.nodes:
            return Declined("not_found", f"no node is called {node!r}", _names(seen))
        if seen.nodes[node].heard_s is None:
            why = f"{node} has not reported since this control plane began to lead"
            return Declined("refused", why, "llmgw ctl nodes")
        offers = board_of(seen.nodes, seen.replicas.values()).offer(node).gpus
        found = [o for o in offers if which == str(o.gpu.index) or (which and o.gpu.uuid.startswith(which))]
        if len(found) != 1:
            there = ", ".join(f"{o.gpu.index} ({o.gpu.uuid})" for o in offers) or "none"
            return Declined("not_found", f"{node} has no one GPU {which!r}", f"it has {there}")
        return _gpu_explained(node, found[0])


def _as_decided(kept: decisions.Decision, wall: float) -> dict[str, Any]:
    """The explanation as it was stored, told with its age."""
    told = dict(kept.told)
    told["because"] = [{"text": text, "age_s": None} for text in told.get("because", [])]
    told["because"].append({"text": "decided", "age_s": round(max(0.0, wall - kept.at), 1)})
    told["decided_at"] = kept.at
    return told


def _names(seen: Seen) -> str:
    return f"there are {', '.join(sorted(seen.nodes))}" if seen.nodes else "there are no nodes: llmgw ctl nodes invite"


def _node_changes(node: NodeNow) -> Iterator[str]:
    if node.given_up:
        yield f"{node.name} reports again"
    elif node.trouble:
        yield "the agent's log on the node: journalctl -u llmgw-agent"
        yield f"if it will not come back: llmgw ctl nodes lost {node.name}"
    if node.target != "schedulable":
        yield f"llmgw ctl uncordon {node.name}"
    for gpu in node.gpus:
        for one in gpu.excluded:
            yield f"GPU {gpu.index}: {one.clears}"


def _gpu_considered(offer: GpuOffer) -> Considered:
    gpu = offer.gpu
    reasons = [str(one) for one in gpu.evidence]
    reasons += [f"claimed by {claim.instance}: {gib(claim.mib)} GiB" for claim in offer.claims]
    if gpu.foreign_mib:
        reasons.append(f"{gib(gpu.foreign_mib)} GiB foreign")
    return Considered(
        f"{offer.label} ({gpu.model or 'GPU'}, {gpu.uuid})", not offer.claims and not gpu.excluded, tuple(reasons)
    )


def _gpu_explained(node: str, offer: GpuOffer) -> Explanation:
    gpu = offer.gpu
    verdict = "excluded: nothing new lands here" if gpu.excluded else "usable" if not gpu.sliced else "cut into slices"
    memory = f"{gib(gpu.total_mib)} GiB, claimed {gib(offer.claimed_mib)}, ours {gib(gpu.ours_mib)} measured"
    facts = [
        Fact(f"memory: {memory}, foreign {gib(gpu.foreign_mib)}, free {gib(max(0, offer.free_mib))}"),
        Fact("the driver never answered" if gpu.read_age_s is None else "the driver answered", gpu.read_age_s),
    ]
    facts += [Fact(str(one)) for one in gpu.evidence]
    facts += [Fact(f"claimed by {claim.instance}: {gib(claim.mib)} GiB") for claim in offer.claims]
    facts += [
        Fact(f"process {one.pid} ({one.name or 'unknown'}): {gib(one.mib)} GiB, {one.instance or 'foreign'}")
        for one in gpu.processes
    ]
    changes = tuple(one.clears for one in gpu.excluded)
    clear = f"llmgw ctl gpus clear {node} {gpu.index}"
    mine = [f"{clear} '{one.cause}' -m WHY" for one in gpu.excluded if OPERATOR in one.clears]
    next_command = mine[0] if mine else f"llmgw ctl nodes show {node}"
    return Explanation(f"{node} {offer.label} ({gpu.uuid})", verdict, tuple(facts), (), changes, next_command)
