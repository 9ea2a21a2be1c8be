"""Who leads: how what happens changes one control plane's part in leadership.

Pure: what happened and when comes in, the next state comes out. The rules it lives by:
- Trust counts from *before* the statement was sent: a slow answer makes it no longer.
- A standby takes what was released; what ran out by the database's clock, if nobody wrote it for one ttl by ours;
  what nobody wrote for two ttl by ours. "Released" counts for nothing while the store may have lost a later leader.
- No answer is not "no": the leader asks again until its trust ends, then steps down; its own lease, if nobody took
  it, is renewed and led again under the same term. No row is "no": it steps down at once and releases nothing.
- After a stall nothing is done until a renewal sent after it has succeeded.
- Given back is given back: a term that was to be released is never renewed, and who resigned stays out for one ttl,
  or until somebody else has led.
"""

from math import inf

from attrs import evolve

from llmgw.core.lease_facts import (
    Acquire,
    Acquired,
    Answer,
    Call,
    Failed,
    Happening,
    LeaseRow,
    Lift,
    Lifted,
    Looked,
    Nudged,
    Release,
    Released,
    Renew,
    Renewed,
    Resign,
    Serving,
    Stop,
    Ticked,
    Told,
    WorkEnded,
)
from llmgw.core.lease_state import TICK_S, Attempt, Leadership, Role, Sent
from llmgw.core.term import Term

RETRY_S = 0.25  # after a statement without an answer, while leading


def begun(it: Leadership, call: Call, now: float, nonce: str) -> Leadership:
    """Immediately before a statement is sent. ``nonce``: fresh, for a term that it may begin; ``sent`` says which."""
    it = ticked(it, now)
    if isinstance(call, Acquire | Lift):
        seq, attempt = call.seen.seq if isinstance(call, Acquire) else None, it.attempt
        if attempt is None or attempt.seq != seq:
            attempt = Attempt(nonce, now, seq)
        return evolve(it, sent=Sent(call, now, attempt.nonce), attempt=evolve(attempt, looked=False))
    return evolve(it, sent=Sent(call, now), held=it.held and not isinstance(call, Release))


def after(it: Leadership, fact: Answer | Happening, now: float) -> Leadership:
    it = ticked(it, now)
    match fact:
        case Ticked():
            return it
        case Nudged():
            return evolve(it, look_at=now, retry_at=min(it.retry_at, now))
        case Resign(why, failed):
            return evolve(_leaving(it, now, why, it.limits.ttl), resigned=not failed)
        case Stop():
            return _leaving(it, now, "this process ends", inf)
        case Told():
            return _told(it, fact, now)
        case WorkEnded():
            return evolve(it, working=False)
        case Serving(ready):
            return evolve(it, ready=ready)
        case _:
            return _answered(it, fact, now)


# -- answers --------------------------------------------------------------------------------------------------


def _answered(it: Leadership, fact: Answer, now: float) -> Leadership:
    sent = it.sent
    assert sent is not None, f"{fact} answers nothing"
    it = evolve(it, sent=None)
    if isinstance(fact, Failed):
        return _unanswered(it, sent, fact.why, now)
    return _learned(evolve(it, away_since=None, away_why="", retry_at=min(it.retry_at, now)), fact, sent, now)


def _learned(it: Leadership, fact: Answer, sent: Sent, now: float) -> Leadership:
    match fact:
        case Looked(row):
            return _looked(it, row, now)
        case Acquired(term):
            return _acquired(it, term, sent.at, now)
        case Renewed():
            return _renewed(it, sent, now)
        case Lifted(term):
            return _lifted(it, term)
        case Released():
            return _gave_back(it, now)
        case _:
            return _refused(it, sent, now)


def _unanswered(it: Leadership, sent: Sent, why: str, now: float) -> Leadership:
    pause = RETRY_S if it.role is not Role.STANDBY else poll_s(it)
    away = sent.at if it.away_since is None else it.away_since
    it = evolve(it, away_since=away, away_why=why, retry_at=now + pause, look_at=max(it.look_at, now + pause))
    if it.role is Role.LEAVING and now >= it.trusted_until:
        return _gave_back(it, now)  # it runs out by itself
    return it


def _looked(it: Leadership, row: LeaseRow, now: float) -> Leadership:
    known = it.row
    # What was not watched for a whole ttl may have been written and taken back meanwhile.
    same = known is not None and known.sight == row.sight and now - it.row_at < it.limits.ttl
    back = known is not None and (row.age < known.age or row.timeline < known.timeline)
    if known is not None and row.holder != it.holder:
        between_s = now - it.row_at + it.limits.call_within  # the first answer may have been on its way for so long
        it = evolve(it, misfits=it.misfits.after(known, row, between_s, it.addresses.name, it.limits.ttl))
    it = evolve(
        it,
        row=row,
        row_at=now,
        unchanged_since=it.unchanged_since if same else now,
        doubted_at=now if back else it.doubted_at,
        look_at=now + poll_s(it),
    )
    if it.attempt is not None:
        it = _look_for(it, it.attempt, row, now)
    if row.holder == it.holder and row.term == it.term:
        return _lost(it, now, "its lease was released") if row.released else it
    return _anothers(it, row, now)


def _look_for(it: Leadership, attempt: Attempt, row: LeaseRow, now: float) -> Leadership:
    """Whether a term whose statement had no answer came to be."""
    if row.holder != it.holder or row.term.nonce != attempt.nonce:
        # So far it did not. Once somebody else wrote the row it can't any more.
        gone = attempt.seq is not None and attempt.seq != row.seq
        return evolve(it, attempt=None if gone else evolve(attempt, looked=True))
    if row.released:
        return evolve(it, attempt=None)
    return _lifted(it, row.term) if it.leads else _acquired(it, row.term, attempt.at, now)


def _anothers(it: Leadership, row: LeaseRow, now: float) -> Leadership:
    it = _lost(it, now, f"{row.addresses.name or 'another control plane'} holds the lease, term {row.term}")
    if row.holder in ("", it.holder):
        return it
    if it.resigned and row.term.is_newer_than(it.term):
        it = evolve(it, out_until=now, resigned=False)
    return evolve(it, led_last=False, next_seen_at=now if it.next_seen_at is None else it.next_seen_at)


def _acquired(it: Leadership, term: Term, sent_at: float, now: float) -> Leadership:
    until = sent_at + it.limits.trusted
    it = evolve(it, term=term, held=True, attempt=None, trusted_until=until, renewals=0, said_ready=False)
    if now < it.out_until:
        return _role(it, Role.LEAVING, now, it.why)
    if it.working or now >= until or it.role is not Role.STANDBY:
        return it  # one renewal first
    return _up(it, sent_at, now, f"it took the lease, term {term}")


def _renewed(it: Leadership, sent: Sent, now: float) -> Leadership:
    assert isinstance(sent.call, Renew)
    until = trusted_from(it, sent.at, now)
    if sent.call.term != it.term or not it.held:
        return it
    it = evolve(it, renewals=it.renewals + 1, said_ready=sent.call.ready)
    if it.leads:
        it = evolve(it, trusted_until=max(until, it.trusted_until), renew_at=sent.at + it.limits.renew)
        if it.role is Role.SUSPENDED and sent.at >= it.suspended_at and now < until:
            return _role(it, Role.LEADING, now, "a renewal after the stall has succeeded")
        return it
    if it.role is Role.STANDBY and not it.working and it.out_until <= now < until:
        return _up(it, sent.at, now, f"nobody had taken its lease, term {it.term}")
    return it


def _lifted(it: Leadership, term: Term) -> Leadership:
    above = it.lift_above
    still = above if above is not None and not term.is_newer_than(above) else None
    return evolve(it, term=term, lift_above=still, attempt=None)


def _gave_back(it: Leadership, now: float) -> Leadership:
    return evolve(_role(it, Role.STANDBY, now, it.why), held=False, look_at=now, gave_back=True)


def _refused(it: Leadership, sent: Sent, now: float) -> Leadership:
    match sent.call:
        case Acquire():
            return evolve(it, look_at=now, retry_at=now + poll_s(it))
        case Release():
            return _gave_back(it, now)
        case Renew(term=term) if term == it.term:
            return _lost(evolve(it, look_at=now), now, "its lease was taken")
        case _:
            return it  # of a lift an earlier one may have come through: the attempt is looked for


# -- what others want -----------------------------------------------------------------------------------------


def _told(it: Leadership, told: Told, now: float) -> Leadership:
    seen, recent = told.seen, 2 * it.limits.ttl
    if not it.leads or not (seen.is_newer_than(it.term) or seen.conflicts_with(it.term)):
        return it
    if seen.conflicts_with(it.term):
        it = evolve(it, conflict=(told.agent, seen))
    if told.heard_s is not None and told.heard_s < recent:
        why = f"{told.agent} heard the leader of term {seen} {told.heard_s:.1f} s ago, this one's is {it.term}"
        return _leaving(it, now, why, recent - told.heard_s)
    if it.lift_above is None or seen.is_newer_than(it.lift_above):
        return evolve(it, lift_above=seen)
    return it


def _leaving(it: Leadership, now: float, why: str, out_s: float) -> Leadership:
    """Out for so long; a standby whose lease nobody has taken yet gives it back too."""
    it = evolve(it, out_until=max(it.out_until, now + out_s), lift_above=None, resigned=False)
    if it.leads or (it.held and it.role is Role.STANDBY):
        return _role(it, Role.LEAVING, now, why)
    return it


# -- time -----------------------------------------------------------------------------------------------------


def ticked(it: Leadership, now: float) -> Leadership:
    """Before anything else is looked at: whether nothing ran for too long, and whether trust has ended."""
    stalled, gap = it.stalled(now), now - it.ticked_at
    it = evolve(it, ticked_at=now)
    if it.leads and stalled:  # when it began is known as far as ticks tell
        why = f"nothing ran here for {gap - TICK_S:.1f} to {gap:.1f} s"
        it = evolve(_role(it, Role.SUSPENDED, now, why), suspended_at=now)
    if it.leads and now >= it.trusted_until:
        it = _down(it, now, f"its lease was not renewed for {it.limits.trusted:g} s: {it.away_why or it.why}")
    return it


def trusted_from(it: Leadership, sent_at: float, now: float) -> float:
    """How long a success lets us lead: counted from before it was sent, whenever the answer came."""
    return sent_at + it.limits.trusted


def _up(it: Leadership, sent_at: float, now: float, why: str) -> Leadership:
    return evolve(
        _role(it, Role.LEADING, now, why),
        held=True,
        working=True,
        trusted_until=trusted_from(it, sent_at, now),
        renew_at=sent_at + it.limits.renew,
        led_since=now,
        led_last=True,
        gave_back=False,
        next_seen_at=None,
    )


def _lost(it: Leadership, now: float, why: str) -> Leadership:
    """For certain: the lease is not ours. Nothing is released."""
    it = evolve(it, held=False)
    return _down(it, now, why) if it.leads else it


def _down(it: Leadership, now: float, why: str) -> Leadership:
    return evolve(_role(it, Role.STANDBY, now, why), lift_above=None, look_at=now, retry_at=now)


def _role(it: Leadership, role: Role, now: float, why: str) -> Leadership:
    ended = it.leads and role not in (Role.LEADING, Role.SUSPENDED)
    return evolve(it, role=role, since=now, why=why, led_until=now if ended else it.led_until)


def poll_s(it: Leadership) -> float:
    return it.limits.poll * (0.75 + it.spread / 2)
