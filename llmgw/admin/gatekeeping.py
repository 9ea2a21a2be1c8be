"""Who may ask the admin listener what: host, origin, content type, token, role.

Host and Origin are checked against lists because a browser on an operator's desk can be made to send
requests here (DNS rebinding, cross-site requests); there are no cookies, and no CORS header is ever sent.
"""

import hmac
import json
import math
import re
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from functools import partial, wraps
from itertools import islice
from typing import Any

import msgspec
import trio
from attrs import asdict, frozen
from quart import Response, g, jsonify, request

from llmgw.admin.services import AdminServices, AppSettings
from llmgw.core.explain import Explanation
from llmgw.core.identity import WHY_MAX, Declined, Operator, Role

BATCH = 200
INLINE_MAX = 64 * 1024  # bytes of a body that may hold the loop for a moment
View = Callable[..., Awaitable[Any]]
_PORT = re.compile(r":\d*$")
_WRITES = frozenset({"POST", "PUT", "PATCH"})
_WHOLE = re.compile(r"[0-9]{1,9}", re.ASCII)


# The status of a refusal by its code; every other one is 400.
_STATUS = {
    "not_found": 404,
    **dict.fromkeys(("ambiguous", "duplicate", "no_ca", "over_max", "refused", "too_short", "blocked"), 409),
    **dict.fromkeys(("alone", "not_leading"), 409),
}


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


def done(result: Any) -> Any:
    """What was made; a refusal becomes an answer."""
    if isinstance(result, Declined):
        raise Problem(_STATUS.get(result.code, 400), result.code, result.message, result.hint)
    return result


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
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    def needs(self, role: Role, dry_runs: bool = False) -> Callable[[View], View]:
        """A view only for operators of at least this role; they are in ``g.operator``.

        ``dry_runs``: a body that asks for one is any viewer's.
        """

        def decorate(view: View) -> View:
            @wraps(view)
            async def guarded(*args: Any, **kwargs: Any) -> Any:
                g.operator = operator = self.operator()
                if not operator.role.may(role) and not (dry_runs and await _asks_for_dry_run()):
                    raise Problem(
                        403, "role", f"{operator.name} is {operator.role}; this needs {role}", "use another token"
                    )
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
                "whichever control plane was first on its store wrote one to admin.token in its data directory",
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
        """A page that rebinds its name to our address still sends its name; our own address can't be sent by one."""
        said = request.headers.get("Host", "")
        name = _PORT.sub("", said.lower())
        ours = str((request.scope.get("server") or ("",))[0])
        if name not in self.settings.hosts and (not ours or name not in (ours, f"[{ours}]")):
            raise Problem(421, "host", f"this listener does not answer for {said[:128]!r}", "see admin.allowed_hosts")

    def _origin(self) -> None:
        origin = request.headers.get("Origin")
        if origin is not None and origin not in self.settings.allowed_origins:
            raise Problem(403, "origin", "requests from web pages are refused", "see admin.allowed_origins")

    def _content_type(self) -> None:
        """A page can't send JSON elsewhere without being asked first, which is never answered here."""
        sent = request.mimetype
        if sent != "application/json" and (request.method in _WRITES or (request.method == "DELETE" and sent)):
            raise Problem(415, "content_type", "send JSON", "Content-Type: application/json")


def _bearer() -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


async def _asks_for_dry_run() -> bool:
    try:
        found = msgspec.json.decode(await request.get_data(as_text=False))
    except (msgspec.DecodeError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get("dry_run") is True


async def body(*allowed: str) -> dict[str, Any]:
    """The request's JSON object; a field not in ``allowed`` is refused by name."""
    raw = await request.get_data(as_text=False)
    try:
        found = msgspec.json.decode(raw)
        await _check_members(raw)
    except RecursionError:
        raise Problem(400, "json", "the body is nested too deeply", "write it flatter") from None
    except (msgspec.DecodeError, ValueError) as error:  # ValueError: no UTF-8, or a number of thousands of digits
        raise Problem(400, "json", f"the body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise Problem(400, "json", "the body must be a JSON object")
    unknown = sorted(set(found) - set(allowed))
    if unknown:
        raise Problem(400, "field", f"unknown field {unknown[0][:64]!r}", f"known are: {', '.join(allowed)}")
    return found


async def _check_members(raw: bytes | str) -> None:
    """A member said twice would count with its last value, which may not be the one that was read over."""
    check = partial(json.loads, raw, object_pairs_hook=_each_once)
    if len(raw) > INLINE_MAX:
        await trio.to_thread.run_sync(check)
    else:
        check()


def _each_once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) != len(members):
        name, _ = Counter(name for name, _ in members).most_common(1)[0]
        raise Problem(400, "json", f"{name[:64]!r} stands twice in one object of the body", "say it once")
    return found


def text_in(asked: dict[str, Any], name: str) -> str:
    """A field of a body that is text, and "" where there is none."""
    value = asked.get(name, "")
    if not isinstance(value, str):
        raise Problem(400, "field", f"{name} must be text")
    return value


def why_in(asked: dict[str, Any], name: str = "why") -> str:
    """The reason in a body."""
    return _bounded(text_in(asked, name), name)


def why_asked() -> str:
    """The reason in a query."""
    return _bounded(request.args.get("why", ""), "why")


def _bounded(why: str, name: str) -> str:
    if len(why) > WHY_MAX:
        raise Problem(400, "field", f"{name} has {len(why)} characters, and may have {WHY_MAX}", "say it shorter")
    return why


async def listing(
    name: str, found: Iterable[Any], as_json: Callable[[Any], Any] = lambda one: one, batch: int = BATCH, **more: Any
) -> Response:
    """``{name: [...]}`` and ``more``."""
    rows = await encoded(found, as_json, batch)
    return Response(msgspec.json.encode({name: rows, **more}), content_type="application/json")


async def encoded(
    found: Iterable[Any], as_json: Callable[[Any], Any] = lambda one: one, batch: int = BATCH
) -> msgspec.Raw:
    """A list, made ``batch`` at a time: the loop also relays streams."""
    made, rest = [], iter(found)
    while some := list(islice(rest, batch)):
        made.append(msgspec.json.encode([as_json(one) for one in some])[1:-1])
        await trio.lowlevel.checkpoint()
    return msgspec.Raw(b"[%b]" % b",".join(made))


def explanation_json(explained: Explanation) -> dict[str, Any]:
    return {**asdict(explained), "sentence": str(explained)}


def number(name: str, default: int, most: int, least: int = 1) -> int:
    """A whole number from the query, within least..most."""
    text = request.args.get(name, str(default))
    if not _WHOLE.fullmatch(text) or not least <= int(text) <= most:
        raise Problem(400, "query", f"{name} must be a whole number from {least} to {most}")
    return int(text)


def seconds(name: str, default: float) -> float:
    """A finite number from the query."""
    try:
        value = float(request.args.get(name, default))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise Problem(400, "query", f"{name} must be a number of seconds")
    return value


def flag(name: str) -> bool:
    return request.args.get(name, "").lower() in ("1", "true", "yes")
