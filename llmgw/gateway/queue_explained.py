"""Why do requests wait for a pool, or would they?"""

from collections.abc import Iterator

from llmgw.core.bands import Mode
from llmgw.core.explain import Considered, Explanation, Fact
from llmgw.core.fleet import FallbackOn
from llmgw.core.identity import Band
from llmgw.engines.live import LiveEndpoint, Pool
from llmgw.engines.views import decides, parts_of, pool_saturation_shown, saturation_shown
from llmgw.gateway.admission import Admission, PoolLine
from llmgw.gateway.admission_views import AT_MOST, NOBODY, lines_of, no_room

TENANTS_NAMED = 3
REMEDIES = {
    "load": "requests that end, another endpoint, or a larger capacity where an engine can run more than that",
    "queue": "fewer requests in the engine's own queue: others', or ours while its capacity is believed too large",
    "kv": "KV cache that comes free: shorter requests, or more GPU memory for the engine",
    "max_in_flight": "a larger max_in_flight",
    "silent": "an endpoint whose metrics answer again",
    "busy": "the end of the pause that an engine asked for with its 429 or 503",
}


def explain_queue(admission: Admission, asked: str, now: float) -> Explanation | None:
    """None: nobody answers to this name."""
    lines = lines_of(admission, asked) if asked else None
    if not lines:
        return None
    here = lines[0]
    pool = admission.live.pool(here.model)
    assert pool is not None
    return Explanation(
        subject=f"queue of model {here.model}",
        verdict=_verdict(admission, here, pool, now),
        because=tuple(_facts(here, pool, asked, now)),
        candidates=_candidates(here, pool, now),
        would_change_it=tuple(_would_change(admission, here, pool, now)),
        next_command=_next(here, pool, now),
    )


def _verdict(admission: Admission, here: PoolLine, pool: Pool, now: float) -> str:
    saturation, waiting = pool.saturation(now), _waiting(here)
    if admission.limits.mode == Mode.OFF:
        return "nobody waits: admission is off"
    if admission.limits.mode == Mode.SHADOW:
        return "nobody waits: admission is in shadow, which holds nothing back"
    if saturation is None:
        return f"nobody waits: {NOBODY}, so requests are refused"
    if not waiting:
        held = [band.value for band, one in here.line.bands.items() if saturation >= one.rule.ceiling]
        would = f"; a newcomer of {' or '.join(held)} would wait" if held else ""
        return f"nobody waits: {no_room(pool, now) or f'saturation is {saturation:.2f}'}{would}"
    wait = "1 waits" if here.line.waiting == 1 else f"{here.line.waiting} wait"
    by_band = ", ".join(f"{count} of {band.value}" for band, count in waiting.items())
    return f"{wait} ({by_band}) because {_because(here, pool, saturation, now)}"


def _because(here: PoolLine, pool: Pool, saturation: float, now: float) -> str:
    bands = list(_waiting(here))
    if why := no_room(pool, now):
        return why
    if saturation < here.line.bands[bands[0]].rule.ceiling:
        return f"saturation was higher; at {saturation:.2f} the next goes with the next sample or end of a request"
    ceilings = " and ".join(f"{band.value}'s ceiling {here.line.bands[band].rule.ceiling:g}" for band in bands)
    return f"saturation {saturation:.2f} is not below {ceilings}"


def _waiting(here: PoolLine) -> dict[Band, int]:
    """The bands somebody waits in, the highest first."""
    return {band: one.waiting for band, one in here.line.bands.items() if one.waiting}


def _facts(here: PoolLine, pool: Pool, asked: str, now: float) -> Iterator[Fact]:
    if asked != here.model:
        yield Fact(f"{asked} means {here.model}")
    usable = [one for one in pool.endpoints if one.usable(now)]
    saturation = pool_saturation_shown(pool, now)
    full = f", saturation {saturation:.2f}" if saturation is not None else ""
    yield Fact(f"{len(usable)} of {len(pool.endpoints)} endpoints usable{full}")
    for one in usable:
        yield _endpoint(one, now)
    for band in _waiting(here):
        yield _band(here, band, now)
    for band, waits in here.waits.waits.items():
        if waits.count:
            mean = waits.sum / waits.count
            yield Fact(f"let through after a wait: {waits.count} of {band.value}, {mean:.2f} s on average")
    refusals = here.waits.refusals()
    if refusals:
        said = ", ".join(f"{n} of {band.value} {reason}" for (band, reason), n in sorted(refusals.items()))
        yield Fact(f"waited in vain: {said}")


def _endpoint(live: LiveEndpoint, now: float) -> Fact:
    """What it is full of, and the age of the sample that says so."""
    room, sample = live.room, live.sample
    parts = ", ".join(f"{name} {value:.2f}" for name, value in parts_of(live).items())
    runs = f"runs {live.capacity}" if live.capacity else "capacity"
    ours = f"{live.in_flight} of ours" + (f" and {live.granted} granted" if live.granted else "")
    text = (
        f"{live.id}: saturation {saturation_shown(live, now):.2f} by {decides(live, now)} ({parts});"
        f" {ours}, {room.others} of others, {runs} ({live.known.how})"
    )
    if sample is None:
        return Fact(f"{text}; no sample: {live.sample_why or 'it has none'}")
    said = {"running": sample.running, "waiting": sample.waiting}
    shown = ", ".join(f"{count} {what}" for what, count in said.items() if count is not None)
    kv = f", KV {sample.kv:.0%}" if sample.kv is not None else ""
    return Fact(f"{text}; its sample: {shown}{kv}", now - sample.at)


def _band(here: PoolLine, band: Band, now: float) -> Fact:
    one = here.line.bands[band]
    tenants = one.tenants()
    oldest = now - min(of.since for of in tenants.values())
    most = sorted(tenants.items(), key=lambda item: -item[1].waiting)[:TENANTS_NAMED]
    named = ", ".join(f"{tenant} {of.waiting}" for tenant, of in most)
    more = f" and {len(tenants) - len(most)} more tenants" if len(tenants) > len(most) else ""
    floor = f", floor share {one.rule.floor:.0%}" if one.rule.floor else ""
    wait = "waits" if one.waiting == 1 else "wait"
    return Fact(
        f"{one.waiting} of {band.value} {wait} ({named}{more}), the oldest for {oldest:.1f} s"
        f" of at most {one.rule.ttl_s:g} s; ceiling {one.rule.ceiling:g}{floor}"
    )


def _candidates(here: PoolLine, pool: Pool, now: float) -> tuple[Considered, ...]:
    """Every endpoint and why it has no room; the next goes to the emptiest, if nobody waits."""
    free = [one for one in pool.endpoints if not _lacks(one, now)]
    next_one = pool.emptiest(now) if free and not here.line.waiting else None
    return tuple(
        Considered(
            one.id,
            one is next_one,
            tuple(_lacks(one, now)) or (f"has room: {saturation_shown(one, now):.0%} full",),
            parts_of(one),
        )
        for one in pool.endpoints
    )


def _lacks(live: LiveEndpoint, now: float) -> list[str]:
    """Every reason for which nothing more should go there."""
    why = live.unusable(now)
    if why is not None:
        return [why]
    parts, room, found = live.parts(), live.room, []
    if live.limited:
        found.append(f"{live.load} of ours there, max_in_flight is {live.endpoint.max_in_flight}")
    if parts.load >= 1:
        found.append(f"load: {live.load} of ours and {room.others} of others, it runs {live.capacity}")
    if parts.queue >= 1:
        found.append(
            f"queue: {live.load + room.others} there, it can run {room.runs} now (queue_limit {live.queue_limit:g})"
        )
    if parts.kv >= 1 and live.sample is not None and live.sample.kv is not None:
        found.append(f"kv: {live.sample.kv:.0%} of its cache is taken (kv_limit {live.kv_limit:.0%})")
    if live.silent:
        found.append(f"its metrics stopped coming: {live.sample_why}")
    if now < live.busy_until:
        found.append(f"it answered 429 or 503: full for another {live.busy_until - now:.1f} s")
    return found


def _would_change(admission: Admission, here: PoolLine, pool: Pool, now: float) -> Iterator[str]:
    saturation, waiting = pool.saturation(now), list(_waiting(here))
    if saturation is None:
        yield "an endpoint that is healthy and whose breaker is closed"
        return
    if not waiting:
        return
    if no_room(pool, now) != AT_MOST:
        goes = ", ".join(f"below {here.line.bands[band].rule.ceiling:g} for {band.value}" for band in waiting)
        yield f"saturation {goes}"
    for part in dict.fromkeys(decides(one, now) for one in pool.endpoints if one.usable(now)):
        yield REMEDIES[part]
    if len(waiting) > 1 and not here.line.bands[waiting[-1]].rule.floor:
        yield f"a floor share for {waiting[-1].value}, which goes after the bands above it: admission.floors"
    if not any(FallbackOn.SATURATED in fallback.on for fallback in pool.model.fallback):
        yield f"a fallback on saturated, for whoever has waited {admission.limits.overflow_after:g} s"


def _next(here: PoolLine, pool: Pool, now: float) -> str:
    if pool.saturation(now) is None:
        return f"llmgw ctl endpoints --model {here.model}"
    return f"llmgw ctl queues {here.model} --watch" if here.line.waiting else f"llmgw ctl pools {here.model}"
