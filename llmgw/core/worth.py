"""What a replica counts for: whether it does, whether it should go, and which of several goes first."""

import attrs

from llmgw.core.engine_spec import Want
from llmgw.core.offers import Demand, demand_of
from llmgw.core.replicas import Phase, Replica, ReplicaNow, Standing

NOT_SERVING = frozenset({Standing.WAITING, Standing.STARTING, Standing.LOADING, Standing.BROKEN, Standing.STOPPING})


def is_active(now: ReplicaNow) -> bool:
    """It counts for what is wanted: not on its way out."""
    return now.replica.phase in (Phase.WAITING, Phase.WANTED, Phase.RESTARTING)


def wants_out(now: ReplicaNow, want: Want) -> str:
    """Why another should take its place; empty: it may stay."""
    replica = now.replica
    if now.standing is Standing.GONE:
        return now.why
    if replica.leave_why or now.out:
        return replica.leave_why or now.out
    if replica.revision != want.spec.revision and replica.gave_up_on != want.spec.revision:
        return f"its engine's spec changed ({replica.revision} -> {want.spec.revision})"
    return ""


def away_from(now: ReplicaNow) -> tuple[str, ...]:
    """Where its successor must not go: a node that is not there is no place anyway, but it may come back."""
    gone = now.replica.shards if now.standing is Standing.GONE else ()
    return tuple(dict.fromkeys([*now.replica.move_from, *(place.node for place in gone)]))


def demand_for(replica: Replica, want: Want, leaving: frozenset[str] = frozenset()) -> Demand:
    """What a replica asks for when a place is looked for; a dry run asks the same.

    ``leaving``: nodes of the one it replaces.
    """
    rules = attrs.evolve(want.rules, nodes=replica.only) if replica.only else want.rules
    wanted = attrs.evolve(want, spec=replica.spec, rules=rules)
    demand = demand_of(wanted, frozenset(replica.home), frozenset(replica.avoid))
    return attrs.evolve(demand, shuns=frozenset(replica.failed_on), leaving=leaving)


_WORTH = (
    Standing.WAITING, Standing.BROKEN, Standing.STOPPING, Standing.ENDED, Standing.GONE, Standing.STARTING,
    Standing.LOADING, Standing.UNKNOWN, Standing.SERVING,
)  # fmt: skip


def worth(now: ReplicaNow, want: Want) -> tuple[int, bool, int, float, str]:
    """Who goes first when there are too many: what serves least, is out of date, has least in flight, is youngest."""
    rank = _WORTH.index(now.standing) if now.standing in _WORTH else len(_WORTH)
    return rank, not wants_out(now, want), now.in_flight, -now.replica.made_at, now.name


def slot_worth(now: ReplicaNow, successor: ReplicaNow | None, want: Want) -> tuple[int, bool, int, float, str]:
    """A replica and the one that comes in its place end together."""
    return worth(now, want) if successor is None else max(worth(now, want), worth(successor, want))
