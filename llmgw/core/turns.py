"""Whose turn it is: replacements start one at a time a model; a bound over all holds those for drains and sick GPUs.

What finds no place has no part in either, so it holds up nobody. A model's turn is over once the old one has left the
pool for one that serves: what it still has to finish, or a stop that does not end, is nothing to wait for.
"""

from collections.abc import Iterable, Iterator, Mapping

from llmgw.core.replicas import Phase, Replica, ReplicaNow, Standing
from llmgw.core.worth import is_active

NO_FIT = "no node fits"
TURN = "its turn"  # what begins with this waits for others, and has a place
BOUNDED = frozenset({"drain", "gpu"})  # reasons for a replacement that share drain.surges_max

Replicas = Mapping[str, ReplicaNow]


def finds_no_place(now: ReplicaNow) -> bool:
    return now.replica.phase is Phase.WAITING and now.replica.why.startswith(NO_FIT)


def surges(now: ReplicaNow, replicas: Replicas) -> bool:
    """It is to come beside one that counts."""
    old = replicas.get(now.replica.replaces)
    return old is not None and is_active(old) and old.standing is not Standing.GONE


def has_turn(now: ReplicaNow, replicas: Replicas) -> bool:
    """Others of its model wait until this one is done."""
    old = replicas.get(now.replica.replaces)
    if old is None or not is_active(now) or now.standing is Standing.GONE:
        return False
    if finds_no_place(now) and not now.replica.stop_first:
        return False
    return is_active(old) or not now.serving


def is_bounded(now: ReplicaNow, replicas: Replicas) -> bool:
    """What replaces one that is gone is waited for, whatever else starts."""
    old = replicas.get(now.replica.replaces)
    return is_active(now) and now.replica.replaces_for in BOUNDED and (old is None or old.standing is not Standing.GONE)


def starting(replicas: Replicas) -> int:
    """How many of those that share the bound start, or had room made for them."""
    return sum(is_bounded(now, replicas) and _is_starting(now.replica, now.serving) for now in replicas.values())


def _is_starting(replica: Replica, serving: bool) -> bool:
    return replica.stop_first if replica.phase is Phase.WAITING else not serving


def coming(replicas: Replicas, wall: float) -> int:
    """And those whose place is looked for."""
    return starting(replicas) + sum(
        now.replica.phase is Phase.WAITING
        and not now.replica.stop_first
        and now.replica.retry_at <= wall
        and not finds_no_place(now)
        for now in replicas.values()
        if is_bounded(now, replicas)
    )


def turn_of(members: Iterable[ReplicaNow], replicas: Replicas) -> Iterator[ReplicaNow]:
    """Those of a model whose turn it is."""
    return (now for now in members if has_turn(now, replicas))


def others_start(number: int) -> str:
    return "1 other replacement starts" if number == 1 else f"{number} other replacements start"
