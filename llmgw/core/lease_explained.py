"""Who leads and why, as values: for the log, ``ctl leader``, ``ctl explain leader``, ``/ready`` and events."""

from attrs import frozen

from llmgw.core.explain import Considered, Explanation, Fact
from llmgw.core.lease_facts import Addresses, LeaseRow, Right
from llmgw.core.lease_state import Leadership, Role
from llmgw.core.term import NO_TERM, Term


@frozen
class Transition:
    """``kind`` is an event's; ``sentence`` says what happened and why."""

    kind: str
    sentence: str
    term: Term


@frozen
class Leader:
    """For ``ctl leader``. ``here``: it is this process. Ages in seconds; None: not known."""

    who: str
    addresses: Addresses
    here: bool
    state: str  # leading, suspended, released, run out, unknown
    term: Term
    since_s: float | None
    margin_s: float | None  # what is left: of our trust, or of another's lease by the database's clock
    renewals: int
    ready: bool


@frozen
class Readiness:
    ready: bool
    why: str
    elsewhere: bool = False  # others have led since: what this process knows of replicas grows old


def changes(before: Leadership, after: Leadership) -> list[Transition]:
    """What is worth an event between two states."""
    told = [Transition(kind, sentence, after.term) for kind, sentence in _own(before, after)]
    other, known = _other(after), _other(before)
    if other is not None and (known is None or (known.holder, known.term) != (other.holder, other.term)):
        told.append(Transition("leader.other", f"{_name(other)} leads, term {other.term}", other.term))
    if after.conflict is not None and _term_of(after.conflict) != _term_of(before.conflict):
        told.append(Transition("leader.store_back", conflict(*after.conflict), before.term))
    if other is not None:
        known_ones = {one.field for one in before.misfits.sure}
        new = (one for one in after.misfits.sure if one.field not in known_ones)
        told += [Transition("leader.misfit", one.says, other.term) for one in new]
    if after.doubt and after.doubt != before.doubt:
        told.append(Transition("leader.store_back", f"the lease is taken later than usual: {after.doubt}", after.term))
    return told


def conflict(agent: str, seen: Term) -> str:
    return f"{agent} has obeyed another leader under this one's number, term {seen}: the store went back in time"


def _term_of(conflict: tuple[str, Term] | None) -> Term | None:
    return None if conflict is None else conflict[1]


def _own(before: Leadership, after: Leadership) -> list[tuple[str, str]]:
    match before.leads, after.leads:
        case False, True:
            return [("leader.began", f"{_here(after)} leads, term {after.term}: {after.why}")]
        case True, False:
            return [("leader.ended", f"{_here(after)} leads no more, term {before.term}: {after.why}")]
        case True, True if before.role is not after.role:
            kind = "leader.suspended" if after.role is Role.SUSPENDED else "leader.resumed"
            return [(kind, f"{_here(after)}, term {after.term}: {after.why}")]
        case True, True if before.term != after.term:
            above = before.lift_above or before.term
            now = f"{_here(after)} leads, term {after.term} now"
            return [("leader.lifted", f"agents had obeyed term {above}: the store went back in time; {now}")]
    return []


def leader(it: Leadership, now: float) -> Leader | None:
    """Who leads, or led last; None: nothing is known yet."""
    if it.leads:
        margin, since = it.trusted_until - now, now - it.led_since
        return Leader(
            _here(it), it.addresses, True, it.role.value, it.term, since, margin, it.renewals, it.ready
        )  # fmt: skip
    row = it.row
    if it.led_until > it.row_at:  # what was read of the lease is older than that
        state = "released" if it.gave_back else "run out"
        since, margin = now - it.led_since, min(0.0, it.trusted_until - now)
        return Leader(_here(it), it.addresses, True, state, it.term, since, margin, it.renewals, it.ready)
    if row is None or row.term == NO_TERM:
        return None
    age = now - it.row_at
    state = "released" if row.released else "leading" if row.remaining_s > age else "run out"
    return Leader(
        _name(row), row.addresses, row.holder == it.holder, state, row.term, row.held_s + age, row.remaining_s - age,
        row.renewals, row.ready,
    )  # fmt: skip


def readiness(it: Leadership, now: float, offline_grace: float) -> Readiness:
    """What ``/ready`` needs of leadership: it leads, or led last and may go on for a while with what it knows."""
    if it.leads:
        return Readiness(True, f"leads, term {it.term}")
    if it.led_last:
        since = it.led_until if it.away_since is None else min(it.away_since, it.led_until)
        away_s = now - since
        what = f"led last, {away_s:.0f} s ago, and has seen no other leader since"
        return Readiness(away_s <= offline_grace, what if away_s <= offline_grace else f"{what}; that is too long ago")
    if it.gave_back and it.next_seen_at is not None:
        seen_s = now - it.next_seen_at
        if seen_s < it.limits.handover and not (it.row is not None and it.row.ready):
            return Readiness(True, "handed over, and the next leader is not ready yet")
    return Readiness(False, "does not lead", elsewhere=True)


def has_handed_over(it: Leadership, now: float) -> bool:
    """Nobody waits for us any more: another leader is ready, or had its time. Asked after ``Stop``."""
    if it.leads or it.role is Role.LEAVING:
        return False
    if not it.gave_back:
        return True
    if it.next_seen_at is None:
        return now - it.led_until >= it.limits.handover
    return (it.row is not None and it.row.ready) or now - it.next_seen_at >= it.limits.handover


def explain(it: Leadership, now: float) -> Explanation:
    return Explanation(
        subject="leader",
        verdict=_verdict(it, now),
        because=tuple(_because(it, now)),
        candidates=tuple(_candidates(it, now)),
        would_change_it=tuple(_would_change_it(it, now)),
        next_command="llmgw ctl leader",
    )


def _verdict(it: Leadership, now: float) -> str:
    match it.role:
        case Role.LEADING:
            return f"{_here(it)}, this control plane, leads, term {it.term}"
        case Role.SUSPENDED:
            return f"{_here(it)}, this control plane, leads, term {it.term}, and does nothing until it has renewed"
        case Role.LEAVING:
            return f"{_here(it)}, this control plane, gives term {it.term} back"
    other = _other(it)
    if other is None:
        return "nobody leads, as far as this control plane knows"
    if other.remaining_s <= now - it.row_at:
        return f"nobody leads: the lease of {_name(other)}, term {other.term}, has run out"
    return f"{_name(other)} leads, term {other.term}"


def _because(it: Leadership, now: float) -> list[Fact]:
    facts = [Fact(it.why, now - it.since)]
    if it.leads:
        renewals = "1 renewal" if it.renewals == 1 else f"{it.renewals} renewals"
        facts.append(Fact(f"its lease is good for {it.trusted_until - now:.1f} s more, after {renewals}"))
    elif it.row is not None and it.row_at >= it.led_until:  # a leader writes the row and does not read it
        row = it.row
        what = "released" if row.released else f"good for {row.remaining_s:.1f} s by the database's clock"
        facts.append(Fact(f"the lease row, number {row.seq}, was {what}", now - it.row_at))
        facts.append(Fact("nobody was seen to write it since", now - it.unchanged_since))
    if not it.leads:
        facts += [Fact(one.says) for one in it.misfits.sure]
    if it.doubt:
        facts.append(Fact(f"released counts for nothing yet: {it.doubt}"))
    if it.away_since is not None:
        facts.append(Fact(f"the store does not answer: {it.away_why}", now - it.away_since))
    return facts


def _candidates(it: Leadership, now: float) -> list[Considered]:
    reasons = () if it.leads else tuple(_why_not(it, now))
    found = [Considered(_here(it), it.leads, reasons)]
    other = _other(it)
    if other is not None:
        found.append(Considered(_name(other), not it.leads and other.remaining_s > now - it.row_at))
    return found


def _why_not(it: Leadership, now: float) -> list[str]:
    """Why this process does not take the lease now; every reason."""
    why = []
    if now < it.out_until:
        left = it.out_until - now
        why.append("it ends" if left == float("inf") else f"it stays out for {left:.1f} s more: {it.why}")
    if it.working:
        why.append("what it began as the leader has not ended")
    if it.away_since is not None:
        why.append("the store does not answer")
    moment = it.takes_at()
    if moment is None:
        why.append("it has not read the lease yet")
    elif moment[0] > now and not it.held:
        why.append(f"it may take the lease in {moment[0] - now:.1f} s at the earliest: {moment[1].value}")
    return why


def _would_change_it(it: Leadership, now: float) -> list[str]:
    if it.leads:
        return ["llmgw ctl leader resign", f"no renewal for {it.trusted_until - now:.1f} s"]
    if it.away_since is not None:
        return ["the store answers again"]
    moment = it.takes_at()
    if moment is not None and moment[1] is not Right.RELEASED:
        return [
            "the leader gives the lease back",
            f"nobody writes the lease for {max(0.0, moment[0] - now):.1f} s more",
        ]
    return []


def _other(it: Leadership) -> LeaseRow | None:
    """The lease, where another process holds it. What was read of it before this one led says nothing any more."""
    row = it.row
    if row is None or it.leads or it.row_at < it.led_until:
        return None
    return None if row.released or row.holder == it.holder else row


def _here(it: Leadership) -> str:
    return it.addresses.name or "this control plane"


def _name(row: LeaseRow) -> str:
    return row.addresses.name or f"holder {row.holder[:8]}"
