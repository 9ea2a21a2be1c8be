"""What became of nodes and GPUs since the pass before: each change is an event, once."""

from collections.abc import Collection, Mapping
from typing import Any

from attrs import define, field

from llmgw.control.events import Events
from llmgw.core.node_life import NodeNow, NodeState
from llmgw.core.reconcile import Seen
from llmgw.core.shards import ShardState

_RUNS = frozenset({ShardState.STARTING, ShardState.LOADING})


@define(eq=False)
class Watching:
    events: Events
    _states: dict[str, NodeState] = field(factory=dict, init=False)
    _lost: dict[str, float] = field(factory=dict, init=False)  # nodes given up, and when that was seen first
    _evidence: dict[tuple[str, str, str], str] = field(factory=dict, init=False)  # node, GPU, cause -> sentence

    def look(self, seen: Seen) -> tuple[str, ...]:
        """The nodes that report again after an operator gave them up."""
        known = {id for now in seen.replicas.values() for id in now.replica.instances}
        for name, node in seen.nodes.items():
            self._state(name, node, known)
        for name in [name for name in self._states if name not in seen.nodes]:
            del self._states[name]
            self._lost.pop(name, None)
        self._gpus(seen.nodes)
        return tuple(name for name, node in seen.nodes.items() if self._is_back(node, seen.wall))

    def _is_back(self, node: NodeNow, wall: float) -> bool:
        """It was given up, and has reported since."""
        if not node.given_up:
            self._lost.pop(node.name, None)
            return False
        since = self._lost.setdefault(node.name, wall)
        return node.heard_s is not None and wall - node.heard_s > since

    def _state(self, name: str, node: NodeNow, instances: Collection[str]) -> None:
        before, state = self._states.get(name), node.state
        self._states[name] = state
        if before in (None, state) and not (before is None and state is NodeState.READY):
            return
        if state is NodeState.READY:
            self._unknown(name, node, instances)
            known = before is NodeState.UNREACHABLE
            has = f"{_counted(len(node.gpus), 'GPU')}, {_counted(len(node.shards), 'shard')}"
            what = f"{name} reports again" if known else f"{name} reports: {has}"
            self.events.tell("node.back" if known else "node.linked", name, what, shards=sorted(node.shards))
        elif state is NodeState.UNREACHABLE:
            grace = node.times.node_grace
            what = f"{name} is silent; what runs there serves on, and is replaced after {grace:g} s"
            self.events.tell("node.silent", name, what, silent_s=round(node.silence_s, 1))

    def _unknown(self, name: str, node: NodeNow, instances: Collection[str]) -> None:
        """Rows are written before anything is started: these were lost with the part of the store that knew them."""
        lost = sorted(id for id, shard in node.shards.items() if shard.state in _RUNS and id not in instances)
        if lost:
            what = f"{name} runs what this store does not know, and is told to end it: {', '.join(lost)}"
            self.events.tell("leader.store_back", name, what, shards=lost)

    def _gpus(self, nodes: Mapping[str, NodeNow]) -> None:
        now: dict[tuple[str, str, str], str] = {}
        indices: dict[str, int] = {}
        heard = {name for name, node in nodes.items() if node.state is NodeState.READY}
        for name in heard:
            for gpu in nodes[name].gpus:
                indices[gpu.uuid] = gpu.index
                for one in gpu.evidence:
                    now[name, gpu.uuid, one.cause] = f"{one.severity}: {one}"
        for key, sentence in now.items():
            if key not in self._evidence:
                name, uuid, cause = key
                what = f"{name} GPU {indices[uuid]}: {sentence}"
                self.events.tell("gpu.evidence", f"{name}/{uuid}", what, cause=cause)
        for key in self._evidence:
            if key not in now and key[0] in heard:
                name, uuid, cause = key
                self.events.tell("gpu.cleared", f"{name}/{uuid}", f"{name} {uuid}: {cause} is cleared", cause=cause)
        kept = {key: said for key, said in self._evidence.items() if key[0] in nodes and key[0] not in heard}
        self._evidence = {**kept, **now}


def _counted(number: int, what: str) -> Any:
    return f"{number} {what}{'' if number == 1 else 's'}"
