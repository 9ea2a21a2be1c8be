"""What operators and Prometheus are shown of admission: how full each pool is, and who waits for it."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import isinf
from typing import Any

from llmgw.core.bands import Mode
from llmgw.core.identity import Band
from llmgw.engines.live import Pool
from llmgw.engines.views import pool_saturation_shown, room_json
from llmgw.gateway.admission import Admission, PoolLine
from llmgw.gateway.waits import Waited

NOBODY = "no endpoint is usable"
AT_MOST = "every usable endpoint has as many requests as its max_in_flight lets it have"


def lines_of(admission: Admission, model: str) -> list[PoolLine] | None:
    """The line of the pool that a client means by this name, every line if it is empty; None: nobody answers to it."""
    if not model:
        return admission.pools()
    asked = admission.live.fleet.resolve(model)
    if asked is None:
        return None
    return [here for here in admission.pools() if here.model == asked.model.name]


def no_room(pool: Pool, now: float) -> str:
    """Why a pool has no number for its saturation, or one that does not tell; "" where it does."""
    saturation = pool.saturation(now)
    if saturation is None:
        return NOBODY
    return AT_MOST if isinf(saturation) else ""


def pool_json(admission: Admission, here: PoolLine, now: float) -> dict[str, Any]:
    """Of one pool; a band's ``at_once``: whether a newcomer would go without waiting, whoever else waits: those above
    it would have gone already if there were room for them. Without a usable endpoint nobody goes or waits."""
    pool = admission.live.pool(here.model)
    if pool is None:  # a reload took it while the answer was made
        return {"model": here.model, "why": "removed from the configuration", "bands": [], "endpoints": []}
    saturation, s = pool_saturation_shown(pool, now), pool.saturation(now)
    off = admission.limits.mode != Mode.ON
    return {
        "model": here.model,
        "mode": str(admission.limits.mode),
        "saturation": None if saturation is None else round(saturation, 3),
        "why": no_room(pool, now),
        "waiting": here.line.waiting,
        "usable": sum(one.usable(now) for one in pool.endpoints),
        "bands": [
            {
                "band": band.value,
                "ceiling": one.rule.ceiling,
                "floor": one.rule.floor,
                "ttl_s": one.rule.ttl_s,
                "waiting": one.waiting,
                "at_once": s is not None and (off or s < one.rule.ceiling),
            }
            for band, one in here.line.bands.items()
        ],
        "endpoints": [room_json(one, now) for one in pool.endpoints],
    }


def queues_json(here: PoolLine, now: float) -> list[dict[str, Any]]:
    """Of one pool: each band with its tenants. ``served`` are those that waited and were let through."""
    counted: dict[Band, dict[str, Waited]] = defaultdict(dict)
    lines = {band: one.tenants() for band, one in here.line.bands.items()}
    names = {(band, tenant): here.waits.named(band, tenant) for band, waiting in lines.items() for tenant in waiting}
    for (band, tenant), waited in here.waits.by.items():
        counted[band][tenant] = waited
    shown = []
    for band, one in here.line.bands.items():
        tenants = {name: _tenant(name, waited) for name, waited in counted[band].items()}
        for tenant, (waiting, since, held) in lines[band].items():
            row = tenants[names[(band, tenant)]]
            row["waiting"] += waiting
            row["bytes"] += held
            row["oldest_s"] = max(row["oldest_s"] or 0.0, round(now - since, 3))
        shown.append(_band(here.model, band, one.waiting, one.bytes, tenants, counted[band]))
    return shown


def seats_json(admission: Admission) -> list[dict[str, Any]]:
    """What each band holds of what it may, over all pools."""
    return [
        {
            "band": band.value,
            "waiting": seats.held,
            "seats_max": seats.seats_max,
            "bytes": seats.bytes,
            "bytes_max": seats.bytes_max,
        }
        for band, seats in admission.queues.seats.items()
    ]


def pool_metrics(admission: Admission, now: float) -> Iterator[Mapping[str, Any]]:
    """One mapping a pool, as ``telemetry.queues`` shows them; those of a removed one are gone with it."""
    for here in admission.pools():
        pool = admission.live.pool(here.model)
        assert pool is not None
        refusals: dict[str, dict[str, int]] = defaultdict(dict)
        for (band, reason), count in here.waits.refusals().items():
            refusals[band.value][reason] = count
        waiting: dict[tuple[str, str], int] = defaultdict(int)
        for band, one in here.line.bands.items():
            for tenant, of in one.tenants().items():
                waiting[(band.value, here.waits.named(band, tenant))] += of.waiting
        yield {
            "model": here.model,
            "saturation": pool_saturation_shown(pool, now),
            "depth": {band.value: one.waiting for band, one in here.line.bands.items()},
            "bytes": {band.value: one.bytes for band, one in here.line.bands.items()},
            "waits": {band.value: buckets for band, buckets in here.waits.waits.items()},
            "refusals": refusals,
            "tenants": waiting,
        }


def _tenant(name: str, waited: Waited) -> dict[str, Any]:
    return {"tenant": name, "waiting": 0, "oldest_s": None, "bytes": 0, **_past([waited])}


def _band(
    model: str, band: Band, waiting: int, held: int, tenants: dict[str, dict[str, Any]], counted: dict[str, Waited]
) -> dict[str, Any]:
    """Tenants with most waiting first, then those that were served most."""
    oldest = [row["oldest_s"] for row in tenants.values() if row["oldest_s"] is not None]
    return {
        "model": model,
        "band": band.value,
        "waiting": waiting,
        "oldest_s": max(oldest, default=None),
        "bytes": held,
        **_past(list(counted.values())),
        "tenants": sorted(tenants.values(), key=lambda row: (-row["waiting"], -row["served"], row["tenant"])),
    }


def _past(waited: list[Waited]) -> dict[str, Any]:
    """What became of those who waited; None where nobody was let through yet."""
    served = sum(one.served for one in waited)
    refused: dict[str, int] = defaultdict(int)
    for one in waited:
        for reason, count in one.refused.items():
            refused[reason] += count
    return {
        "served": served,
        "wait_mean_s": round(sum(one.wait_s for one in waited) / served, 3) if served else None,
        "wait_longest_s": round(max(one.longest_s for one in waited), 3) if served else None,
        "refused": refused,
    }
