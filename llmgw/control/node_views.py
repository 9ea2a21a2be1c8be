"""What operators are shown of nodes, GPUs, replicas and models."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import trio

from llmgw.control.cluster import Cluster, state_in
from llmgw.core.claims import Board, board_of
from llmgw.core.engine_life import Event, after
from llmgw.core.gpus import Gpu
from llmgw.core.joining import NodeRecord
from llmgw.core.node_life import NodeNow
from llmgw.core.offers import STALE_S, GpuOffer, NodeOffer
from llmgw.core.placement_explained import why_nothing_lands
from llmgw.core.reconcile import Seen
from llmgw.core.replicas import NO_PROOF, Phase, Replica, ReplicaLimits, ReplicaNow, Standing
from llmgw.core.shards import ShardState
from llmgw.nodes.registry import LiveNode

CRASHING = "crash loop"
LINE_MAX = 200


def nodes_json(cluster: Cluster, seen: Seen | None = None) -> Iterator[dict[str, Any]]:
    """One by one, so that others may run between them: a node that is removed meanwhile is not told."""
    seen = seen or cluster.observe()
    board, there = board_of(seen.nodes, seen.replicas.values()), _by_node(seen)
    for name in sorted(seen.nodes):
        if name in cluster.joining.nodes:
            yield _node(cluster, seen, board, name, there.get(name, ()))


def node_json(cluster: Cluster, name: str) -> dict[str, Any] | None:
    seen = cluster.observe()
    if name not in seen.nodes:
        return None
    board = board_of(seen.nodes, seen.replicas.values())
    return _node(cluster, seen, board, name, _by_node(seen).get(name, ()))


def _by_node(seen: Seen) -> Mapping[str, Sequence[str]]:
    """Replicas that have a shard there, each once."""
    found: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for name, now in seen.replicas.items():
        for shard in now.shards:
            found[shard.node][name] = None
    return {node: sorted(names) for node, names in found.items()}


def _node(cluster: Cluster, seen: Seen, board: Board, name: str, replicas: Sequence[str]) -> dict[str, Any]:
    node, record, live = seen.nodes[name], cluster.joining.nodes[name], cluster.registry.nodes.get(name)
    offer = board.offer(name)
    gpus = [gpu_json(one) for one in offer.gpus]
    return {
        "name": name,
        "state": state_in(seen, node),
        "target": _target(record),
        "healthy": not node.trouble and not node.driver and all(gpu["usable"] or gpu["sliced"] for gpu in gpus),
        "trouble": node.trouble,
        "nothing_lands_because": why_nothing_lands(offer),
        "heard_age_s": _round(node.heard_s),
        "address": node.address,
        "labels": dict(node.labels),
        "gpus": gpus,
        "memory": _memory(node, offer),
        "gpu_memory": _sums(gpus),
        "driver": node.driver,
        "replicas": list(replicas),
        "shards": sorted(node.shards),
        "orphans": [{"id": one.id, "pids": list(one.pids), "why": one.why} for one in node.orphans],
        "obeys": {"rev": node.obeys, "sent": node.rev, "behind_s": _round(node.behind_s)},
        "agent": _agent(record, live),
    }


def _target(record: NodeRecord) -> dict[str, Any]:
    return {
        "target": record.target,
        "by": record.target_by,
        "at": record.target_at,
        "why": record.target_why,
    }


def _agent(record: NodeRecord, live: LiveNode | None) -> dict[str, Any]:
    hello = live.hello if live is not None else None
    return {
        "version": hello.version if hello else record.version,
        "boot": hello.boot if hello else record.boot,
        "linked": live is not None and live.linked,
        "link_age_s": _round(live.link_age_s) if live is not None else None,
        "last_end": live.last_end if live is not None else "",
        "peer": live.peer if live is not None else "",
        "joined_at": record.joined_at,
        "seen_at": record.seen_at,
    }


def _memory(node: NodeNow, offer: NodeOffer) -> dict[str, Any]:
    return {
        "total_mib": node.memory_mib,
        "reserved_mib": node.memory_reserved_mib,
        "free_mib": offer.memory_free_mib,
    }


def gpu_json(offer: GpuOffer) -> dict[str, Any]:
    gpu = offer.gpu
    return {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "model": gpu.model,
        "usable": not gpu.excluded and not gpu.sliced and gpu.read_age_s is not None and gpu.read_age_s <= STALE_S,
        "total_mib": gpu.total_mib,
        "claimed_mib": offer.claimed_mib,
        "ours_mib": gpu.ours_mib,
        "foreign_mib": gpu.foreign_mib,
        "free_mib": max(0, offer.free_mib),
        "claims": [{"instance": c.instance, "mib": c.mib, "exclusive": c.exclusive} for c in offer.claims],
        "processes": [{"pid": p.pid, "mib": p.mib, "name": p.name, "instance": p.instance} for p in gpu.processes],
        "temperature_c": gpu.temperature_c,
        "power_w": gpu.power_w,
        "utilisation": gpu.utilisation,
        "read_age_s": _round(gpu.read_age_s),
        "slice_of": gpu.slice_of,
        "sliced": gpu.sliced,
        "evidence": evidence_json(gpu),
    }


def evidence_json(gpu: Gpu) -> list[dict[str, Any]]:
    return [
        {
            "cause": one.cause,
            "severity": str(one.severity),
            "says": one.says,
            "first_at": one.first_at,
            "last_at": one.last_at,
            "count": one.count,
            "clears": one.clears,
        }
        for one in gpu.evidence
    ]


def _sums(gpus: list[dict[str, Any]]) -> dict[str, int]:
    return {key: sum(gpu[key] for gpu in gpus) for key in ("total_mib", "claimed_mib", "ours_mib", "foreign_mib")}


# -- replicas ---------------------------------------------------------------------------------------


def replicas_json(cluster: Cluster, model: str = "", seen: Seen | None = None) -> Iterator[dict[str, Any]]:
    """``model``: its replicas, or the one of that name; empty: all. One by one, so that others may run between them."""
    seen = seen or cluster.observe()
    for _, now in sorted(seen.replicas.items()):
        if model in ("", now.replica.model, now.name):
            yield replica_json(cluster, seen, now)


def replica_json(cluster: Cluster, seen: Seen, now: ReplicaNow) -> dict[str, Any]:
    row, proof = now.replica, cluster.proofs.get(now.replica.endpoint_id, NO_PROOF)
    want = seen.wants.get(row.model)
    tried = proof.tried_at
    return {
        "name": row.name,
        "model": row.model,
        "state": state_shown(now, cluster.limits()),
        "why": why_shown(now, proof.why),
        "phase": str(row.phase),
        "age_s": _round(now.age_s),
        "serving": now.serving,
        "in_pool": _is_routed(cluster, row.endpoint_id),
        "healthy_s": _round(now.healthy_s) if now.serving else None,
        "generation": row.generation,
        "revision": row.revision,
        "up_to_date": want is not None and want.spec.revision == row.revision,
        "in_flight": now.in_flight,
        "replaces": row.replaces,
        "leaves_because": row.leave_why,
        "crashes": row.crashes,
        "retry_at": row.retry_at if row.phase is Phase.WAITING and row.crashes else None,
        "last_end": row.last_end,
        "canary": {
            "failures": proof.failures,
            "why": proof.why,
            "age_s": None if tried is None else _round(trio.current_time() - tried),
        },
        "shards": [_shard(now, index) for index in range(len(now.shards))],
    }


def _is_routed(cluster: Cluster, id: str) -> bool:
    """Also one whose node is silent, as long as its engine answers and no other serves in its place."""
    live = cluster.endpoint(id)
    return live is not None and not live.leaving


def _shard(now: ReplicaNow, index: int) -> dict[str, Any]:
    shard, place = now.shards[index], now.replica.shards[index]
    seen = shard.seen
    return {
        "id": shard.id,
        "rank": shard.rank,
        "node": shard.node,
        "state": str(shard_state(now, shard.state)),
        "why": shard.why,
        "age_s": _round(shard.age_s),
        "gpus": list(place.gpus),
        "claim_mib": place.claim_mib,
        "gpu_mib": sum(seen.gpu_mib.values()) if seen else None,
        "memory_mib": seen.memory_mib if seen else None,
        "pid": seen.pid if seen else None,
        "host": seen.host if seen else "",
        "ports": dict(seen.ports) if seen else {},
        "adopted": seen.adopted if seen else False,
        "started_at": seen.started_at if seen else None,
        "log_age_s": _round(seen.log_age_s) if seen else None,
    }


def shard_state(now: ReplicaNow, state: ShardState) -> ShardState:
    """What an agent can't know: proved, or on its way out."""
    leaving = now.replica.phase is Phase.LEAVING
    # Where another shard's node is silent, this one is what it was.
    proved = now.serving or (now.healthy_s > 0 and now.standing in (Standing.UNKNOWN, Standing.GONE))
    if state is ShardState.LOADING and (proved or leaving):
        ready = after(state, Event.PROVED)
        return after(ready, Event.LEAVE) if leaving else ready
    return state


def state_shown(now: ReplicaNow, limits: ReplicaLimits) -> str:
    if now.standing is Standing.WAITING and now.replica.crashes >= limits.crash_loop:
        return CRASHING
    return {Standing.SERVING: "ready", Standing.BROKEN: "failed"}.get(now.standing, str(now.standing))


def why_shown(now: ReplicaNow, proof_why: str) -> str:
    if now.standing is Standing.SERVING:
        return now.replica.leave_why or now.out
    return now.why or proof_why or now.replica.why


def models_json(cluster: Cluster, shown: list[dict[str, Any]], seen: Seen | None = None) -> list[dict[str, Any]]:
    """Beside what the gateway shows of each model: what agents shall run of it, and do."""
    seen, limits = seen or cluster.observe(), cluster.limits()
    by_model: defaultdict[str, list[ReplicaNow]] = defaultdict(list)
    for now in seen.replicas.values():
        by_model[now.replica.model].append(now)
    for one in shown:
        want, its = seen.wants.get(one["name"]), by_model.get(one["name"], [])
        if want is None and not its:
            continue
        one["replicas"] = {
            "desired": want.replicas if want else 0,
            "min": want.least if want else 0,
            "max": want.most if want else 0,
            "scaled": want.scaled if want else None,
            "serving": sum(now.serving for now in its),
            "live": sum(now.live for now in its),
            "revision": want.spec.revision if want else "",
            "out_of_date": sum(want is not None and now.replica.revision != want.spec.revision for now in its),
            "states": _tally([state_shown(now, limits) for now in its]),
            "blocked": [now.replica.why for now in its if now.replica.phase is Phase.WAITING and now.replica.why],
        }
    return shown


def _tally(states: list[str]) -> Mapping[str, int]:
    return {state: states.count(state) for state in sorted(set(states))}


def find_shard(cluster: Cluster, replica: str, rank: int) -> tuple[str, str] | None:
    """Node and instance id of one shard."""
    row = cluster.rows.get(replica)
    if row is None:
        return None
    place = next((one for one in row.shards if one.rank == rank), None)
    if place is not None:
        return place.node, row.instance(rank)
    # It has no place now; what its last incarnation said is kept for a while.
    instance = row.instance(rank)
    node = next((one for one in cluster.registry.nodes.values() if instance in one.tails), None)
    return (node.name, instance) if node is not None else None


def last_line(cluster: Cluster, row: Replica) -> str:
    """What the last incarnation's rank 0, or the first rank that said anything, wrote last."""
    for instance in row.instances:
        for node in cluster.registry.nodes.values():
            tail = node.tails.get(instance)
            lines = [line.strip() for line in tail.text.splitlines() if line.strip()] if tail is not None else []
            if lines:
                return lines[-1][:LINE_MAX]
    return ""


def tail_of(cluster: Cluster, node: str, instance: str) -> tuple[str, float] | None:
    """The last lines as they came unasked, and their age."""
    live = cluster.registry.nodes.get(node)
    tail = live.tails.get(instance) if live is not None else None
    return (tail.text, trio.current_time() - tail.at) if tail is not None else None


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
