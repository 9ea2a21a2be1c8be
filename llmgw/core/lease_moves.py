"""What a control plane does next about leadership, or how long it rests."""

from math import inf

from llmgw.core.lease_facts import Acquire, Lift, Look, Move, Release, Renew, Rest
from llmgw.core.lease_state import Leadership, Role


def next_move(it: Leadership, now: float) -> Move:
    """A call is to be reported to ``lease.begun`` before it is sent, its answer to ``lease.after``."""
    if it.sent is not None:
        return Rest(it.trusted_until if it.leads else inf, "a statement is under way")
    match it.role:
        case Role.LEADING | Role.SUSPENDED:
            return _lead(it, now)
        case Role.LEAVING:
            return _leave(it, now)
        case Role.STANDBY:
            return _stand_by(it, now)


def _lead(it: Leadership, now: float) -> Move:
    if now < it.retry_at:
        return Rest(min(it.retry_at, it.trusted_until), "a pause after a statement without an answer")
    if it.attempt is not None and not it.attempt.looked:
        return Look("whether the term was lifted is not known")
    if it.role is Role.SUSPENDED:
        return Renew(it.term, it.ready, it.why)
    if now >= it.renew_at:
        return Renew(it.term, it.ready, "it is time")
    if it.lift_above is not None:
        return Lift(it.term, it.lift_above, f"an agent has obeyed term {it.lift_above}")
    if it.ready != it.said_ready:
        return Renew(it.term, it.ready, "it is ready now" if it.ready else "it is not ready any more")
    return Rest(min(it.renew_at, it.trusted_until), "the next renewal")


def _leave(it: Leadership, now: float) -> Move:
    if it.working:
        return Rest(inf, "what the leader began has to end before the lease is given back")
    if now < it.retry_at:
        return Rest(it.retry_at, "a pause after a statement without an answer")
    return Release(it.term, it.why)


def _stand_by(it: Leadership, now: float) -> Move:
    may_take = not it.working and now >= it.out_until and now >= it.retry_at
    if may_take and it.held:
        return Renew(it.term, it.ready, "nobody was seen to take the lease of this process")
    if now >= it.look_at:
        return Look("who leads")
    moment = it.takes_at()
    if may_take and moment is not None and it.row is not None and now >= moment[0]:
        if now - it.row_at >= it.limits.ttl:
            return Look("what was read of the lease is old")
        return Acquire(moment[1], it.row, moment[1].value)
    return Rest(_wakes_at(it, now), "the next look")


def _wakes_at(it: Leadership, now: float) -> float:
    """At exactly the moment the lease may be taken, if that is before the next look."""
    moment = it.takes_at()
    if it.working or (moment is None and not it.held):
        return it.look_at
    at = it.retry_at if it.held or moment is None else max(it.retry_at, moment[0])
    return min(it.look_at, max(at, it.out_until, now))
