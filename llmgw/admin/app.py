"""The admin app: health, metrics, debugging, and the management API under /admin/v1."""

from functools import partial
from typing import Any

import trio
from quart import Response, g, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException

from llmgw.admin import debugging
from llmgw.admin.gatekeeping import Gatekeeper, Problem, problem_response
from llmgw.admin.leadership import not_leading
from llmgw.admin.management import management, of_the_cluster
from llmgw.admin.services import AdminServices, AppSettings, Report
from llmgw.core.identity import Role
from llmgw.core.lease_facts import Addresses
from llmgw.store.errors import StoreUnavailable
from llmgw.store.leader import NotLeading
from llmgw.telemetry.shown import CONTENT_TYPE

BODY_MAX = 8 * 1024 * 1024
BODY_WITHIN_S = 20


def make_app(services: AdminServices, settings: AppSettings) -> QuartTrio:
    app = QuartTrio(__name__)
    app.config["MAX_CONTENT_LENGTH"] = BODY_MAX
    app.config["BODY_TIMEOUT"] = BODY_WITHIN_S
    app.config["RESPONSE_TIMEOUT"] = settings.profile_seconds_max + 30
    app.url_map.strict_slashes = app.url_map.merge_slashes = False  # an answer, never a redirect
    keeper = Gatekeeper(services, settings)
    app.before_request(keeper.before)
    app.after_request(keeper.after)
    app.register_error_handler(Problem, _problem)
    app.register_error_handler(StoreUnavailable, _no_store)
    app.register_error_handler(NotLeading, partial(_not_leading, services))
    app.register_error_handler(HTTPException, _http)
    app.register_error_handler(Exception, partial(_failed, services.report))
    _open_routes(app, services, keeper)
    debugging.add_routes(app, keeper, settings)
    for api in (management(services, keeper), of_the_cluster(services, keeper)):
        app.register_blueprint(api, url_prefix="/admin/v1")
    return app


def _open_routes(app: QuartTrio, services: AdminServices, keeper: Gatekeeper) -> None:
    @app.get("/health")
    async def health() -> Any:
        return {"status": "ok"}

    @app.get("/ready")
    async def ready() -> Any:
        why = services.ready(request.args.get("model"))
        return ({"status": "ready"}, 200) if why is None else ({"status": "not ready", "reason": why}, 503)

    @app.get("/metrics")
    async def metrics() -> Any:
        keeper.may_scrape()
        pieces = []
        for piece in services.metrics_text():
            pieces.append(piece)
            await trio.lowlevel.checkpoint()
        return Response(b"".join(pieces), content_type=CONTENT_TYPE)

    @app.get("/")
    @keeper.needs(Role.VIEWER)
    async def root() -> Any:
        return {"service": "llmgw admin", "api": "/admin/v1"}


async def _problem(problem: Problem) -> Response:
    return problem_response(problem)


async def _no_store(error: StoreUnavailable) -> Response:
    return problem_response(Problem(503, "store_unavailable", str(error)))


async def _not_leading(services: AdminServices, error: NotLeading) -> Response:
    """It led when it was asked, and does not any more, or has to renew its lease first."""
    leader = services.leadership.standby_of() or Addresses()
    return problem_response(not_leading(leader.name, leader.admin))


async def _http(error: HTTPException) -> Response:
    """Quart's own answers (404, 405, 408, 413, …), which it would write in HTML."""
    status = error.code or 500
    if status == 404:
        hint = "the API is /admin/v1/status, /admin/v1/keys, …; clients' /v1/… is on server.listen"
        return problem_response(Problem(404, "not_found", f"the admin API has no {request.path[:128]!r}", hint))
    code = error.name.lower().replace(" ", "_")
    response = problem_response(Problem(status, code, error.description or error.name))
    for name, value in error.get_headers():
        if name == "Allow":
            response.headers[name] = value
    return response


async def _failed(report: Report, error: Exception) -> Response:
    report(f"the admin API failed at {request.method} {request.path[:128]!r}", g.request_id, error)
    return problem_response(
        Problem(500, "internal", f"{type(error).__name__} inside llmgw", f"see the log: {g.request_id}")
    )
