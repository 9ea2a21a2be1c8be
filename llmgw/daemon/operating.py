"""What the admin listener may ask of the process, as plain callables over its parts."""

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import trio

from llmgw import __version__
from llmgw.admin.services import AdminServices, Applied, AppSettings, ClusterServices, LeaderServices
from llmgw.config import describe
from llmgw.config.settings import AdminSettings
from llmgw.config.units import bytes_of
from llmgw.control.acting import Acting
from llmgw.control.explaining import Explaining
from llmgw.control.explaining_drains import ExplainingDrains
from llmgw.control.node_views import models_json
from llmgw.core.explain import Explanation
from llmgw.core.identity import Operator
from llmgw.core.reconcile import Seen
from llmgw.daemon.leading import Leading
from llmgw.daemon.parts import Parts
from llmgw.daemon.reloading import Reloading
from llmgw.engines.views import endpoint_json, model_json
from llmgw.gateway import admission_views, views
from llmgw.gateway.queue_explained import explain_queue
from llmgw.gateway.running import cancel, running
from llmgw.store.desired import Revision
from llmgw.store.face import Store
from llmgw.telemetry.traffic import traffic_json


def app_settings(admin: AdminSettings, host: str, url: str) -> AppSettings:
    """``url``: what others are told to ask; whoever follows it is answered."""
    name = urlsplit(url).hostname or ""
    return AppSettings(
        host,
        frozenset(admin.allowed_hosts) | {f"[{name}]" if ":" in name else name},
        frozenset(admin.allowed_origins),
        admin.metrics_token,
        admin.profile_seconds_max,
    )


def services_of(
    parts: Parts,
    store: Store,
    apply: Callable[..., Awaitable[Applied]],
    cluster: ClusterServices,
    leadership: LeaderServices,
) -> AdminServices:
    live = parts.live

    def request(id: str) -> dict[str, Any] | None:
        record = parts.records.get(id)
        return None if record is None else views.as_json(record)

    def cancel_request(id: str, by: Operator, why: str) -> bool:
        ended = cancel(parts.gate, id)
        if ended:
            parts.log.warning("a request was ended by an operator", request_id=id, by=by.name, why=why)
        return ended

    def explain(id: str) -> Explanation | None:
        record = parts.records.get(id)
        return None if record is None else views.explain(record)

    def requests(wanted: Mapping[str, Any]) -> list[dict[str, Any]]:
        return views.listed(parts.records, **wanted)

    def models(seen: Seen | None = None) -> list[dict[str, Any]]:
        now = trio.current_time()
        return models_json(cluster.cluster, [model_json(live, name, now) for name in live.fleet.models], seen)

    def endpoints() -> list[dict[str, Any]]:
        now = trio.current_time()
        return [endpoint_json(one, now) for one in live]

    def pools(model: str) -> Iterator[dict[str, Any]] | None:
        now, lines = trio.current_time(), admission_views.lines_of(parts.admission, model)
        return None if lines is None else (admission_views.pool_json(parts.admission, one, now) for one in lines)

    def queues(model: str) -> Iterator[list[dict[str, Any]]] | None:
        now, lines = trio.current_time(), admission_views.lines_of(parts.admission, model)
        return None if lines is None else (admission_views.queues_json(one, now) for one in lines)

    return AdminServices(
        keys=parts.keys,
        tokens=parts.tokens,
        store=store,
        metrics_text=parts.metrics.pieces,
        ready=parts.ready,
        model_names=lambda: frozenset(live.fleet.names),
        models=models,
        endpoints=endpoints,
        pools=pools,
        queues=queues,
        seats=lambda: admission_views.seats_json(parts.admission),
        shadow=lambda: (parts.config.admission.mode, parts.shadow.rows()),
        requests=requests,
        request=request,
        traffic=lambda: (parts.started_at, traffic_json(parts.metrics.pairs())),
        running=lambda model, endpoint, limit: running(parts.gate, trio.current_time(), model, endpoint, limit),
        cancel=cancel_request,
        explain_request=explain,
        explain_queue=lambda model: explain_queue(parts.admission, model, trio.current_time()),
        status=lambda: status(parts, store, leadership),
        config=lambda: describe(parts.config),
        apply=apply,
        now=time.time,
        cluster=cluster,
        leadership=leadership,
        report=parts.report,
    )


def cluster_services(leading: Leading, reloading: Reloading, agent_address: Callable[[], str]) -> ClusterServices:
    base = leading.base
    return ClusterServices(
        leading.cluster,
        base.joining,
        base.desired,
        base.events,
        Explaining(leading.cluster, base.store, bytes_of),
        ExplainingDrains(leading.targets, leading.endpoint_targets),
        Acting(base.fenced, leading.cluster, base.events),
        leading.targets,
        leading.endpoint_targets,
        base.store,
        reloading.roll_back,
        revision_json,
        agent_address,
    )


def become(cluster: ClusterServices, leading: Leading) -> None:
    """Another term, or another view of the store: what operators ask from now on is asked of it."""
    base = leading.base
    cluster.cluster, cluster.targets, cluster.endpoint_targets = (
        leading.cluster, leading.targets, leading.endpoint_targets,
    )  # fmt: skip
    cluster.explaining = Explaining(leading.cluster, base.store, bytes_of)
    cluster.explaining_drains = ExplainingDrains(leading.targets, leading.endpoint_targets)
    cluster.acting = Acting(base.fenced, leading.cluster, base.events)


def revision_json(revision: Revision) -> dict[str, Any]:
    """Without what was written: that may hold secrets."""
    names = [str(model.get("name", "")) for model in revision.models]
    return {
        "revision": revision.revision,
        "at": revision.at,
        "who": revision.who,
        "why": revision.why,
        "source": revision.source,
        "models": names,
    }


def status(parts: Parts, store: Store, leadership: LeaderServices) -> dict[str, Any]:
    now, live = trio.current_time(), parts.live
    why, led = parts.ready(None), leadership.told()
    return {
        "version": __version__,
        "cluster_id": store.cluster_id,
        "leads": led["leads"],
        "leader": led["leader"]["who"] if led["leader"] else "",
        "term": led["leader"]["term"] if led["leader"] else "",
        "store_away_s": led["store_away_s"],
        "uptime_s": round(time.time() - parts.started_at, 1),
        "ready": why is None,
        "not_ready_because": why or "",
        "revision": live.fleet.revision,
        "models": len(live.fleet.models),
        "endpoints": len(live.fleet.endpoints),
        "usable_endpoints": sum(one.usable(now) for one in live),
        "in_flight": parts.metrics.in_flight,
        "waiting": parts.admission.waiting,
        "client_connections": len(parts.door.connections),
        "keys": len(parts.keys.ring.by_digest),
        "requests_remembered": len(parts.records),
        "usage_rows_waiting": parts.usage.waiting,
        "usage_rows_dropped": parts.usage.dropped,
        "log_lines_dropped": parts.sink.dropped,
    }
