"""Taking nodes and endpoints out of service and back, moving and purging replicas: routes of the management API."""

from enum import StrEnum
from typing import Any, TypeVar

from attrs import frozen
from quart import Blueprint, g

from llmgw.admin.cluster import unknown_node
from llmgw.admin.gatekeeping import Gatekeeper, Problem, body, done, explanation_json, listing, why_in
from llmgw.admin.services import AdminServices, ClusterServices
from llmgw.control.endpoint_targets import PREFIX
from llmgw.core.drain import AtDeadline, Target
from llmgw.core.identity import Role

E = TypeVar("E", bound=StrEnum)
NODES_MAX = 64  # of one move
GRACE_MAX_S = 30 * 24 * 3600


@frozen
class Asked:
    target: Target
    reason: str
    grace_s: float | None
    at_deadline: AtDeadline | None
    dry_run: bool


def add_routes(api: Blueprint, services: AdminServices, keeper: Gatekeeper) -> None:
    cluster = services.cluster
    _nodes(api, cluster, keeper)
    _endpoints(api, cluster, keeper)
    _replicas(api, cluster, keeper)


def _nodes(api: Blueprint, cluster: ClusterServices, keeper: Gatekeeper) -> None:
    @api.put("/nodes/<name>/target")
    @keeper.needs(Role.OPERATOR, dry_runs=True)
    async def target(name: str) -> Any:
        a = await _asked()
        return done(
            await cluster.targets.aim(g.operator, name, a.target, a.reason, a.grace_s, a.at_deadline, a.dry_run)
        )

    @api.get("/nodes/<name>/drain")
    @keeper.needs(Role.VIEWER)
    async def drain(name: str) -> Any:
        if name not in cluster.joining.nodes:
            raise unknown_node(cluster, name)
        return {"node": name, "drain": _known(cluster.targets.status(name), name, name)}

    @api.get("/drains")
    @keeper.needs(Role.VIEWER)
    async def drains() -> Any:
        return await listing("drains", [*cluster.targets.drains(), *cluster.endpoint_targets.drains()])

    @api.get("/explain/drain/<path:subject>")
    @keeper.needs(Role.VIEWER)
    async def explain_drain(subject: str) -> Any:
        return explanation_json(done(cluster.explaining_drains.drain(subject)))


def _endpoints(api: Blueprint, cluster: ClusterServices, keeper: Gatekeeper) -> None:
    @api.put("/endpoints/<path:id>/target")
    @keeper.needs(Role.OPERATOR, dry_runs=True)
    async def aim_endpoint(id: str) -> Any:
        a = await _asked()
        return done(
            await cluster.endpoint_targets.aim(g.operator, id, a.target, a.reason, a.grace_s, a.at_deadline, a.dry_run)
        )

    @api.get("/endpoints/<path:id>/drain")
    @keeper.needs(Role.VIEWER)
    async def endpoint_drain(id: str) -> Any:
        status = cluster.endpoint_targets.status(id)
        if status is None:
            done(cluster.endpoint_targets.declined(id, Target.DRAINED))
        return {"endpoint": id, "drain": _known(status, id, PREFIX + id)}


def _replicas(api: Blueprint, cluster: ClusterServices, keeper: Gatekeeper) -> None:
    @api.post("/replicas/<name>/move")
    @keeper.needs(Role.OPERATOR, dry_runs=True)
    async def move(name: str) -> Any:
        asked = await body("to", "reason", "dry_run", "cancel")
        if _flag(asked, "cancel"):
            if asked.get("to") or _flag(asked, "dry_run"):
                raise Problem(400, "field", "cancel takes back a move, and is asked alone")
            return done(await cluster.acting.cancel_move(g.operator, name, why_in(asked, "reason"))), 202
        to = asked.get("to", [])
        if not isinstance(to, list) or len(to) > NODES_MAX or not all(isinstance(one, str) for one in to):
            raise Problem(400, "field", f"to must be a list of at most {NODES_MAX} nodes; without it: any other node")
        why, dry_run = why_in(asked, "reason"), _dry(asked)
        moved = await cluster.acting.move(g.operator, name, to, why, dry_run)
        return done(moved), 202

    @api.post("/replicas/<name>/purge")
    @keeper.needs(Role.OPERATOR)
    async def purge(name: str) -> Any:
        return done(await cluster.acting.purge(g.operator, name, why_in(await body("reason"), "reason")))


async def _asked() -> Asked:
    asked = await body("target", "reason", "grace", "at_deadline", "dry_run")
    wanted = _one_of(asked, "target", Target)
    if wanted is None:
        raise Problem(400, "field", "target is missing", f"write one of {', '.join(Target)}")
    grace = asked.get("grace")
    numeric = isinstance(grace, int | float) and not isinstance(grace, bool)
    if grace is not None and not (numeric and 1 <= grace <= GRACE_MAX_S):
        raise Problem(400, "field", f"grace must be a number of seconds, 1 to {GRACE_MAX_S}")
    if wanted is not Target.DRAINED and (grace is not None or asked.get("at_deadline") is not None):
        raise Problem(400, "field", f"grace and at_deadline are of drains, and {wanted} is none")
    dry_run = _dry(asked)
    if wanted is not Target.DRAINED and dry_run:
        raise Problem(400, "field", f"dry_run is of drains, and {wanted} is none", "it takes effect at once, and back")
    return Asked(wanted, why_in(asked, "reason"), grace, _one_of(asked, "at_deadline", AtDeadline), dry_run)


def _dry(asked: dict[str, Any]) -> bool:
    return _flag(asked, "dry_run")


def _flag(asked: dict[str, Any], name: str) -> bool:
    flag = asked.get(name, False)
    if not isinstance(flag, bool):
        raise Problem(400, "field", f"{name} must be true or false")
    return flag


def _one_of(asked: dict[str, Any], name: str, kind: type[E]) -> E | None:
    said = asked.get(name)
    if said is None:
        return None
    try:
        return kind(said)
    except ValueError:
        raise Problem(400, "field", f"{name} must be one of {', '.join(kind)}") from None


def _known(status: dict[str, Any] | None, name: str, subject: str) -> dict[str, Any]:
    if status is None:
        raise Problem(404, "not_found", f"{name[:128]} is not drained", f"llmgw ctl drain {subject[:128]}")
    return status
