"""Everything a console shows of the cluster, in one answer that is true of one moment."""

from typing import Any

import msgspec
import trio
from quart import Blueprint, Response, g

from llmgw.admin.cluster import NODES_AT_ONCE
from llmgw.admin.gatekeeping import Gatekeeper, encoded
from llmgw.admin.services import AdminServices
from llmgw.control import node_views
from llmgw.core.identity import Role


def add_routes(api: Blueprint, services: AdminServices, keeper: Gatekeeper) -> None:
    cluster = services.cluster

    @api.get("/snapshot")
    @keeper.needs(Role.VIEWER)
    async def snapshot() -> Any:
        """What ``/events`` tells after ``seq`` is news. It is taken first: what happens meanwhile comes twice."""
        told = {
            "seq": _seq(services),
            "at": services.now(),
            "you": {"name": g.operator.name, "role": str(g.operator.role)},
            "status": services.status(),
            "leader": services.leadership.told(),
        }
        whole = {**told, **await _of_the_cluster(services)}
        return Response(msgspec.json.encode(whole), content_type="application/json")

    async def _of_the_cluster(services: AdminServices) -> dict[str, Any]:
        there = cluster.cluster  # of this term, whatever comes
        seen = there.observe()
        await trio.lowlevel.checkpoint()
        drains = [*cluster.targets.drains(seen), *cluster.endpoint_targets.drains()]
        return {
            "hold": seen.hold,
            "models": services.models(seen),
            "drains": await encoded(drains),
            "nodes": await encoded(node_views.nodes_json(there, seen), batch=NODES_AT_ONCE),
            "replicas": await encoded(node_views.replicas_json(there, seen=seen)),
        }


def _seq(services: AdminServices) -> int:
    """Who stands by counts on from what it has read, and tells nothing: its count would run ahead of the leader's."""
    events = services.cluster.events
    return events.last if services.leadership.standby_of() is None else events.newest
