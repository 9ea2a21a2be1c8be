"""Who leads, and what only the leader may be asked: on a standby that is refused, or answered with its age."""

from typing import Any

from quart import Blueprint, Response, g, request

from llmgw.admin.gatekeeping import Gatekeeper, Problem, body, done, explanation_json, why_in
from llmgw.admin.services import AdminServices
from llmgw.core.identity import Role

NOT_LEADING = "not_leading"
LEADER, AGE = "X-Llmgw-Leader", "X-Llmgw-Age"
FEED = "/events"  # it would tell nothing on a standby, which hears nothing


def of_the_leader(services: AdminServices, keeper: Gatekeeper) -> Blueprint:
    """For routes about the cluster. A standby reads them from the store and says how long ago; it changes nothing."""
    api = Blueprint("cluster", __name__)
    leadership = services.leadership

    @api.before_request
    async def ask_the_leader() -> None:
        leader = leadership.standby_of()
        if leader is None:
            return
        keeper.operator()  # who leads where is for operators
        if request.method != "GET" or request.path.endswith(FEED):
            raise not_leading(leader.name, leader.admin)
        g.leader, g.age_s = leader.admin, await leadership.refresh()

    @api.after_request
    async def say_how_old(response: Response) -> Response:
        if hasattr(g, "age_s"):
            response.headers[LEADER], response.headers[AGE] = g.leader, f"{g.age_s:.1f}"
        return response

    return api


def not_leading(name: str, admin: str) -> Problem:
    if not name and not admin:
        return Problem(421, NOT_LEADING, "this control plane stands by, and nobody leads", "ask again soon", leader="")
    told = f"this control plane stands by; {name or admin} leads"
    hint = f"ask {admin}" if admin else "set admin.advertise on the leader, or ask it by its own address"
    return Problem(421, NOT_LEADING, told, hint, leader=admin)


def add_routes(api: Blueprint, services: AdminServices, keeper: Gatekeeper) -> None:
    leadership = services.leadership

    @api.get("/leader")
    @keeper.needs(Role.VIEWER)
    async def leader() -> Any:
        return leadership.told()

    @api.get("/explain/leader")
    @keeper.needs(Role.VIEWER)
    async def explain_leader() -> Any:
        return explanation_json(leadership.explain())

    @api.post("/leader/resign")
    @keeper.needs(Role.OPERATOR)
    async def resign() -> Any:
        why = why_in(await body("why"))
        standby_of = leadership.standby_of()
        if standby_of is not None:
            raise not_leading(standby_of.name, standby_of.admin)
        return done(await leadership.resign(g.operator, why)), 202
