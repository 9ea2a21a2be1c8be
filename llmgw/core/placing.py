"""Where those that wait go, one after another: each claims its place before the next is looked at."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import attrs
from attrs import define, field

from llmgw.core.actions import Blocked, Start, StopFirst
from llmgw.core.claims import Board, apart_of, board_of
from llmgw.core.engine_spec import OnFull, Want
from llmgw.core.node_life import NodeNow
from llmgw.core.offers import Demand
from llmgw.core.placement import Placed, ShardPlace, Unplaceable, place
from llmgw.core.placement_explained import reasons_in_short
from llmgw.core.replicas import Replica, ReplicaNow, Standing
from llmgw.core.worth import demand_for, is_active

NO_FIT = "no node fits"


@define(eq=False)
class Placing:
    """One pass. ``members``: replicas by model."""

    wants: Mapping[str, Want]
    replicas: Mapping[str, ReplicaNow]
    nodes: Mapping[str, NodeNow]
    members: Mapping[str, Sequence[ReplicaNow]]
    _board: Board | None = field(default=None, init=False)
    _started: Counter[str] = field(factory=Counter, init=False)  # in this pass
    _taken: list[tuple[Replica, ShardPlace]] = field(factory=list, init=False)  # by what starts in this pass
    _refused: dict[tuple[object, ...], Unplaceable] = field(factory=dict, init=False)

    def decide(self, waiting: Sequence[ReplicaNow]) -> Iterator[Start | StopFirst | Blocked]:
        # Room that was made for one is nobody else's.
        for now in sorted(waiting, key=lambda one: (not one.replica.stop_first, one.replica.made_at, one.name)):
            # One that had been given up may count again.
            if not self._waits_for_room(now) and self._live(now.replica.model) <= self._wanted(now.replica.model):
                yield self._place(now)

    def _live(self, model: str) -> int:
        return sum(now.live for now in self.members.get(model, ())) + self._started[model]

    def _wanted(self, model: str) -> int:
        return self.wants[model].replicas

    def _waits_for_room(self, now: ReplicaNow) -> bool:
        """What it replaces goes first, and is not gone yet."""
        old = self.replicas.get(now.replica.replaces)
        return now.replica.stop_first and old is not None and old.standing is not Standing.ENDED

    def _place(self, now: ReplicaNow) -> Start | StopFirst | Blocked:
        replica, want = now.replica, self.wants[now.replica.model]
        demand = demand_for(replica, want, self._leaving(now))
        asked = (replica.model, replica.revision, replica.avoid, replica.only, replica.failed_on, demand.leaving)
        result = self._refused.get(asked) or place(demand, self.board.offers())
        if isinstance(result, Placed):
            for shard in result.shards:
                self._take(self.board, replica, shard)
                self._taken.append((replica, shard))
            self._started[replica.model] += 1
            return Start(now.name, demand, result, replica.reason or "it is wanted")
        self._refused[asked] = result
        return self._goes_first(now, want, demand) or Blocked(
            now.name, demand, result, f"{NO_FIT}: {reasons_in_short(result)}"
        )

    def _leaving(self, now: ReplicaNow) -> frozenset[str]:
        """Nodes of the one it replaces: that one goes, so its successor may stand there and counts it nowhere."""
        old = self.replicas.get(now.replica.replaces)
        return frozenset(shard.node for shard in old.replica.shards) if old is not None else frozenset()

    def _goes_first(self, now: ReplicaNow, want: Want, demand: Demand) -> StopFirst | None:
        """Whether the one it replaces may be stopped to make room: policy allows it, and it would help."""
        replica = now.replica
        old = self.replicas.get(replica.replaces)
        if want.rules.on_full is not OnFull.STOP_FIRST or old is None or not is_active(old):
            return None
        if old.standing is Standing.GONE:  # nobody could stop it now
            return None
        without = board_of(self.nodes, self.replicas.values(), frozenset({old.name}), apart_of(self.wants))
        for replica_too, shard in self._taken:
            self._take(without, replica_too, shard)
        if not isinstance(place(attrs.evolve(demand, avoid=frozenset()), without.offers()), Placed):
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
