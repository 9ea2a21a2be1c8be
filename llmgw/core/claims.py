"""Who has which GPU: what nodes have to offer once every claim is taken off."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from attrs import define, evolve, field

from llmgw.core.engine_spec import Want
from llmgw.core.gpus import Gpu
from llmgw.core.node_life import NodeNow
from llmgw.core.offers import Claim, GpuOffer, NodeOffer
from llmgw.core.placement import ShardPlace
from llmgw.core.replicas import PLACED, Replica, ReplicaNow


@define(eq=False)
class Board:
    """Claims as they stand, and as they become while a pass places one replica after another."""

    nodes: Mapping[str, NodeNow]
    apart: Mapping[str, frozenset[str]] = field(factory=dict)  # of models: whom they must not stand beside
    _claims: dict[str, dict[str, list[Claim]]] = field(
        factory=lambda: defaultdict(lambda: defaultdict(list)), init=False
    )
    _models: dict[str, dict[str, int]] = field(factory=lambda: defaultdict(lambda: defaultdict(int)), init=False)
    _memory: dict[str, int] = field(factory=lambda: defaultdict(int), init=False)
    _offers: dict[str, NodeOffer] = field(factory=dict, init=False)
    _away: set[str] = field(factory=set, init=False)  # shards that are thought away

    def claim(self, replica: Replica, shard: ShardPlace, instance: str) -> None:
        spec = replica.spec
        exclusive = spec.exclusive or not spec.gpu_memory_mib
        for uuid in shard.gpus:
            self._claims[shard.node][uuid].append(Claim(instance, shard.claim_mib, exclusive, replica.model))
        self._models[shard.node][replica.model] += 1
        self._memory[shard.node] += spec.memory_mib
        self._offers.pop(shard.node, None)

    def think_away(self, shard: str) -> None:
        """What it was measured to use would be free without it."""
        self._away.add(shard)

    def offers(self) -> list[NodeOffer]:
        return [self.offer(name) for name in self.nodes]

    def offer(self, name: str) -> NodeOffer:
        if name not in self._offers:
            self._offers[name] = self._made(self.nodes[name])
        return self._offers[name]

    def _made(self, node: NodeNow) -> NodeOffer:
        claims = self._claims[node.name]
        gpus = tuple(GpuOffer(gpu, tuple(claims.get(gpu.uuid, ()))) for gpu in self._cards(node))
        return NodeOffer(
            node.name,
            gpus,
            node.trouble,
            node.target,
            node.target_why,
            node.labels,
            max(0, node.memory_mib - node.memory_reserved_mib - self._memory[node.name]),
            node.memory_mib,
            dict(self._models[node.name]),
            node.has,
            {model: self.apart[model] for model in self._models[node.name] if self.apart.get(model)},
        )

    def _cards(self, node: NodeNow) -> tuple[Gpu, ...]:
        """Without what is thought away; what a shard uses that nobody claims any more counts as foreign."""
        claimed = {claim.instance for claims in self._claims[node.name].values() for claim in claims}
        away: Counter[str] = Counter()
        stray: Counter[str] = Counter()
        for id, seen in node.shards.items():
            if id not in claimed:
                (away if id in self._away else stray).update(seen.gpu_mib)
        if not away and not stray:
            return node.gpus
        return tuple(
            evolve(
                gpu,
                ours_mib=max(0, gpu.ours_mib - away[gpu.uuid] - stray[gpu.uuid]),
                used_mib=max(0, gpu.used_mib - away[gpu.uuid]),
            )
            for gpu in node.gpus
        )


def apart_of(wants: Mapping[str, Want]) -> dict[str, frozenset[str]]:
    """By model, whom it must not stand beside; it counts in both directions."""
    return {model: frozenset(want.rules.apart_from) for model, want in wants.items() if want.rules.apart_from}


def board_of(
    nodes: Mapping[str, NodeNow],
    replicas: Iterable[ReplicaNow],
    without: frozenset[str] = frozenset(),
    apart: Mapping[str, frozenset[str]] | None = None,
) -> Board:
    """``without``: replicas whose claims are thought away, and what they were measured to use."""
    board = Board(nodes, apart or {})
    for now in replicas:
        if now.name in without:
            for shard in now.shards:
                board.think_away(shard.id)
        elif now.replica.phase in PLACED:
            for place, shard in zip(now.replica.shards, now.shards, strict=True):
                if not shard.ended:
                    board.claim(now.replica, place, shard.id)
    return board
