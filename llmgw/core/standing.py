"""How a replica stands: from its row, what its nodes report, and what this leader proved of it."""

from collections.abc import Iterator, Mapping

from llmgw.core.gpu_rules import SILENT
from llmgw.core.node_life import NodeNow, NodeState
from llmgw.core.placement import ShardPlace
from llmgw.core.replicas import Phase, Proof, Replica, ReplicaLimits, ReplicaNow, ShardNow, Standing
from llmgw.core.shards import ShardSeen, ShardState

_ENDING = frozenset({ShardState.RELEASING, ShardState.FAILED, ShardState.LOST, ShardState.STOPPED, ShardState.STOPPING})


def stand(
    replica: Replica,
    nodes: Mapping[str, NodeNow],
    proof: Proof,
    limits: ReplicaLimits,
    now: float,
    wall: float,
    progress_s: float = 0.0,
    start_within: float | None = None,
    in_flight: int = 0,
    idle: bool = True,
    moves_off_sick: bool = False,
    held: int | None = None,
) -> ReplicaNow:
    """``now``: the monotonic clock; ``wall``: the rows' clock; ``progress_s``: since it last got on while starting."""
    shards = tuple(_shard(replica, place, nodes) for place in replica.shards)
    healthy_s = now - proof.proved_at if proof.proved_at is not None else 0.0
    standing, why = _standing(replica, shards, nodes, proof, limits, progress_s, start_within or limits.start_within)
    age_s = max(0.0, wall - replica.since)
    out, kind = _out(replica, nodes, moves_off_sick)
    overdue = next((node.overdue for node in _nodes(replica, nodes) if node.overdue), "")
    return ReplicaNow(replica, standing, why, shards, in_flight, idle, held, healthy_s, age_s, out, kind, overdue)


def _nodes(replica: Replica, nodes: Mapping[str, NodeNow]) -> Iterator[NodeNow]:
    return (nodes[place.node] for place in replica.shards if place.node in nodes)


def _out(replica: Replica, nodes: Mapping[str, NodeNow], moves_off_sick: bool) -> tuple[str, str]:
    """Why it shall go elsewhere: a node that is drained, a GPU that is excluded."""
    for node in _nodes(replica, nodes):
        if node.draining:
            return node.draining, "drain"
    if moves_off_sick:
        for place in replica.shards:
            host = nodes.get(place.node)
            for gpu in host.gpus if host is not None else ():
                # A driver that does not answer says nothing of what runs.
                sick = [one for one in gpu.excluded if one.cause != SILENT]
                if gpu.uuid in place.gpus and sick:
                    return f"GPU {gpu.index} of {place.node} is excluded: {sick[0].cause}, {sick[0].says}", "gpu"
    return "", ""


def _shard(replica: Replica, place: ShardPlace, nodes: Mapping[str, NodeNow]) -> ShardNow:
    id, node = replica.instance(place.rank), nodes.get(place.node)
    if node is None or node.given_up:
        why = f"{place.node} was {'given up' if node else 'removed'}"
        return ShardNow(id, place.node, place.rank, ShardState.LOST, why=why)
    seen = node.shards.get(id)
    if node.state is not NodeState.READY:
        why = f"{node.name} is {node.state}, silent for {node.silence_s:.0f} s"
        known = node.state is not NodeState.UNKNOWN
        return ShardNow(id, place.node, place.rank, ShardState.UNKNOWN, node.silence_s, why, known, seen)
    if seen is not None:
        return ShardNow(id, place.node, place.rank, seen.state, seen.age_s, _why(seen), True, seen)
    return ShardNow(id, place.node, place.rank, *_absent(replica, place, node))


def _absent(replica: Replica, place: ShardPlace, node: NodeNow) -> tuple[ShardState, float, str]:
    """What a report without it means depends on which wanted set the report obeys."""
    wanted = replica.phase in (Phase.WANTED, Phase.LEAVING)
    if wanted:
        what = "waits for rank 0's address" if place.rank and node.obedient else f"{node.name} has not taken it in yet"
        return ShardState.STARTING, node.behind_s, what
    if node.obedient:
        return ShardState.STOPPED, 0.0, ""
    return ShardState.STOPPING, node.behind_s, f"{node.name} has not taken it in yet"


def _why(seen: ShardSeen) -> str:
    if seen.state is ShardState.RELEASING:
        held = sum(seen.gpu_mib.values())
        pids = f"processes {', '.join(map(str, seen.pids[:5]))}" if seen.pids else ""
        memory = f"{held} MiB of GPU memory" if held else ""
        ended = str(seen.exit or "")  # which the agent may say once more
        why = seen.why.removeprefix(ended).removeprefix("; ") if ended else seen.why
        return "; ".join(filter(None, (ended, pids, memory, why)))
    if seen.exit is not None and str(seen.exit) not in seen.why:
        return f"{seen.exit}: {seen.why}" if seen.why else str(seen.exit)
    return seen.why


def _standing(
    replica: Replica,
    shards: tuple[ShardNow, ...],
    nodes: Mapping[str, NodeNow],
    proof: Proof,
    limits: ReplicaLimits,
    progress_s: float,
    start_within: float,
) -> tuple[Standing, str]:
    match replica.phase:
        case Phase.WAITING:
            return Standing.WAITING, replica.why
        case Phase.STOPPING | Phase.RESTARTING:
            return _stopping(replica, shards, nodes)
    if dead := [shard for shard in shards if shard.state in _ENDING]:
        return Standing.BROKEN, _how_it_ended(dead[0], len(shards))
    if gone := [why for shard in shards if (why := _gone(shard, nodes))]:
        return Standing.GONE, gone[0]
    if replica.phase is Phase.LEAVING:
        return Standing.LEAVING, replica.why
    if unknown := [shard for shard in shards if shard.state is ShardState.UNKNOWN]:
        return Standing.UNKNOWN, unknown[0].why
    return _running(shards, proof, limits, progress_s, start_within)


def _running(
    shards: tuple[ShardNow, ...], proof: Proof, limits: ReplicaLimits, progress_s: float, start_within: float
) -> tuple[Standing, str]:
    if proof.proved_at is not None:
        if proof.failures >= limits.restart_failures:
            return Standing.BROKEN, f"unwell: {proof.why}"
        if proof.failures >= limits.canary_failures:
            return Standing.LOADING, f"out of the pool: {proof.why}"
        return Standing.SERVING, ""
    starting = [shard for shard in shards if shard.state is ShardState.STARTING]
    slow = starting[0].why if starting else proof.why
    if progress_s > start_within:
        return Standing.BROKEN, f"no progress for {progress_s:.0f} s while it started" + (f": {slow}" if slow else "")
    return (Standing.STARTING if starting else Standing.LOADING), slow


def _stopping(replica: Replica, shards: tuple[ShardNow, ...], nodes: Mapping[str, NodeNow]) -> tuple[Standing, str]:
    left = [shard for shard in shards if not shard.ended]
    if not left:
        return Standing.ENDED, ""
    if replica.phase is Phase.RESTARTING and (gone := [why for shard in left if (why := _gone(shard, nodes))]):
        return Standing.GONE, gone[0]
    return Standing.STOPPING, _told(left[0], len(shards))


def _gone(shard: ShardNow, nodes: Mapping[str, NodeNow]) -> str:
    node = nodes.get(shard.node)
    if node is None:
        return f"{shard.node} was removed"
    if node.gone:
        return node.gone
    deaf = node.state is NodeState.READY and node.behind_s > node.times.obey_within
    if deaf and shard.seen is None:
        return f"{node.name} did not take it in for {node.behind_s:.0f} s: withdrawn"
    return ""


def _how_it_ended(shard: ShardNow, of: int) -> str:
    """What is left of it is no part of why it failed."""
    if shard.seen is None or shard.seen.exit is None:
        return _told(shard, of)
    rank = f"rank {shard.rank} " if of > 1 else ""
    return f"{rank}on {shard.node} {shard.seen.exit}"


def _told(shard: ShardNow, of: int) -> str:
    rank = f"rank {shard.rank} " if of > 1 else ""
    return f"{rank}on {shard.node} {shard.state}" + (f": {shard.why}" if shard.why else "")
