"""What draining a node would do, from the very functions that the drain uses; and how far one has got.

Pure: a dry run asks where each successor would be placed, one after another, as the drain will.
"""

from collections.abc import Iterator, Mapping

import attrs
from attrs import frozen

from llmgw.core.actions import Create
from llmgw.core.applied import created
from llmgw.core.claims import Board, apart_of, board_of
from llmgw.core.drain import Target
from llmgw.core.engine_spec import Want
from llmgw.core.node_life import NodeNow, NodeState
from llmgw.core.placement import Placed, place
from llmgw.core.placement_explained import reasons_in_short, scores_in_short
from llmgw.core.placing import NO_FIT
from llmgw.core.reconcile import Seen
from llmgw.core.replicas import Phase, ReplicaLimits, ReplicaNow, Standing
from llmgw.core.shards import ENDED
from llmgw.core.worth import demand_for

START_UNKNOWN_S = 120.0  # a replica whose model never started under this leader


@frozen
class Requests:
    """Of one replica, at this gateway: how many, and the age of the oldest in seconds."""

    number: int = 0
    oldest_s: float = 0.0

    def __str__(self) -> str:
        what = "request" if self.number == 1 else "requests"
        return f"{self.number} {what}, oldest {self.oldest_s:.0f} s" if self.number else "no request"


NO_REQUESTS = Requests()


@frozen
class Move:
    """One replica that has shards on the node. ``to``: where its successor goes; empty: nowhere, for ``why``."""

    replica: str
    model: str
    to: tuple[str, ...]
    why: str
    requests: Requests = NO_REQUESTS
    takes_s: float = 0.0
    blocked: bool = False


@frozen
class DrainPlan:
    node: str
    moves: tuple[Move, ...]
    estimate_s: float  # models side by side, a model's replicas one after another; without what requests take

    @property
    def planned(self) -> dict[str, tuple[str, ...]]:
        return {move.replica: move.to for move in self.moves if move.to}


def drain_plan(
    seen: Seen,
    node: str,
    limits: ReplicaLimits,
    starts: Mapping[str, float],
    requests: Mapping[str, Requests],
) -> DrainPlan:
    """``starts``: seconds that a model's replicas took to come up; ``requests``: by replica."""
    nodes = dict(seen.nodes)
    nodes[node] = attrs.evolve(nodes[node], target=str(Target.DRAINED))
    planner = _Planner(attrs.evolve(seen, nodes=nodes), limits, starts, requests)
    here = [now for now in seen.replicas.values() if any(shard.node == node for shard in now.shards)]
    moves = tuple(planner.move(now) for now in sorted(here, key=lambda one: one.name))
    by_model: dict[str, float] = {}
    for move in moves:
        by_model[move.model] = by_model.get(move.model, 0.0) + move.takes_s
    return DrainPlan(node, moves, max(by_model.values(), default=0.0))


class _Planner:
    def __init__(
        self, seen: Seen, limits: ReplicaLimits, starts: Mapping[str, float], requests: Mapping[str, Requests]
    ) -> None:
        self.seen, self.limits, self.starts, self.requests = seen, limits, starts, requests
        self.gone: set[str] = set()
        self.came: list[tuple[Want, Placed]] = []

    def move(self, now: ReplicaNow) -> Move:
        name, model = now.name, now.replica.model
        want, requests = self.seen.wants.get(model), self.requests.get(name, NO_REQUESTS)
        if now.replica.phase in (Phase.LEAVING, Phase.STOPPING) or want is None:
            return Move(name, model, (), f"it is on its way out: {now.replica.why}", requests)
        successor = created(Create(model, want.spec, "", name), 0, self.seen.wall)
        leaving = frozenset(shard.node for shard in now.shards)
        demand = demand_for(successor if now.serving else now.replica, want, leaving)
        demand = attrs.evolve(demand, home=frozenset())
        if not now.serving:  # it serves nobody: it goes at once, and its place with it
            self.gone.add(name)
        result = place(demand, self._board().offers())
        if not isinstance(result, Placed):
            return Move(name, model, (), f"no node fits: {reasons_in_short(result)}", requests, blocked=True)
        self.gone.add(name)
        self.came.append((want, result))
        takes = self.starts.get(model, START_UNKNOWN_S) + self.limits.healthy_min
        return Move(name, model, result.nodes, scores_in_short(result), requests, takes)

    def _board(self) -> Board:
        board = board_of(self.seen.nodes, self.seen.replicas.values(), frozenset(self.gone), apart_of(self.seen.wants))
        for want, placed in self.came:
            row = created(Create(want.model, want.spec, ""), 0, 0.0)
            for shard in placed.shards:
                board.claim(row, shard, "planned")
        return board


# -- how far one has got ----------------------------------------------------------------------------


def left_on(seen: Seen, node: NodeNow) -> list[ReplicaNow]:
    """Replicas that still have something there."""
    return [
        now
        for _, now in sorted(seen.replicas.items())
        if any(shard.node == node.name and not shard.ended for shard in now.shards)
    ]


def processes_on(node: NodeNow) -> list[str]:
    """Shards that its last report shows with something left of them."""
    return sorted(seen.id for seen in node.shards.values() if seen.state not in ENDED)


def is_empty(seen: Seen, node: NodeNow) -> bool:
    """No process of ours is left: its rows are gone, and a report that obeys says the same."""
    return node.state is NodeState.READY and node.obedient and not left_on(seen, node) and not processes_on(node)


def waits_on(seen: Seen, node: NodeNow, requests: Mapping[str, Requests]) -> Iterator[str]:
    """What a drain waits for, a sentence a replica."""
    if node.state is not NodeState.READY:
        yield f"{node.name} is {node.state}, silent for {node.silence_s:.0f} s: what runs there is not known"
    for now in left_on(seen, node):
        yield f"{now.name} {_waits(seen, now, requests.get(now.name, NO_REQUESTS))}"
    known = {shard.id for now in seen.replicas.values() for shard in now.shards}
    for id in processes_on(node):
        if id not in known:
            yield f"{id}, which belongs to no replica any more, ends"


def waits_for(seen: Seen, now: ReplicaNow) -> str:
    """The kind of what a drain waits on there: requests, a stop, its turn, a place, a start."""
    match now.replica.phase:
        case Phase.LEAVING:
            return "requests"
        case Phase.STOPPING | Phase.RESTARTING:
            return "stop"
    successor = next((one for one in seen.replicas.values() if one.replica.replaces == now.name), None)
    if successor is None:
        return "turn"
    return "place" if successor.replica.phase is Phase.WAITING else "start"


def _waits(seen: Seen, now: ReplicaNow, requests: Requests) -> str:
    match now.replica.phase:
        case Phase.LEAVING:
            return f"finishes {requests}" if requests.number else "has no request left and ends"
        case Phase.STOPPING | Phase.RESTARTING:
            return f"ends: {now.why}" if now.why else "ends"
    successor = next((one for one in seen.replicas.values() if one.replica.replaces == now.name), None)
    if successor is None:
        return "waits for its turn"
    if successor.replica.phase is Phase.WAITING:
        looked = successor.replica.why.startswith(NO_FIT)
        return f"is blocked: {successor.replica.why}" if looked else f"waits for a place for {successor.name}"
    if successor.serving:
        return f"leaves soon: {successor.name} serves since {successor.healthy_s:.0f} s"
    why = f": {successor.why}" if successor.why else ""
    return f"waits for {successor.name}, which is {successor.standing}{why}"


def is_blocked(seen: Seen, node: NodeNow) -> bool:
    """Everything that is left there waits for a place that is nowhere."""
    left = left_on(seen, node)
    successors = {now.replica.replaces: now for now in seen.replicas.values() if now.replica.replaces}
    return bool(left) and all(
        now.serving
        and (one := successors.get(now.name)) is not None
        and one.standing is Standing.WAITING
        and one.replica.why.startswith(NO_FIT)
        for now in left
    )


def state_of_drain(seen: Seen, node: NodeNow) -> str:
    """draining, drained or blocked."""
    drain = node.drain
    if drain is not None and drain.ended is not None:
        return str(drain.ended)
    return "blocked" if is_blocked(seen, node) else "draining"
