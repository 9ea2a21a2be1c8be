"""Where a replica should run, and why not elsewhere: filter, score, pick.

Pure: the caller brings every fact, and the answer names every candidate with every failed check, need against
have, and the scores of all that would do. Equal facts in any order give an equal answer.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from attrs import frozen

from llmgw.core.offers import DRIVER_MIB, DRIVER_SHARE, STALE_S, Demand, GpuOffer, NodeOffer, asked

WEIGHTS: Mapping[str, float] = {
    "home": 4.0,  # its files are warm there, and nothing else moves
    "luck": 8.0,  # it has not failed there again and again
    "files": 2.0,  # the weights are on its disk
    "apart": 3.0,  # fewer shards of the same model
    "room": 1.0,  # emptier nodes when spreading, fuller when packing
    "fit": 0.5,  # cards no larger than needed
}


class Miss(NamedTuple):
    """One failed check: what was needed, what there is, and what takes the rest."""

    check: str
    need: object = None
    have: object = None
    more: object = None

    def __str__(self) -> str:
        return _SENTENCES[self.check](self)


class GpuSeen(NamedTuple):
    offer: GpuOffer
    misses: tuple[Miss, ...]


class Candidate(NamedTuple):
    """One node. ``room``: how many shards of this demand would fit there."""

    node: NodeOffer
    misses: tuple[Miss, ...]
    gpus: tuple[GpuSeen, ...]
    room: int
    scores: Mapping[str, float]

    @property
    def score(self) -> float:
        return sum(WEIGHTS[name] * value for name, value in self.scores.items())


@frozen
class ShardPlace:
    """``claim_mib`` on each of its GPUs."""

    rank: int
    node: str
    gpus: tuple[str, ...] = ()
    claim_mib: int = 0


@frozen
class Placed:
    shards: tuple[ShardPlace, ...]
    candidates: tuple[Candidate, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(shard.node for shard in self.shards))


@frozen
class Unplaceable:
    """``room``: shards that would fit, of ``shards`` that must."""

    candidates: tuple[Candidate, ...]
    room: int
    shards: int


def place(demand: Demand, nodes: Iterable[NodeOffer]) -> Placed | Unplaceable:
    ordered = sorted(nodes, key=lambda node: node.name)
    candidates = tuple(_candidate(demand, node) for node in ordered)
    chosen = _nodes_for(demand, candidates)
    if chosen is None:
        return Unplaceable(candidates, sum(c.room for c in candidates), demand.shards)
    shards: list[ShardPlace] = []
    for candidate, count in chosen:
        free = _cards(demand, candidate)
        for _ in range(count):
            cards, free = free[: demand.gpus], free[demand.gpus :]
            claim = demand.need_mib or max((offer.gpu.total_mib for offer in cards), default=0)
            uuids = tuple(offer.gpu.uuid for offer in cards)
            shards.append(ShardPlace(len(shards), candidate.node.name, uuids, claim))
    return Placed(tuple(shards), candidates)


# -- filter -----------------------------------------------------------------------------------------


def _candidate(demand: Demand, node: NodeOffer) -> Candidate:
    misses = _node_misses(demand, node)
    gpus = tuple(GpuSeen(offer, _gpu_misses(demand, offer)) for offer in node.gpus) if demand.gpus else ()
    fit = sum(not seen.misses for seen in gpus)
    if demand.gpus and fit < demand.gpus:
        misses.append(Miss("gpus", demand.gpus, fit, len(gpus)))
    if misses:
        return Candidate(node, tuple(misses), gpus, 0, {})
    room = fit // demand.gpus if demand.gpus else demand.shards
    if demand.memory_mib:
        room = min(room, node.memory_free_mib // demand.memory_mib)
    if demand.rules.one_per_node:  # one replica, though all its shards may be together
        room = min(room, demand.shards)
    return Candidate(node, (), gpus, room, _scores(demand, node, gpus))


def _node_misses(demand: Demand, node: NodeOffer) -> list[Miss]:
    rules = demand.rules
    misses = []
    if node.trouble:
        misses.append(Miss("node", have=node.trouble))
    if node.target != "schedulable":
        misses.append(Miss("target", have=node.target, more=node.target_why))
    if node.name in demand.avoid:
        misses.append(Miss("moves away"))
    if rules.nodes and node.name not in rules.nodes:
        misses.append(Miss("named", rules.nodes))
    for label, value in rules.selector.items():
        if node.labels.get(label) != value:
            misses.append(Miss("selector", f"{label}={value}", node.labels.get(label)))
    misses += [Miss("apart from", model) for model in rules.apart_from if node.models.get(model)]
    misses += [
        Miss("apart from", model)
        for model, others in node.apart.items()
        if demand.model in others and node.models.get(model) and model not in rules.apart_from
    ]
    if rules.one_per_node and node.models.get(demand.model) and node.name not in demand.leaving:
        misses.append(Miss("one per node", demand.model))
    if demand.memory_mib > node.memory_free_mib:
        misses.append(Miss("host memory", demand.memory_mib, node.memory_free_mib, node.memory_mib))
    return misses


def _gpu_misses(demand: Demand, offer: GpuOffer) -> tuple[Miss, ...]:
    """Nothing is made for a card that does, which most are."""
    gpu, claims, need = offer.gpu, offer.claims, demand.need_mib
    short = offer.free_mib < need if need else _is_used(offer)
    taken = claims and (demand.exclusive or not need or any(claim.exclusive for claim in claims))
    if not (short or taken or offer.stale or gpu.sliced or gpu.evidence):
        return ()
    misses = []
    if offer.stale:
        misses.append(Miss("driver", STALE_S, gpu.read_age_s))
    if gpu.sliced:
        misses.append(Miss("sliced"))
    misses += [Miss("evidence", have=evidence) for evidence in gpu.excluded]
    if taken:
        misses.append(Miss("exclusive", demand.exclusive or not need, tuple(claim.instance for claim in claims)))
    if short and not offer.stale:
        misses.append(Miss("memory", need or gpu.total_mib, offer.free_mib, (offer.claimed_mib, gpu.foreign_mib)))
    return tuple(misses)


def _is_used(offer: GpuOffer) -> bool:
    """For who asks for a whole card."""
    gpu = offer.gpu
    return gpu.foreign_mib + gpu.ours_mib > max(DRIVER_MIB, gpu.total_mib * DRIVER_SHARE)


# -- score ------------------------------------------------------------------------------------------


def _scores(demand: Demand, node: NodeOffer, gpus: Sequence[GpuSeen]) -> dict[str, float]:
    """Each in [0, 1]; higher is better."""
    mine = node.models.get(demand.model, 0)
    if node.name in demand.leaving:
        mine = max(0, mine - 1)
    scores = {"apart": 1 / (1 + mine), "room": _room(demand, node, gpus)}
    if demand.shuns:
        scores["luck"] = float(node.name not in demand.shuns)
    if demand.home:
        scores["home"] = float(node.name in demand.home)
    if demand.files is not None:
        scores["files"] = float(demand.files.path in node.has)
    if demand.gpus and demand.need_mib:
        # The cards that would be taken first: how much of them is needed.
        totals = sorted(seen.offer.gpu.total_mib for seen in gpus if not seen.misses)[: demand.gpus]
        scores["fit"] = min(1.0, demand.need_mib / totals[-1]) if totals[-1] else 0.0
    return scores


def _room(demand: Demand, node: NodeOffer, gpus: Sequence[GpuSeen]) -> float:
    if gpus:
        empty = sum(not seen.offer.claims for seen in gpus) / len(gpus)
    else:
        empty = node.memory_free_mib / node.memory_mib if node.memory_mib else 0.0
    return 1 - empty if demand.packs else empty


# -- pick -------------------------------------------------------------------------------------------


def _nodes_for(demand: Demand, candidates: Sequence[Candidate]) -> list[tuple[Candidate, int]] | None:
    """Which nodes take how many shards: one node where one will do, for shards talk to each other all the time."""
    ranked = sorted((c for c in candidates if c.room), key=lambda c: (-c.score, c.node.name))
    for candidate in ranked:
        if candidate.room >= demand.shards:
            return [(candidate, demand.shards)]
    if sum(c.room for c in ranked) < demand.shards:
        return None
    chosen, left = [], demand.shards
    # Few nodes: those with most room first, the better score among equals.
    for candidate in sorted(ranked, key=lambda c: (-c.room, -c.score, c.node.name)):
        taken = min(left, candidate.room)
        chosen.append((candidate, taken))
        left -= taken
        if not left:
            break
    return chosen


def _cards(demand: Demand, candidate: Candidate) -> list[GpuOffer]:
    """The node's fitting cards, the first to be taken first: small ones, and shared ones that are in use already."""
    fit = [seen.offer for seen in candidate.gpus if not seen.misses]
    return sorted(fit, key=lambda offer: (offer.free_mib, offer.gpu.total_mib, offer.gpu.index, offer.gpu.uuid))


# -- how a miss reads -------------------------------------------------------------------------------


def gib(mib: object) -> str:
    return f"{mib / 1024:.1f}" if isinstance(mib, int | float) else "?"


def _memory(miss: Miss) -> str:
    claimed, foreign = miss.more if isinstance(miss.more, tuple) else (0, 0)
    have = max(0, miss.have) if isinstance(miss.have, int) else 0
    return f"needs {gib(miss.need)} GiB, free {gib(have)} (claimed {gib(claimed)}, foreign {gib(foreign)})"


def _driver(miss: Miss) -> str:
    if not isinstance(miss.have, int | float):
        return "the driver never told of it"
    return f"stale {miss.have:.0f} s: the driver does not answer"


def _joined(names: object) -> str:
    return ", ".join(map(str, names)) if isinstance(names, tuple) else "others"


def _exclusive(miss: Miss) -> str:
    names = _joined(miss.have)
    return f"claimed by {names}" + (", and this asks for a card of its own" if miss.need else ", exclusively")


_SENTENCES = {
    "node": lambda m: str(m.have),
    "target": lambda m: asked(str(m.have), str(m.more or "")),
    "moves away": lambda m: "it moves away from here",
    "named": lambda m: f"not one of the nodes named: {_joined(m.need)}",
    "selector": lambda m: f"needs label {m.need}, has {m.have if m.have is not None else 'none'}",
    "apart from": lambda m: f"must not stand beside {m.need}",
    "one per node": lambda m: f"has a replica of {m.need}, and there may be one a node",
    "host memory": lambda m: f"needs {gib(m.need)} GiB of host memory, free {gib(m.have)} of {gib(m.more)}",
    "gpus": lambda m: f"needs {m.need} GPU{'s' if m.need != 1 else ''}, {m.have} of {m.more} would do",
    "driver": _driver,
    "sliced": lambda m: "cut into MIG slices: those are used, not the card",
    "evidence": lambda m: str(m.have),
    "exclusive": _exclusive,
    "memory": _memory,
}
