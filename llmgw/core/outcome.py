"""Every way a request can end: HTTP status, error type and code, metric label, whether waiting helps.

One table. The road, the metrics, the log and the explanation all read it; nothing else invents a status.
Codes and types: OpenAI's error schema (``error.type``, ``error.code``); Anthropic's types by status.
"""

from enum import Enum

from attrs import frozen


@frozen
class End:
    """What one kind of ending means to a client and to an operator."""

    status: int  # what the client sees when nothing was sent yet; 499 is only logged
    type: str  # OpenAI's error.type
    code: str | None  # OpenAI's error.code
    blame: str  # "none", "client", "engine", "gateway": whose fault it is
    retry: bool | None = None  # None: say nothing; False: x-should-retry: false


class Outcome(Enum):
    """The value is the metric label."""

    OK = "ok"
    # The client's own doing.
    CLIENT_GONE = "client_gone"
    BAD_REQUEST = "bad_request"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    MODEL_NOT_FOUND = "model_not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    HEAD_TOO_SLOW = "head_too_slow"
    BODY_TOO_SLOW = "body_too_slow"
    BODY_TOO_LARGE = "body_too_large"
    UNSUPPORTED_ENCODING = "unsupported_encoding"
    UPGRADE_REFUSED = "upgrade_refused"
    RATE_LIMITED = "rate_limited"
    BUDGET_SPENT = "budget_spent"
    ENGINE_REFUSED = "engine_refused"  # the engine's own 4xx, passed on in our shape
    CLIENT_STALLED = "client_stalled"  # it stopped reading
    # The engine's.
    ENGINE_ERROR = "engine_error"
    ENGINE_UNREACHABLE = "engine_unreachable"
    ENGINE_BROKE = "engine_broke"  # reset or truncated
    ENGINE_MALFORMED = "engine_malformed"
    ENGINE_DENIED_US = "engine_denied_us"  # 401, 403: our key is wrong
    ENGINE_BUSY = "engine_busy"  # its own 429 or 503
    ENGINE_FAILED_INSIDE = "engine_failed_inside"  # an error event in its stream
    DIAL_TIMEOUT = "dial_timeout"
    HEADERS_TIMEOUT = "headers_timeout"
    FIRST_TOKEN_TIMEOUT = "first_token_timeout"
    IDLE_TIMEOUT = "idle_timeout"
    TOTAL_TIMEOUT = "total_timeout"
    # Ours.
    NO_ENDPOINT = "no_endpoint"
    QUEUE_FULL = "queue_full"
    WAITED_TOO_LONG = "waited_too_long"
    BODIES_FULL = "bodies_full"
    SHUTTING_DOWN = "shutting_down"
    CANCELLED = "cancelled"  # by an operator
    NOT_SUPPORTED = "not_supported"
    LOOP = "loop"  # an endpoint leads back to this gateway
    INTERNAL = "internal"

    label: str  # of metrics, logs and records: the value, plainly
    end: End  # from the table below

    def __init__(self, label: str) -> None:
        self.label = label

    @property
    def ok(self) -> bool:
        return self is Outcome.OK


_REQUEST = "invalid_request_error"
_SERVER = "server_error"

_ENDS: dict[Outcome, End] = {
    Outcome.OK: End(200, "", None, "none"),
    Outcome.CLIENT_GONE: End(499, _REQUEST, "client_closed_request", "client"),
    Outcome.BAD_REQUEST: End(400, _REQUEST, "invalid_value", "client"),
    Outcome.UNAUTHENTICATED: End(401, _REQUEST, "invalid_api_key", "client"),
    Outcome.FORBIDDEN: End(403, "permission_error", "model_not_allowed", "client"),
    Outcome.NOT_FOUND: End(404, _REQUEST, "unknown_url", "client"),
    Outcome.MODEL_NOT_FOUND: End(404, _REQUEST, "model_not_found", "client"),
    Outcome.METHOD_NOT_ALLOWED: End(405, _REQUEST, "unknown_url", "client"),
    Outcome.HEAD_TOO_SLOW: End(408, _REQUEST, "request_timeout", "client"),
    Outcome.BODY_TOO_SLOW: End(408, _REQUEST, "request_timeout", "client"),
    Outcome.BODY_TOO_LARGE: End(413, _REQUEST, "request_too_large", "client"),
    Outcome.UNSUPPORTED_ENCODING: End(415, _REQUEST, "unsupported_content_encoding", "client"),
    Outcome.UPGRADE_REFUSED: End(426, _REQUEST, "upgrade_required", "client"),
    Outcome.RATE_LIMITED: End(429, "requests", "rate_limit_exceeded", "client"),
    Outcome.BUDGET_SPENT: End(429, "insufficient_quota", "insufficient_quota", "client", retry=False),
    Outcome.ENGINE_REFUSED: End(400, _REQUEST, "invalid_value", "client"),
    Outcome.CLIENT_STALLED: End(499, _REQUEST, "client_stalled", "client"),
    Outcome.ENGINE_ERROR: End(502, _SERVER, "upstream_error", "engine"),
    Outcome.ENGINE_UNREACHABLE: End(502, _SERVER, "upstream_unreachable", "engine"),
    Outcome.ENGINE_BROKE: End(502, _SERVER, "upstream_error", "engine"),
    Outcome.ENGINE_MALFORMED: End(502, _SERVER, "upstream_malformed", "engine"),
    Outcome.ENGINE_DENIED_US: End(502, _SERVER, "upstream_error", "engine"),
    Outcome.ENGINE_BUSY: End(503, _SERVER, "service_unavailable", "engine"),
    Outcome.ENGINE_FAILED_INSIDE: End(502, _SERVER, "upstream_error", "engine"),
    Outcome.DIAL_TIMEOUT: End(504, _SERVER, "upstream_timeout", "engine"),
    Outcome.HEADERS_TIMEOUT: End(504, _SERVER, "upstream_timeout", "engine"),
    Outcome.FIRST_TOKEN_TIMEOUT: End(504, _SERVER, "upstream_timeout", "engine"),
    Outcome.IDLE_TIMEOUT: End(504, _SERVER, "upstream_timeout", "engine"),
    Outcome.TOTAL_TIMEOUT: End(504, _SERVER, "upstream_timeout", "engine"),
    Outcome.NO_ENDPOINT: End(503, _SERVER, "service_unavailable", "gateway"),
    Outcome.QUEUE_FULL: End(503, _SERVER, "service_unavailable", "gateway"),
    Outcome.WAITED_TOO_LONG: End(504, _SERVER, "queue_timeout", "gateway", retry=False),
    Outcome.BODIES_FULL: End(503, _SERVER, "service_unavailable", "gateway"),
    Outcome.SHUTTING_DOWN: End(503, _SERVER, "service_unavailable", "gateway"),
    Outcome.CANCELLED: End(503, _SERVER, "request_cancelled", "gateway", retry=False),
    Outcome.NOT_SUPPORTED: End(501, _SERVER, "not_supported", "gateway", retry=False),
    Outcome.LOOP: End(508, _SERVER, "request_loop", "gateway", retry=False),
    Outcome.INTERNAL: End(500, _SERVER, "internal_error", "gateway"),
}
for _outcome in Outcome:
    _outcome.end = _ENDS[_outcome]

_ANTHROPIC = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def anthropic_type(status: int) -> str:
    """Anthropic's error type for a status; source: anthropic-python ``types/shared/error_type.py``."""
    return _ANTHROPIC.get(status, "invalid_request_error" if status < 500 else "api_error")


@frozen
class Refusal:
    """Why a request goes no further: an outcome with its sentence, as a value."""

    outcome: Outcome
    message: str
    param: str | None = None
    code: str | None = None  # overrides the table's
    retry_after_s: float | None = None
    allow: str = ""  # for 405
    as_status: int | None = None  # an engine's own 4xx keeps its status
    as_type: str | None = None

    @property
    def kept(self) -> str:
        """What may be kept of it, in the log, the record, the breaker: an engine's words may repeat a prompt."""
        code = f" {self.code}" if self.code else ""
        match self.outcome:
            case Outcome.ENGINE_REFUSED:
                return f"the engine refused the request: {self.status}{code}"
            case Outcome.ENGINE_BUSY:
                return f"the engine is busy: {self.status}{code}"
            case Outcome.ENGINE_ERROR | Outcome.NOT_SUPPORTED:
                return self.message.partition(": ")[0] if self.message.startswith("the engine") else "not supported"
            case Outcome.ENGINE_FAILED_INSIDE:
                return "the engine reported an error in its stream"
        return self.message

    @property
    def status(self) -> int:
        return self.as_status or self.outcome.end.status

    @property
    def type(self) -> str:
        return self.as_type or self.outcome.end.type
