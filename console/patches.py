"""What an event says of a node or a replica, until the next snapshot has it."""

from collections.abc import Iterable, Mapping
from typing import Any

Json = Mapping[str, Any]
Rows = Mapping[str, Json]

REPLICA_STATES = {
    "replica.started": "starting",
    "replica.ready": "ready",
    "replica.failed": "failed",
    "replica.waiting": "waiting",
    "replica.blocked": "waiting",
    "replica.leaving": "leaving",
    "replica.stopping": "stopping",
}
SERVES = {"replica.ready": True, "replica.out": False, "replica.failed": False, "replica.stopping": False}
NODE_STATES = {"node.silent": "unreachable", "node.lost": "lost"}


def patched(nodes: Rows, replicas: Rows, events: Iterable[Json]) -> tuple[Rows, Rows]:
    """``events`` in the order of their numbers. A subject that no snapshot has named stays unknown until one does."""
    changed_nodes, changed_replicas = dict(nodes), dict(replicas)
    for event in events:
        kind, subject = str(event["kind"]), str(event["subject"])
        if kind == "replica.gone":
            changed_replicas.pop(subject, None)
        elif kind == "node.removed":
            changed_nodes.pop(subject, None)
        elif subject in changed_replicas and kind.startswith("replica."):
            changed_replicas[subject] = _replica(changed_replicas[subject], event)
        elif subject in changed_nodes and kind.startswith("node."):
            changed_nodes[subject] = _node(changed_nodes[subject], event)
    return changed_nodes, changed_replicas


def _replica(row: Json, event: Json) -> Json:
    kind, told = str(event["kind"]), dict[str, Any]()
    if kind in REPLICA_STATES:
        told |= {"state": REPLICA_STATES[kind], "why": str(event.get("data", {}).get("why", ""))}
    if kind in SERVES:
        told |= {"serving": SERVES[kind], "in_pool": SERVES[kind]}
    return {**row, **told} if told else row


def _node(row: Json, event: Json) -> Json:
    kind, target = str(event["kind"]), event.get("data", {}).get("target")
    if kind in NODE_STATES:
        return {**row, "state": NODE_STATES[kind]}
    if kind == "node.target" and target:
        return {**row, "target": {**row.get("target", {}), "target": target}}
    return row
