"""What an operator and Prometheus are shown of endpoints and models."""

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

import trio

from llmgw.core.breaker import State
from llmgw.engines.live import LiveEndpoint, LiveFleet, Pool

_BREAKER = {State.CLOSED: 0, State.HALF_OPEN: 1, State.OPEN: 2}


def endpoint_json(live: LiveEndpoint, now: float) -> dict[str, Any]:
    sample = live.sample
    why = live.unusable(now)
    return {
        "id": live.id,
        "model": live.endpoint.model,
        "url": live.endpoint.url,
        "engine": live.endpoint.engine.value,
        "served_as": live.endpoint.engine_name,
        "state": "leaving" if live.leaving else "usable" if why is None else "unusable",
        "why": why or "",
        "health": "unknown" if live.healthy is None else "healthy" if live.healthy else "unhealthy",
        "health_why": live.health_why,
        "health_age_s": _age(live.health_at, now),
        "breaker": live.breaker.state(now).value,
        "in_flight": live.in_flight,
        "served": live.served,
        "capacity": live.capacity,
        "saturation": round(saturation_shown(live, now), 3),
        "running": sample.running if sample else None,
        "waiting": sample.waiting if sample else None,
        "kv": sample.kv if sample else None,
        "sample_age_s": _age(sample.at, now) if sample else None,
        "sample_why": live.sample_why,
        "adapters": sorted(live.endpoint.adapters),
        "idle_connections": live.client.idle_connections,
    }


def model_json(fleet: LiveFleet, name: str, now: float) -> dict[str, Any]:
    pool = fleet.pool(name)
    assert pool is not None
    usable = [e for e in pool.endpoints if e.usable(now)]
    return {
        "name": name,
        "aliases": list(pool.model.aliases),
        "fallback": [{"model": f.model, "on": sorted(reason.value for reason in f.on)} for f in pool.model.fallback],
        "endpoints": len(pool.endpoints),
        "usable": len(usable),
        "in_flight": sum(e.in_flight for e in pool.endpoints),
        "saturation": None if (s := pool_saturation_shown(pool, now)) is None else round(s, 3),
        "context_max": pool.model.context_max,
    }


def room_json(live: LiveEndpoint, now: float) -> dict[str, Any]:
    """How full it is, and everything that was reckoned with."""
    sample, room, why = live.sample, live.room, live.unusable(now)
    return {
        "id": live.id,
        "usable": why is None,
        "why": why or "",
        "saturation": round(saturation_shown(live, now), 3),
        "parts": {name: round(value, 3) for name, value in parts_of(live).items()},
        "decides": decides(live, now) if why is None else "",
        "in_flight": live.in_flight,
        "granted": live.granted,
        "max_in_flight": live.endpoint.max_in_flight,
        "others": room.others,
        "may_run": room.runs,
        "capacity": live.capacity,
        "capacity_how": live.known.how,
        "running": sample.running if sample else None,
        "waiting": sample.waiting if sample else None,
        "kv": sample.kv if sample else None,
        "sample_age_s": _age(sample.at, now) if sample else None,
        "sample_why": live.sample_why,
        "busy_for_s": round(live.busy_until - now, 3) if live.busy_until > now else None,
    }


def parts_of(live: LiveEndpoint) -> dict[str, float]:
    parts = live.parts()
    return {"load": parts.load, "queue": parts.queue, "kv": parts.kv}


def decides(live: LiveEndpoint, now: float) -> str:
    """What makes it as full as it is: a part of its saturation, or what counts as full whatever those say."""
    if live.limited:
        return "max_in_flight"
    if live.parts().saturation < 1:
        if live.silent:
            return "silent"
        if now < live.busy_until:
            return "busy"
    return live.parts().fullest


def saturation_shown(live: LiveEndpoint, now: float) -> float:
    """A number that JSON and graphs can hold: an endpoint with its ``max_in_flight`` is full beyond any number."""
    s = live.saturation(now)
    return s if isfinite(s) else max(1.0, live.parts().saturation)


def pool_saturation_shown(pool: Pool, now: float) -> float | None:
    """None: no endpoint is usable."""
    s = pool.saturation(now)
    if s is None or isfinite(s):
        return s
    return min(saturation_shown(one, now) for one in pool.endpoints if one.usable(now))


def endpoint_metrics(fleet: LiveFleet) -> Iterator[Mapping[str, Any]]:
    """One mapping an endpoint, as ``telemetry.metrics`` shows them; those of a removed one are gone with it."""
    now = trio.current_time()
    for live, in_flight in _by_name(fleet):
        sample, counts = live.sample, live.client.counts
        yield {
            "endpoint": live.id,
            "model": live.endpoint.model,
            "parts": parts_of(live),
            "values": {
                "usable": ("gauge", "1 if it may be sent requests", live.usable(now)),
                "healthy": ("gauge", "1 healthy, 0 not, absent: nobody knows", live.healthy),
                "leaving": ("gauge", "1 once removed, until its last request ends", live.leaving),
                "breaker": ("gauge", "0 closed, 1 half open, 2 open", _BREAKER[live.breaker.state(now)]),
                "in_flight": ("gauge", "requests of ours there", in_flight),
                "granted": ("gauge", "admitted and on their way to an endpoint", live.granted),
                "saturation": ("gauge", "1 is full", saturation_shown(live, now)),
                "capacity": ("gauge", "requests it runs at once", live.capacity),
                "running": ("gauge", "as it says itself", sample.running if sample else None),
                "waiting": ("gauge", "as it says itself", sample.waiting if sample else None),
                "kv_usage": ("gauge", "share of KV cache in use", sample.kv if sample else None),
                "sample_age_seconds": ("gauge", "since its metrics were read", now - sample.at if sample else None),
                "idle_connections": ("gauge", "connections kept for the next request", live.client.idle_connections),
                "attempts": ("counter", "requests sent there", live.served),
                "dials": ("counter", "connections made", counts.dials),
                "dial_failures": ("counter", "connections that could not be made", counts.failures),
                "dial_seconds": ("counter", "time spent waiting for connections", counts.dial_s),
                "reused_connections": ("counter", "requests on a connection that was there", counts.reuses),
                "replays": ("counter", "requests sent again as an idle connection had died", counts.replays),
            },
        }


def _by_name(fleet: LiveFleet) -> Iterator[tuple[LiveEndpoint, int]]:
    """Each name once, with all its requests: one that left may have a namesake, and a series may not come twice."""
    found: dict[tuple[str, str], tuple[LiveEndpoint, int]] = {}
    for live in fleet:  # those of the fleet come before those that leave
        name = (live.id, live.endpoint.model)
        first, in_flight = found.get(name, (live, 0))
        found[name] = (first, in_flight + live.in_flight)
    yield from found.values()


def _age(at: float | None, now: float) -> float | None:
    return None if at is None else round(now - at, 3)
