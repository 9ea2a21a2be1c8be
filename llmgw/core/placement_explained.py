"""How a placement is told: every candidate, every failed check, the scores of the rest, and what would change it."""

from collections import Counter
from collections.abc import Iterator

from llmgw.core.explain import Considered, Explanation, Fact
from llmgw.core.offers import Demand, GpuOffer, NodeOffer, asked
from llmgw.core.placement import Candidate, Miss, Placed, ShardPlace, Unplaceable, gib

CHANGES_MAX = 5
ROOM_MIB = 1024  # with less, no engine finds room beside others


def explain(subject: str, demand: Demand, result: Placed | Unplaceable, next_command: str = "") -> Explanation:
    if isinstance(result, Placed):
        verdict, changes = _where(result), tuple[str, ...]()
    else:
        verdict, changes = _nowhere(demand, result), tuple(_changes(demand, result))[:CHANGES_MAX]
    return Explanation(
        subject, verdict, tuple(_asked(demand)), considered(result), changes, next_command or "llmgw ctl nodes"
    )


def considered(result: Placed | Unplaceable) -> tuple[Considered, ...]:
    """A node an entry, and an entry for each GPU: with something against it or with a shard; all where nothing fits."""
    return tuple(one for candidate in result.candidates for one in _entries(candidate, result))


def scores_in_short(placed: Placed) -> str:
    """Why the first of its nodes was the best: ``apart 1.00, room 0.83``."""
    best = next(one for one in placed.candidates if one.node.name == placed.nodes[0])
    return ", ".join(f"{score} {value:.2f}" for score, value in best.scores.items())


def reasons_in_short(result: Unplaceable) -> str:
    """One sentence: how many nodes failed which check, the most frequent first."""
    if not result.candidates:
        return "there are no nodes"
    tally = Counter(_main_check(candidate) for candidate in result.candidates)
    return ", ".join(f"{count} {what}" for what, count in tally.most_common())


def main_reason(result: Unplaceable) -> str:
    """What most nodes lacked; one of a fixed set of words."""
    tally = Counter(_main_check(candidate) for candidate in result.candidates)
    return tally.most_common(1)[0][0] if tally else "no nodes"


def why_nothing_lands(node: NodeOffer) -> str:
    """Why a node gets nothing new, whatever is asked; empty: it may."""
    if node.trouble:
        return node.trouble
    if node.target != "schedulable":
        return asked(node.target, node.target_why)
    if node.gpus and all(_is_full(offer) for offer in node.gpus):
        return f"full: {len(node.gpus)} of {len(node.gpus)} GPUs claimed"
    if node.gpus and all(offer.stale for offer in node.gpus):
        return str(Miss("driver", have=_oldest_age_s(node)))
    if node.gpus and all(_takes_nothing(offer) for offer in node.gpus):
        return "full: no GPU is healthy and has room"
    return ""


def _oldest_age_s(node: NodeOffer) -> float | None:
    ages = [offer.gpu.read_age_s for offer in node.gpus]
    return max((age for age in ages if age is not None), default=None)


def _is_full(offer: GpuOffer) -> bool:
    """Claimed by somebody who does not share it, or with no room beside those who do."""
    return bool(offer.claims) and (any(claim.exclusive for claim in offer.claims) or _lacks_room(offer))


def _lacks_room(offer: GpuOffer) -> bool:
    return offer.free_mib < ROOM_MIB


def _takes_nothing(offer: GpuOffer) -> bool:
    unfit = offer.stale or offer.gpu.excluded or offer.gpu.sliced
    return bool(unfit or _is_full(offer) or _lacks_room(offer))


def _where(result: Placed) -> str:
    shards = "; ".join(_shard(shard, len(result.shards)) for shard in result.shards)
    return f"goes to {shards}"


def _shard(shard: ShardPlace, of: int) -> str:
    rank = f"rank {shard.rank} on " if of > 1 else ""
    gpus = f" ({len(shard.gpus)} GPU{'s' if len(shard.gpus) > 1 else ''})" if shard.gpus else ""
    return f"{rank}{shard.node}{gpus}"


def _nowhere(demand: Demand, result: Unplaceable) -> str:
    room = f"{result.room} of {demand.shards} shards would fit: " if result.room else ""
    return f"no node fits: {room}{reasons_in_short(result)}"


def _asked(demand: Demand) -> Iterator[Fact]:
    gpus = f"{demand.gpus} GPU{'s' if demand.gpus != 1 else ''}" if demand.gpus else "no GPU"
    memory = ""
    if demand.gpus:
        memory = f" with {gib(demand.need_mib)} GiB free on each" if demand.need_mib else ", each whole"
    alone = ", nobody beside it" if demand.gpus and demand.exclusive and demand.need_mib else ""
    yield Fact(f"{demand.shards} shard{'s' if demand.shards != 1 else ''} of {gpus}{memory}{alone}")
    if demand.memory_mib:
        yield Fact(f"{gib(demand.memory_mib)} GiB of host memory a shard")
    if demand.rules.selector:
        yield Fact("labels " + ", ".join(f"{k}={v}" for k, v in sorted(demand.rules.selector.items())))
    yield Fact(f"strategy: {demand.rules.strategy}")


def _entries(candidate: Candidate, result: Placed | Unplaceable) -> Iterator[Considered]:
    name = candidate.node.name
    mine = [shard for shard in result.shards if shard.node == name] if isinstance(result, Placed) else []
    scores = {**candidate.scores, "total": candidate.score} if candidate.scores else {}
    yield Considered(name, bool(mine), tuple(map(str, candidate.misses)), scores)
    taken = {uuid for shard in mine for uuid in shard.gpus}
    for seen in candidate.gpus:
        gpu = seen.offer.gpu
        label = f"{name} {seen.offer.label} ({gpu.model or 'GPU'}, {gpu.uuid})"
        if seen.misses or gpu.uuid in taken:
            yield Considered(label, gpu.uuid in taken, tuple(map(str, seen.misses)))
        elif isinstance(result, Unplaceable):
            yield Considered(label, False, (_would_do(seen.offer),))


def _would_do(offer: GpuOffer) -> str:
    numbers = f"claimed {gib(offer.claimed_mib)}, foreign {gib(offer.gpu.foreign_mib)}"
    return f"would do by itself: free {gib(offer.free_mib)} GiB ({numbers})"


_SHORT = {
    "node": "not there",
    "selector": "without the label",
    "named": "not named",
    "apart from": "beside a model it must not stand beside",
    "one per node": "with a replica already",
    "host memory": "short of host memory",
    "moves away": "it moves away from",
}


def _main_check(candidate: Candidate) -> str:
    """What stands in the way first: a node that is not there is not also short of memory."""
    if not candidate.misses:
        return "with room for a part"
    first = candidate.misses[0]
    if first.check == "target":
        return str(first.have)
    if first.check != "gpus":
        return _SHORT.get(first.check, first.check)
    if not candidate.gpus:
        return "without GPUs"
    kinds = [{miss.check for miss in seen.misses} for seen in candidate.gpus]
    # What speaks against every card would have to change; else the most telling of all.
    for found in (set.intersection(*kinds), set.union(*kinds)):
        for check, words in _GPU_SHORT:
            if check in found:
                return words
    return "with too few GPUs"


_GPU_SHORT = (
    ("memory", "short of GPU memory"),
    ("exclusive", "with GPUs claimed"),
    ("driver", "whose driver does not answer"),  # of which there is evidence too
    ("evidence", "with GPUs excluded"),
    ("sliced", "cut into slices"),
)


def _changes(demand: Demand, result: Unplaceable) -> Iterator[str]:
    """The nearest ways out: nodes that fail one check alone, then the card that lacks least."""
    for candidate in result.candidates:
        checks = {miss.check for miss in candidate.misses}
        name = candidate.node.name
        if checks == {"target"}:
            yield f"uncordon {name}: llmgw ctl uncordon {name}"
        elif checks == {"node"}:
            yield f"{name} comes back ({candidate.node.trouble})"
        elif checks == {"selector"}:
            missing = ", ".join(str(miss.need) for miss in candidate.misses)
            yield f"label {missing} on {name}"
    nearest = min(_lacking(demand, result), default=None)
    if nearest is not None:
        lacks, where = nearest
        yield f"{gib(lacks)} GiB more free on {where}"
    if not result.candidates:
        yield "a node with an agent: llmgw ctl nodes invite"


def _lacking(demand: Demand, result: Unplaceable) -> Iterator[tuple[int, str]]:
    for candidate in result.candidates:
        if any(miss.check not in ("gpus", "host memory") for miss in candidate.misses):
            continue
        for seen in candidate.gpus:
            if [miss.check for miss in seen.misses] == ["memory"]:
                need = demand.need_mib or seen.offer.gpu.total_mib
                yield need - seen.offer.free_mib, f"{candidate.node.name} {seen.offer.label}"
