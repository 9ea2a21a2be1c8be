"""Where those that wait go, one after another: each claims its place before the next is looked at."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import attrs
from attrs import define, field

from llmgw.core.actions import Blocked, Start, StopFirst, Waits
from llmgw.core.claims import Board, apart_of, board_of
from llmgw.core.engine_spec import OnFull, Want
from llmgw.core.node_life import NodeNow
from llmgw.core.offers import Demand
from llmgw.core.placement import Placed, ShardPlace, Unplaceable, place
from llmgw.core.placement_explained import reasons_in_short
from llmgw.core.replicas import Replica, ReplicaNow, Standing
from llmgw.core.turns import NO_FIT, TURN, is_bounded, others_start, starting, surges, turn_of
from llmgw.core.worth import demand_for, is_active


@define(eq=False)
class Placing:
    """One pass. ``members``: replicas by model."""

    wants: Mapping[str, Want]
    replicas: Mapping[str, ReplicaNow]
    nodes: Mapping[str, NodeNow]
    members: Mapping[str, Sequence[ReplicaNow]]
    surges_max: int = 4
    _board: Board | None = field(default=None, init=False)
    _started: Counter[str] = field(factory=Counter, init=False)  # in this pass
    _bounded: int = field(init=False)  # replacements that start and share surges_max
    _turns: dict[str, str] = field(factory=dict, init=False)  # by model: who took its turn in this pass
    _taken: list[tuple[Replica, ShardPlace]] = field(factory=list, init=False)  # by what starts in this pass
    _refused: dict[tuple[object, ...], Unplaceable] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._bounded = starting(self.replicas)

    def decide(self, waiting: Sequence[ReplicaNow]) -> Iterator[Start | StopFirst | Blocked | Waits]:
        # Room that was made for one is nobody else's.
        for now in sorted(waiting, key=lambda one: (not one.replica.stop_first, one.replica.made_at, one.name)):
            if self._waits_for_room(now):
                continue
            if surges(now, self.replicas) and not now.replica.stop_first:
                yield from self._in_turn(now)
            elif not self._is_one_too_many(now):  # one that had been given up may count again
                yield self._place(now)

    def _in_turn(self, now: ReplicaNow) -> Iterator[Start | StopFirst | Blocked | Waits]:
        """It is looked at whether it may start or not: one that has no place shall not be said to wait for others."""
        if not (others := self._goes_before(now)):
            yield self._place(now)
            return
        found = self._find(now)
        if isinstance(found, Unplaceable):
            yield self._blocked(now, found)
        elif now.replica.why != (why := f"{TURN}{others}"):
            yield Waits(now.name, why)

    def _goes_before(self, now: ReplicaNow) -> str:
        """What is to happen before it may start; empty: it may."""
        model = now.replica.model
        if model in self._turns:
            return f", after {self._turns[model]}"
        for other in turn_of(self.members.get(model, ()), self.replicas):
            if other.name != now.name and (other.live or other.replica.stop_first):
                return f", after {other.replica.replaces}"
        if self._is_one_too_many(now):
            return f": {self._live(model)} of {model} are there already"
        if is_bounded(now, self.replicas) and self._bounded >= self.surges_max:
            return f": {others_start(self._bounded)}"
        return ""

    def _is_one_too_many(self, now: ReplicaNow) -> bool:
        return self._live(now.replica.model) > self.wants[now.replica.model].replicas

    def _live(self, model: str) -> int:
        return sum(now.live for now in self.members.get(model, ())) + self._started[model]

    def _waits_for_room(self, now: ReplicaNow) -> bool:
        """What it replaces goes first, and is not gone yet."""
        old = self.replicas.get(now.replica.replaces)
        return now.replica.stop_first and old is not None and old.standing is not Standing.ENDED

    def _place(self, now: ReplicaNow) -> Start | StopFirst | Blocked:
        found = self._find(now)
        if isinstance(found, Unplaceable):
            if (first := self._goes_first(now)) is not None:
                self._take_turn(now)
            return first or self._blocked(now, found)
        replica = now.replica
        for shard in found.shards:
            self._take(self.board, replica, shard)
            self._taken.append((replica, shard))
        self._started[replica.model] += 1
        if surges(now, self.replicas):
            self._take_turn(now)
        return Start(now.name, self._demand(now), found, replica.reason or "it is wanted")

    def _take_turn(self, now: ReplicaNow) -> None:
        self._turns[now.replica.model] = now.replica.replaces
        # Where room was made for it, it counts already.
        self._bounded += is_bounded(now, self.replicas) and not now.replica.stop_first

    def _find(self, now: ReplicaNow) -> Placed | Unplaceable:
        replica, demand = now.replica, self._demand(now)
        asked = (replica.model, replica.revision, replica.avoid, replica.only, replica.failed_on, demand.leaving)
        result = self._refused.get(asked) or place(demand, self.board.offers())
        if isinstance(result, Unplaceable):
            self._refused[asked] = result
        return result

    def _blocked(self, now: ReplicaNow, found: Unplaceable) -> Blocked:
        return Blocked(now.name, self._demand(now), found, f"{NO_FIT}: {reasons_in_short(found)}")

    def _demand(self, now: ReplicaNow) -> Demand:
        return demand_for(now.replica, self.wants[now.replica.model], self._leaving(now))

    def _leaving(self, now: ReplicaNow) -> frozenset[str]:
        """Nodes of the one it replaces: that one goes, so its successor may stand there and counts it nowhere."""
        old = self.replicas.get(now.replica.replaces)
        return frozenset(shard.node for shard in old.replica.shards) if old is not None else frozenset()

    def _goes_first(self, now: ReplicaNow) -> StopFirst | None:
        """Whether the one it replaces may be stopped to make room: policy allows it, and it would help."""
        replica, want = now.replica, self.wants[now.replica.model]
        old = self.replicas.get(replica.replaces)
        if want.rules.on_full is not OnFull.STOP_FIRST or old is None or not is_active(old):
            return None
        if old.standing is Standing.GONE:  # nobody could stop it now
            return None
        without = board_of(self.nodes, self.replicas.values(), frozenset({old.name}), apart_of(self.wants))
        for replica_too, shard in self._taken:
            self._take(without, replica_too, shard)
        if not isinstance(place(attrs.evolve(self._demand(now), avoid=frozenset()), without.offers()), Placed):
            return None
        why = f"it fits nowhere beside {old.name}, and placement.on_full is {want.rules.on_full}"
        return StopFirst(now.name, old.name, old.replica.spec, why)

    def _take(self, board: Board, replica: Replica, shard: ShardPlace) -> None:
        board.claim(replica, shard, f"{replica.name} (starting)")

    @property
    def board(self) -> Board:
        if self._board is None:
            self._board = board_of(self.nodes, self.replicas.values(), apart=apart_of(self.wants))
        return self._board
