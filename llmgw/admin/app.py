"""The admin app: health, metrics, debugging, and the management API under /admin/v1."""

from typing import Any

from quart import Response, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException

from llmgw.admin import debugging
from llmgw.admin.gatekeeping import Gatekeeper, Problem, problem_response
from llmgw.admin.management import management
from llmgw.admin.services import AdminServices, AppSettings
from llmgw.core.identity import Role

BODY_MAX = 8 * 1024 * 1024
BODY_WITHIN_S = 20
_TEXT = "text/plain; version=0.0.4; charset=utf-8"


def make_app(services: AdminServices, settings: AppSettings) -> QuartTrio:
    app = QuartTrio(__name__)
    app.config["MAX_CONTENT_LENGTH"] = BODY_MAX
    app.config["BODY_TIMEOUT"] = BODY_WITHIN_S
    app.config["RESPONSE_TIMEOUT"] = settings.profile_seconds_max + 30
    app.url_map.strict_slashes = False
    keeper = Gatekeeper(services, settings)
    app.before_request(keeper.before)
    app.after_request(keeper.after)
    app.register_error_handler(Problem, _problem)
    app.register_error_handler(HTTPException, _http)
    app.register_error_handler(Exception, _failed)
    _open_routes(app, services, keeper)
    debugging.add_routes(app, keeper, settings)
    app.register_blueprint(management(services, keeper), url_prefix="/admin/v1")
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
        return Response(services.metrics_text(), content_type=_TEXT)

    @app.get("/")
    @keeper.needs(Role.VIEWER)
    async def root() -> Any:
        return {"service": "llmgw admin", "api": "/admin/v1"}


async def _problem(problem: Problem) -> Response:
    return problem_response(problem)


async def _http(error: HTTPException) -> Response:
    status = error.code or 500
    response = problem_response(Problem(status, error.name.lower().replace(" ", "_"), error.description or error.name))
    for name, value in error.get_headers():
        if name == "Allow":
            response.headers[name] = value
    return response


async def _failed(error: Exception) -> Response:
    if isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        inner = error.exceptions[0]
        if isinstance(inner, Problem):
            return problem_response(inner)
    return problem_response(Problem(500, "internal", f"{type(error).__name__} inside the gateway", "see the log"))
