"""What draining a node would do, from the very functions that the drain uses; and how far one has got.

Pure: a dry run asks where each successor would be placed, one after another, as the drain will.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence

import attrs
from attrs import define, field, frozen

from llmgw.core.actions import Create
from llmgw.core.applied import created
from llmgw.core.claims import Board, apart_of, board_of
from llmgw.core.drain import Target
from llmgw.core.engine_spec import Want
from llmgw.core.node_life import NodeNow, NodeState
from llmgw.core.placement import Placed, place
from llmgw.core.placement_explained import reasons_in_short, scores_in_short
from llmgw.core.reconcile import Seen
from llmgw.core.replicas import Phase, ReplicaLimits, ReplicaNow, Standing
from llmgw.core.shards import ENDED
from llmgw.core.turns import TURN, coming, finds_no_place, is_bounded, others_start, surges, turn_of
from llmgw.core.worth import demand_for, is_active

START_UNKNOWN_S = 120.0  # a replica whose model never started under this leader
PASSES_S = 2.0  # until a successor is made and placed, and until its old one is seen to hold nothing, each


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
    estimate_s: float  # models side by side, as far as the bound allows, a model's replicas in turn; without requests

    @property
    def planned(self) -> dict[str, tuple[str, ...]]:
        return {move.replica: move.to for move in self.moves if move.to}


def drain_plan(
    seen: Seen,
    node: str,
    limits: ReplicaLimits,
    starts: Mapping[str, float],
    requests: Mapping[str, Requests],
    surges_max: int = 4,
) -> DrainPlan:
    """``starts``: seconds that a model's replicas took to come up; ``requests``: by replica."""
    nodes = dict(seen.nodes)
    nodes[node] = attrs.evolve(nodes[node], target=str(Target.DRAINED))
    planner = _Planner(node, attrs.evolve(seen, nodes=nodes), limits, starts, requests)
    here = [now for now in seen.replicas.values() if any(shard.node == node for shard in now.shards)]
    moves = tuple(planner.move(now) for now in sorted(here, key=lambda one: one.name))
    return DrainPlan(node, moves, _estimated(moves, planner, surges_max))


def _estimated(moves: Sequence[Move], planner: "_Planner", surges_max: int) -> float:
    """A model's replicas in turn; each holds one of ``surges_max`` seats while it starts. Others hold some now."""
    queues: dict[str, list[Move]] = {}
    for move in moves:
        if move.takes_s:
            queues.setdefault(move.model, []).append(move)
    seats = [0.0] * surges_max
    for model in planner.under_way():
        heapq.heapreplace(seats, seats[0] + planner.start_s(model))
    turns, end = [(0.0, model) for model in sorted(queues)], 0.0
    while turns:
        ready, model = heapq.heappop(turns)
        move = queues[model].pop(0)
        begin = max(ready, seats[0])
        heapq.heapreplace(seats, begin + PASSES_S + planner.start_s(model))
        end = max(end, begin + move.takes_s + 2 * PASSES_S)
        if queues[model]:
            heapq.heappush(turns, (begin + move.takes_s + PASSES_S, model))
    return end


@define(eq=False)
class _Planner:
    node: str
    seen: Seen
    limits: ReplicaLimits
    starts: Mapping[str, float]
    requests: Mapping[str, Requests]
    gone: set[str] = field(factory=set, init=False)
    came: list[tuple[Want, Placed]] = field(factory=list, init=False)

    def move(self, now: ReplicaNow) -> Move:
        name, model = now.name, now.replica.model
        want, requests = self.seen.wants.get(model), self.requests.get(name, NO_REQUESTS)
        if now.replica.phase in (Phase.LEAVING, Phase.STOPPING) or want is None:
            return Move(name, model, (), f"it is on its way out: {now.replica.why}", requests)
        if silence := _silence(self.seen.nodes[self.node]):
            why = f"{silence}; {name} {_until_heard(self.seen, now)}"
            return Move(name, model, (), why, requests, blocked=True)
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
        takes = self.start_s(model) + self.limits.healthy_min
        return Move(name, model, result.nodes, scores_in_short(result), requests, takes)

    def start_s(self, model: str) -> float:
        return self.starts.get(model, START_UNKNOWN_S)

    def under_way(self) -> list[str]:
        """Models whose replacements start now, for other drains and sick GPUs."""
        its = self.seen.replicas
        return [now.replica.model for now in its.values() if is_bounded(now, its) and now.shards and not now.serving]

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
    if silence := _silence(node):
        yield silence
    if seen.hold:
        yield f"the leader stops nothing: {seen.hold}"
    for now in left_on(seen, node):
        yield f"{now.name} {_waits(seen, now, requests.get(now.name, NO_REQUESTS))}"
    known = {shard.id for now in seen.replicas.values() for shard in now.shards}
    for id in processes_on(node):
        if id not in known:
            yield f"{id}, which belongs to no replica any more, ends"


def waits_for(seen: Seen, now: ReplicaNow) -> str:
    """The kind of what a drain waits on there: requests, a stop, a node, its turn, a place, a start."""
    match now.replica.phase:
        case Phase.LEAVING:
            return "requests"
        case Phase.STOPPING | Phase.RESTARTING:
            return "stop"
    successor = _successor(seen, now)
    if successor is None:
        return "node" if now.standing is Standing.UNKNOWN else "turn"
    if successor.replica.phase is not Phase.WAITING:
        return "start"
    return "turn" if successor.replica.why.startswith(TURN) else "place"


def _waits(seen: Seen, now: ReplicaNow, requests: Requests) -> str:
    match now.replica.phase:
        case Phase.LEAVING:
            return f"finishes {requests}" if requests.number else _ends(now)
        case Phase.STOPPING | Phase.RESTARTING:
            return f"ends: {now.why}" if now.why else "ends"
    successor = _successor(seen, now)
    if successor is None:
        silent = now.standing is Standing.UNKNOWN
        return _until_heard(seen, now) if silent else f"waits for its turn{_others(seen, now)}"
    if successor.replica.phase is Phase.WAITING:
        return _waits_for_place(successor)
    if (lacking := _stands_in_for(seen, now, successor)) is not None:
        placeless = finds_no_place(lacking)
        state = f"is blocked: {lacking.replica.why}" if placeless else f"is {lacking.standing}"
        return f"serves on: {successor.name} serves in its place, but {lacking.name} {state}"
    if successor.serving:
        return f"leaves soon: {successor.name} serves since {successor.healthy_s:.0f} s"
    why = f": {successor.why}" if successor.why else ""
    return f"waits for {successor.name}, which is {successor.standing}{why}"


def _ends(now: ReplicaNow) -> str:
    """Nothing of this gateway's is there; the other control plane may have sent some, or led when they came."""
    if now.idle or now.held == 0 or now.standing is Standing.GONE:
        return "has no request left and ends"
    if now.held is None:
        return "has no request of this control plane left; its engine has not said yet whether it is idle"
    what = "request" if now.held == 1 else "requests"
    return f"waits for its engine, which still has {now.held} {what}, none of them of this control plane"


def _stands_in_for(seen: Seen, now: ReplicaNow, successor: ReplicaNow) -> ReplicaNow | None:
    """It is replaced, and without it fewer than wanted would serve, as this one does not."""
    want = seen.wants.get(now.replica.model)
    its = [one for one in seen.replicas.values() if one.replica.model == now.replica.model and is_active(one)]
    if want is None or not successor.serving or sum(one.serving for one in its) > want.replicas:
        return None
    down = (one for one in its if not one.serving and not surges(one, seen.replicas))
    return min(down, key=lambda one: (not finds_no_place(one), one.name), default=None)


def _waits_for_place(successor: ReplicaNow) -> str:
    why = successor.replica.why
    if finds_no_place(successor):
        return f"is blocked: {why}"
    return f"waits for {why}" if why.startswith(TURN) else f"waits for a place for {successor.name}"


def _others(seen: Seen, now: ReplicaNow) -> str:
    """Who comes before it."""
    members = [one for one in seen.replicas.values() if one.replica.model == now.replica.model]
    for first in turn_of(members, seen.replicas):
        return f", after {first.replica.replaces}"
    number = coming(seen.replicas, seen.wall)
    return f": {others_start(number)}" if number else ""


def _successor(seen: Seen, now: ReplicaNow) -> ReplicaNow | None:
    return next((one for one in seen.replicas.values() if one.replica.replaces == now.name), None)


def _silence(node: NodeNow) -> str:
    if node.state is NodeState.READY:
        return ""
    return f"{node.name} is {node.state}, silent for {node.silence_s:.0f} s: what runs there is not known"


def _until_heard(seen: Seen, now: ReplicaNow) -> str:
    """Nobody replaces what may well serve on, before its node has been silent for long."""
    if now.standing is Standing.GONE:
        return f"does not count any more: {now.why}"
    hosts = (seen.nodes[shard.node] for shard in now.shards if shard.node in seen.nodes)
    node = next((node for node in hosts if node.state is not NodeState.READY), None)
    if node is None:
        return "waits"
    left = max(0.0, node.times.node_grace - min(node.silence_s, node.awake_s))
    return (
        f"waits until {node.name} reports, or for {left:.0f} s (cluster.node_grace), "
        f"or for `llmgw ctl nodes lost {node.name}`"
    )


def is_blocked(seen: Seen, node: NodeNow) -> bool:
    """Everything that is left there waits for a place that is nowhere."""
    left = left_on(seen, node)
    return bool(left) and all(_is_stuck(seen, now) for now in left)


def _is_stuck(seen: Seen, now: ReplicaNow) -> bool:
    successor = _successor(seen, now)
    if not now.serving or successor is None:
        return False
    lacks = _stands_in_for(seen, now, successor) or successor
    return finds_no_place(lacks)


def state_of_drain(seen: Seen, node: NodeNow) -> str:
    """draining, drained or blocked."""
    drain = node.drain
    if drain is not None and drain.ended is not None:
        return str(drain.ended)
    return "blocked" if is_blocked(seen, node) else "draining"
