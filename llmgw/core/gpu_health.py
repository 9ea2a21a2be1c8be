"""What speaks against a GPU: from errors and readings, with the node's wall time, to evidence.

What is remembered is what happened (``Incident``) and what readings show (``Shown``); evidence follows from
it, from the time and from the boot, so the order in which errors arrive makes no difference. An incident
remembers the boot and the number of resets it happened in, and so a clock that jumps can't clear one.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from attrs import evolve, frozen

from llmgw.core.gpu_reading import RECOVERY_NONE, Reading, Sample
from llmgw.core.gpu_rules import (
    APART_S,
    INSPECTION,
    MISSING,
    NOTE_LASTS_S,
    OTHERS,
    REPEATS,
    REPEATS_WITHIN_S,
    SILENT,
    Clearing,
    rule_of,
    xid_cause,
)
from llmgw.core.gpus import Evidence, Severity

_INCIDENTS_MOST = 32  # of one cause
_CAUSES_MOST = 64
_KNOWN_MOST = 256  # GPUs and slices of a node
_RESETS = frozenset({"GPU reset", "drain and reset", "bus reset", "node reboot", "system reboot"})


@frozen(order=True)
class Incident:
    """Errors of one cause, one close upon another, in one life of the GPU."""

    cause: str
    first_at: float
    last_at: float
    count: int = 1
    boot: str = ""
    resets: int = 0
    cleared: bool = False  # by an operator
    inspected: bool = False  # the hardware was looked at: it is not counted as a repeat any more

    @property
    def life(self) -> tuple[str, str, int, bool, bool]:
        return (self.cause, self.boot, self.resets, self.cleared, self.inspected)


@frozen
class Shown:
    """What readings say since ``first_at``. ``accepted``: an operator knows of so many and wants it used."""

    cause: str
    first_at: float
    last_at: float
    amount: int = 1
    words: str = ""
    accepted: int = 0


@frozen
class Health:
    """What is remembered of one GPU, over restarts of the agent and reboots of the node."""

    uuid: str
    index: int = 0
    model: str = ""
    total_mib: int = 0
    slice_of: str = ""
    resets: int = 0  # that were noticed
    incidents: tuple[Incident, ...] = ()
    shown: tuple[Shown, ...] = ()
    ecc_uncorrected: int | None = None  # these four as last read; their fall tells of a reset
    energy_mj: int | None = None
    remap_pending: bool | None = None
    recovery: str | None = None
    missing_since: float | None = None
    missing_why: str = ""


# -- what happens ------------------------------------------------------------------------------------


def merged(before: Iterable[Health], reading: Reading, now: float, boot: str) -> tuple[Health, ...]:
    """One reading later. A card that is no longer listed is remembered as missing; a slice is not."""
    known = {one.uuid: one for one in before}
    listed = {sample.uuid for sample in reading.gpus}
    for sample in reading.gpus:
        known[sample.uuid] = read(known.get(sample.uuid) or Health(sample.uuid), sample, now)
    # After the samples: an error that came with the first sign of a reset is not cleared by it.
    for xid in reading.xids:
        if xid.uuid in known:
            known[xid.uuid] = heard(known[xid.uuid], xid_cause(xid.code), xid.at, boot)
    for uuid in known.keys() - listed:
        one = known[uuid]
        if one.slice_of in listed:
            del known[uuid]
        else:
            since = now if one.missing_since is None else one.missing_since
            known[uuid] = evolve(one, missing_since=since, missing_why=reading.trouble)
    return tuple(known[uuid] for uuid in sorted(known, key=lambda u: _longest_missing_last(known[u]))[:_KNOWN_MOST])


def heard(health: Health, cause: str, at: float, boot: str) -> Health:
    """An error more."""
    new = Incident(cause, at, at, boot=boot, resets=health.resets)
    if new.cause not in {i.cause for i in health.incidents} and _causes(health) >= _CAUSES_MOST:
        return health
    same = [i for i in health.incidents if i.life == new.life]
    others = [i for i in health.incidents if i.life != new.life]
    return evolve(health, incidents=_bounded([*others, *_joined([*same, new])], cause))


def read(health: Health, sample: Sample, now: float) -> Health:
    """What the driver says of it now."""
    was = {one.cause: one for one in health.shown}
    shown = []
    for cause, amount, words in _says(sample):
        old = was.get(cause) or Shown(cause, now, now)
        shown.append(evolve(old, last_at=now, amount=amount, words=words))
    return evolve(
        health,
        index=sample.index,
        model=sample.model,
        total_mib=health.total_mib if sample.total_mib is None else sample.total_mib,
        slice_of=sample.slice_of,
        resets=health.resets + was_reset(health, sample),
        shown=tuple(shown),
        ecc_uncorrected=_newer(sample.ecc_uncorrected, health.ecc_uncorrected),
        energy_mj=_newer(sample.energy_mj, health.energy_mj),
        remap_pending=health.remap_pending if sample.remap_pending is None else sample.remap_pending,
        recovery=health.recovery if sample.recovery is None else sample.recovery,
        missing_since=None,
        missing_why="",
    )


def was_reset(before: Health, sample: Sample) -> bool:
    """Whether what only a reset or a new start of the driver lowers has fallen."""
    # Some drivers' counter of energy trembles: only a fall to less than half is one.
    return (
        bool(before.remap_pending and sample.remap_pending is False)
        or bool(before.recovery in _RESETS and sample.recovery == RECOVERY_NONE)
        or _fell(before.ecc_uncorrected, sample.ecc_uncorrected)
        or _fell((before.energy_mj or 0) // 2, sample.energy_mj)
    )


def cleared(health: Health, cause: str) -> Health | None:
    """An operator's word; None: the GPU is to be forgotten. A cause that is not there changes nothing."""
    if cause == MISSING:
        return None if health.missing_since is not None else health
    if cause == INSPECTION:
        looked_at = {i.cause for i in repeated(health)}
        incidents = [evolve(i, inspected=True) if i.cause in looked_at else i for i in health.incidents]
        return evolve(health, incidents=tuple(sorted(incidents)))
    incidents = [evolve(i, cleared=True) if i.cause == cause else i for i in health.incidents]
    shown = [evolve(s, accepted=s.amount) if s.cause == cause else s for s in health.shown]
    return evolve(health, incidents=tuple(sorted(incidents)), shown=tuple(shown))


def pruned(health: Health, now: float, boot: str) -> Health:
    """Without what can't become evidence any more."""
    repeats = set(repeated(health))
    kept = (
        i
        for i in health.incidents
        if i in repeats or i.last_at > now - REPEATS_WITHIN_S or (_stands(i, health, boot) and not _aged(i, now))
    )
    return evolve(health, incidents=tuple(kept))


# -- what follows ------------------------------------------------------------------------------------


def evidence(known: Iterable[Health], now: float, boot: str) -> Mapping[str, tuple[Evidence, ...]]:
    """By UUID, what excludes first. What excludes a card excludes its slices."""
    found = {one.uuid: list(_against(one, now, boot)) for one in known}
    for one in known:
        found[one.uuid] += [e for e in found.get(one.slice_of, ()) if e.severity is Severity.EXCLUDED]
    return {uuid: tuple(sorted(all_, key=lambda e: (e.severity, e.cause))) for uuid, all_ in found.items()}


def silence(age_s: float | None, since: float, now: float) -> Evidence:
    """The driver has not answered; ``age_s`` since it last did, None: it never has. ``since``: wall clock."""
    says = "the driver has not answered yet" if age_s is None else f"the driver has not answered for {age_s:.0f} s"
    return Evidence(SILENT, Severity.EXCLUDED, says, since, now, Clearing.ANSWER.value)


def repeated(health: Health) -> Iterator[Incident]:
    """The incidents of each cause that came too often in too short a time."""
    for _, group in groupby(sorted(health.incidents), key=lambda i: i.cause):
        same = [i for i in group if not i.inspected]
        if not same or rule_of(same[0].cause).severity is not Severity.EXCLUDED:
            continue
        for first, last in zip(same, same[REPEATS - 1 :], strict=False):
            if last.last_at - first.first_at <= REPEATS_WITHIN_S:
                yield from same
                break


def _against(health: Health, now: float, boot: str) -> Iterator[Evidence]:
    standing = [i for i in health.incidents if _stands(i, health, boot) and not _aged(i, now)]
    for cause, group in groupby(sorted(standing), key=lambda i: i.cause):
        yield _evidence_of(cause, list(group))
    if repeats := list(repeated(health)):
        kinds = ", ".join(sorted({f"{i.cause} ({rule_of(i.cause).says})" for i in repeats}))
        whole = _evidence_of(INSPECTION, repeats)
        yield evolve(whole, says=f"{kinds} came back {REPEATS} times in 30 days", count=len(repeats))
    for one in health.shown:
        if one.amount > one.accepted:
            yield _shown_evidence(one)
    if health.missing_since is not None:
        rule = OTHERS[MISSING]
        says = f"{rule.says} ({health.missing_why})" if health.missing_why else rule.says
        yield Evidence(MISSING, rule.severity, says, health.missing_since, now, rule.clearing.value)


def _evidence_of(cause: str, incidents: list[Incident]) -> Evidence:
    rule = rule_of(cause)
    first, last = min(i.first_at for i in incidents), max(i.last_at for i in incidents)
    count = sum(i.count for i in incidents)
    return Evidence(cause, rule.severity, rule.says, first, last, rule.clearing.value, count)


def _shown_evidence(one: Shown) -> Evidence:
    rule = rule_of(one.cause)
    says = f"{rule.says}: {one.words}" if one.words else rule.says
    return Evidence(one.cause, rule.severity, says, one.first_at, one.last_at, rule.clearing.value, one.amount)


def _says(sample: Sample) -> Iterator[tuple[str, int, str]]:
    """Cause, amount, words of what a reading shows."""
    if sample.ecc_uncorrected:
        # Newer drivers say themselves whether such an error needs anything done.
        recovered = ", recovered" if sample.recovery == RECOVERY_NONE else ""
        yield f"ecc uncorrected{recovered}", sample.ecc_uncorrected, ""
    if sample.remap_pending:
        yield "row remap pending", 1, ""
    if sample.remap_failed:
        yield "row remap failed", 1, ""
    if sample.recovery not in (None, RECOVERY_NONE):
        yield "recovery asked", 1, str(sample.recovery)
    if sample.slowed:
        yield "slowed", 1, sample.slowed
    if sample.untold:
        yield "untold", 1, ", ".join(f"{what} ({why})" for what, why in sorted(sample.untold.items()))


def _stands(incident: Incident, health: Health, boot: str) -> bool:
    if incident.cleared:
        return False
    match rule_of(incident.cause).clearing:
        case Clearing.RESET:
            return incident.boot == boot and incident.resets == health.resets
        case Clearing.REBOOT:
            return incident.boot == boot
        case _:
            return True


def _aged(incident: Incident, now: float) -> bool:
    return rule_of(incident.cause).clearing is Clearing.AGE and now - incident.last_at >= NOTE_LASTS_S


def _joined(incidents: list[Incident]) -> Iterator[Incident]:
    """Those closer than ``APART_S`` made one, whatever order they came in."""
    whole, *rest = sorted(incidents)
    for one in rest:
        if one.first_at - whole.last_at < APART_S:
            whole = evolve(whole, last_at=max(whole.last_at, one.last_at), count=whole.count + one.count)
        else:
            yield whole
            whole = one
    yield whole


def _bounded(incidents: list[Incident], cause: str) -> tuple[Incident, ...]:
    """The first three stay: they may be what an inspection was asked for."""
    same = sorted(i for i in incidents if i.cause == cause)
    if len(same) > _INCIDENTS_MOST:
        same = same[:REPEATS] + same[REPEATS - _INCIDENTS_MOST :]
    return tuple(sorted([*(i for i in incidents if i.cause != cause), *same]))


def _causes(health: Health) -> int:
    return len({i.cause for i in health.incidents})


def _longest_missing_last(health: Health) -> tuple[bool, float, str]:
    return (health.missing_since is not None, -(health.missing_since or 0.0), health.uuid)


def _fell(before: int | None, now: int | None) -> bool:
    return before is not None and now is not None and now < before


def _newer(new: int | None, old: int | None) -> int | None:
    return old if new is None else new
