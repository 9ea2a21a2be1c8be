"""How full the pools are, who waits for them, and why."""

from collections.abc import Iterable
from typing import Any

import msgspec
import trio
from quart import Blueprint, Response, request

from llmgw.admin.gatekeeping import Gatekeeper, Problem, explanation_json, number
from llmgw.admin.services import AdminServices
from llmgw.control.nearest import meant
from llmgw.core.identity import Role
from llmgw.gateway.aggregate import WINDOW_S
from llmgw.gateway.shadow_report import report
from llmgw.store.accounts import shadows_between

DAY_S = 86400
SINCE_MOST_S = 30 * DAY_S


def unknown(services: AdminServices, model: str) -> Problem:
    hint = meant(model, services.model_names())
    return Problem(404, "not_found", f"no model {model[:128]!r} is configured", hint)


def add_routes(api: Blueprint, services: AdminServices, keeper: Gatekeeper) -> None:
    @api.get("/pools")
    @keeper.needs(Role.VIEWER)
    async def pools() -> Any:
        model = request.args.get("model", "")
        found = services.pools(model)
        if found is None:
            raise unknown(services, model)
        return await _pool_by_pool({}, "pools", ([one] for one in found))

    @api.get("/queues")
    @keeper.needs(Role.VIEWER)
    async def queues() -> Any:
        model = request.args.get("model", "")
        found = services.queues(model)
        if found is None:
            raise unknown(services, model)
        return await _pool_by_pool({"bands": services.seats()}, "queues", found)

    @api.get("/admission/report")
    @keeper.needs(Role.VIEWER)
    async def admission_report() -> Any:
        since_s, model = number("since_s", DAY_S, SINCE_MOST_S), request.args.get("model", "")
        if model:
            found = services.pools(model)
            if found is None:
                raise unknown(services, model)
            model = next(found)["model"]  # its own name, whatever it was called here
        until = services.now()
        stored = await services.store.read(lambda conn: shadows_between(conn, until - since_s - WINDOW_S, until))
        mode, running = services.shadow()
        rows = [row for row in (*stored, *running) if not model or row[0] == model]
        return {"mode": mode, "since_s": since_s, "pools": await trio.to_thread.run_sync(report, rows)}

    @api.get("/explain/queue/<path:model>")
    @keeper.needs(Role.VIEWER)
    async def explain_queue(model: str) -> Any:
        explained = services.explain_queue(model)
        if explained is None:
            raise unknown(services, model)
        return explanation_json(explained)


async def _pool_by_pool(head: dict[str, Any], name: str, found: Iterable[list[dict[str, Any]]]) -> Response:
    """``head`` and a list, made a pool at a time: one may have a thousand tenants, and the loop also relays streams."""
    rows: list[msgspec.Raw] = []
    for some in found:
        rows += [msgspec.Raw(msgspec.json.encode(row)) for row in some]
        await trio.lowlevel.checkpoint()
    return Response(msgspec.json.encode({**head, name: rows}), content_type="application/json")
