"""A small cluster that goes through states and tells of them, as the management API would: snapshots and events."""

from copy import deepcopy
from typing import Any

from attrs import define, field
from hypothesis import strategies as st

NODES, REPLICAS = ("node-1", "node-2"), ("m-1", "m-2", "m-3")
STATES = {
    "replica.started": {"state": "starting"},
    "replica.ready": {"state": "ready", "serving": True, "in_pool": True},
    "replica.out": {"serving": False, "in_pool": False},
    "replica.failed": {"state": "failed", "serving": False, "in_pool": False},
    "replica.waiting": {"state": "waiting"},
    "replica.leaving": {"state": "leaving"},
    "replica.stopping": {"state": "stopping", "serving": False, "in_pool": False},
}
TARGETS = ("schedulable", "cordoned", "drained")


@define
class World:
    """Every change is an event with the next number; ``snapshot`` is how it stands now."""

    term: str = "0.1"
    seq: int = 10
    nodes: dict[str, dict[str, Any]] = field(factory=dict)
    replicas: dict[str, dict[str, Any]] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        for name in NODES:
            self.nodes[name] = {"name": name, "state": "ready", "target": {"target": "schedulable"}}
        for name in REPLICAS:
            told = {"name": name, "state": "waiting", "why": "", "serving": False, "in_pool": False}
            self.replicas[name] = told

    def happens(self, kind: str, subject: str, target: str = "") -> dict[str, Any]:
        self.seq += 1
        data: dict[str, Any] = {"target": target} if target else {}
        if kind in STATES and subject in self.replicas:
            told = dict(STATES[kind])
            if "state" in told:
                data["why"] = told["why"] = f"because of {self.seq}"
            self.replicas[subject] |= told
        elif kind == "replica.gone":
            self.replicas.pop(subject, None)
        elif kind == "node.silent" and subject in self.nodes:
            self.nodes[subject]["state"] = "unreachable"
        elif kind == "node.target" and subject in self.nodes:
            self.nodes[subject]["target"] = {"target": target}
        elif kind == "node.removed":
            self.nodes.pop(subject, None)
        return {"seq": self.seq, "at": float(self.seq), "kind": kind, "subject": subject, "sentence": "", "data": data}

    def snapshot(self) -> dict[str, Any]:
        return deepcopy({
            "seq": self.seq, "at": float(self.seq), "you": {"name": "ann", "role": "operator"}, "hold": "",
            "status": {"term": self.term}, "leader": {"leader": None}, "models": [], "drains": [],
            "nodes": list(self.nodes.values()), "replicas": list(self.replicas.values()),
        })  # fmt: skip


happenings = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([*STATES, "replica.gone"]), st.sampled_from(REPLICAS), st.just("")),
        st.tuples(st.just("node.target"), st.sampled_from(NODES), st.sampled_from(TARGETS)),
        st.tuples(st.sampled_from(["node.silent", "node.removed"]), st.sampled_from(NODES), st.just("")),
        st.tuples(st.just("config.applied"), st.just("7"), st.just("")),
    ),
    max_size=12,
)


def told(story: list[tuple[str, str, str]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """All events of it, and a snapshot before, between and after."""
    world = World()
    events, snapshots = [], [world.snapshot()]
    for happening in story:
        events.append(world.happens(*happening))
        snapshots.append(world.snapshot())
    return events, snapshots
