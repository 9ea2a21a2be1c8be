"""What a replica counts for: whether it does, whether it should go, and which of several goes first."""

from llmgw.core.engine_spec import Want
from llmgw.core.replicas import Phase, ReplicaNow, Standing

NOT_SERVING = frozenset({Standing.WAITING, Standing.STARTING, Standing.LOADING, Standing.BROKEN, Standing.STOPPING})


def is_active(now: ReplicaNow) -> bool:
    """It counts for what is wanted: not on its way out."""
    return now.replica.phase in (Phase.WAITING, Phase.WANTED, Phase.RESTARTING)


def wants_out(now: ReplicaNow, want: Want) -> str:
    """Why another should take its place; empty: it may stay."""
    replica = now.replica
    if now.standing is Standing.GONE:
        return now.why
    if replica.leave_why:
        return replica.leave_why
    if replica.revision != want.spec.revision and replica.gave_up_on != want.spec.revision:
        return f"its engine's spec changed ({replica.revision} -> {want.spec.revision})"
    return ""


def away_from(now: ReplicaNow) -> tuple[str, ...]:
    """Where its successor must not go: a node that is not there is no place anyway, but it may come back."""
    return tuple(dict.fromkeys(place.node for place in now.replica.shards)) if now.standing is Standing.GONE else ()


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
