"""Who may ask the admin listener what: host, origin, content type, token, role.

Host and Origin are checked against lists because a browser on an operator's desk can be made to send
requests here (DNS rebinding, cross-site requests); there are no cookies, and no CORS header is ever sent.
"""

import hmac
import secrets
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeVar

from attrs import frozen
from quart import Response, g, jsonify, request

from llmgw.admin.services import AdminServices, AppSettings
from llmgw.core.identity import Operator, Role

RANK = {Role.VIEWER: 0, Role.OPERATOR: 1, Role.ADMIN: 2}
T = TypeVar("T")
View = Callable[..., Awaitable[Any]]


class Problem(Exception):
    """An answer other than success: status, code, message, what to do next."""

    def __init__(self, status: int, code: str, message: str, hint: str = "", **more: Any) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.hint, self.more = status, code, message, hint, more


def problem_response(problem: Problem) -> Response:
    error = {"message": problem.message, "code": problem.code, "hint": problem.hint, **problem.more}
    response: Response = jsonify({"error": error})
    response.status_code = problem.status
    if problem.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


@frozen
class Gatekeeper:
    services: AdminServices
    settings: AppSettings

    async def before(self) -> Response | None:
        """For every request, before its route is looked at."""
        g.request_id = "adm_" + secrets.token_hex(8)
        try:
            self._host()
            self._origin()
            self._content_type()
        except Problem as problem:
            return problem_response(problem)
        return None

    async def after(self, response: Response) -> Response:
        response.headers["X-Request-Id"] = getattr(g, "request_id", "")
        response.headers["Cache-Control"] = "no-store"
        return response

    def needs(self, role: Role) -> Callable[[View], View]:
        """A view only for operators of at least this role; they are in ``g.operator``."""

        def decorate(view: View) -> View:
            @wraps(view)
            async def guarded(*args: Any, **kwargs: Any) -> Any:
                operator = self.operator()
                if RANK[operator.role] < RANK[role]:
                    raise Problem(
                        403, "role", f"{operator.name} is {operator.role}; this needs {role}", "use another token"
                    )
                g.operator = operator
                return await view(*args, **kwargs)

            return guarded

        return decorate

    def operator(self) -> Operator:
        operator = self.services.tokens.identify(_bearer())
        if operator is None:
            raise Problem(
                401,
                "token",
                "no valid admin token was sent",
                "the first start wrote one to admin.token in the data directory",
            )
        return operator

    def may_scrape(self) -> None:
        """/metrics: open on loopback unless a metrics token is set; else that token or a viewer's."""
        token = self.settings.metrics_token
        if token is None and self.settings.on_loopback:
            return
        if token is not None and hmac.compare_digest(_bearer().encode(), token.reveal().encode()):
            return
        self.operator()

    def _host(self) -> None:
        host = request.headers.get("Host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] if ":" in host else host
        if name not in self.settings.hosts:
            raise Problem(421, "host", f"this listener does not answer for {host[:128]!r}", "see admin.allowed_hosts")

    def _origin(self) -> None:
        origin = request.headers.get("Origin")
        if origin is not None and origin not in self.settings.allowed_origins:
            raise Problem(403, "origin", "requests from web pages are refused", "see admin.allowed_origins")

    def _content_type(self) -> None:
        if request.method in ("POST", "PUT", "PATCH") and request.mimetype != "application/json":
            raise Problem(415, "content_type", "send JSON", "Content-Type: application/json")


def _bearer() -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


async def body(*allowed: str) -> dict[str, Any]:
    """The request's JSON object; a field not in ``allowed`` is refused by name."""
    try:
        found = await request.get_json(silent=False)
    except Exception as error:
        if getattr(error, "code", 400) == 413:
            raise
        raise Problem(400, "json", "the body is not JSON") from None
    if not isinstance(found, dict):
        raise Problem(400, "json", "the body must be a JSON object")
    unknown = sorted(set(found) - set(allowed))
    if unknown:
        raise Problem(400, "field", f"unknown field {unknown[0]!r}", f"known are: {', '.join(allowed)}")
    return found


def number(name: str, default: int, most: int) -> int:
    """A whole number from the query, within 1..most."""
    text = request.args.get(name, str(default))
    if not text.isdigit() or not 1 <= int(text) <= most:
        raise Problem(400, "query", f"{name} must be a whole number from 1 to {most}")
    return int(text)


def flag(name: str) -> bool:
    return request.args.get(name, "").lower() in ("1", "true", "yes")
