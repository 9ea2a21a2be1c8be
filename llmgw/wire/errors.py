"""Error bodies and headers as clients expect them, in the shape of their route's family.

OpenAI: ``{"error": {"message", "type", "param", "code"}}``, all four keys (openapi ``components.schemas.Error``).
Anthropic: ``{"type": "error", "error": {"type", "message"}, "request_id"}``.
"""

from enum import Enum

import msgspec

from llmgw.core.outcome import Refusal, anthropic_type

_encode = msgspec.json.Encoder().encode


class Family(Enum):
    OPENAI = "openai"
    ANTHROPIC = "anthropic"


def error_body(family: Family, refusal: Refusal, request_id: str) -> bytes:
    end = refusal.outcome.end
    return shaped(
        family, refusal.status, refusal.type, refusal.message, refusal.param, refusal.code or end.code, request_id
    )


def shaped(
    family: Family, status: int, type: str, message: str, param: str | None, code: str | None, request_id: str
) -> bytes:
    if family is Family.ANTHROPIC:
        inner = {"type": anthropic_type(status), "message": message}
        return _encode({"type": "error", "error": inner, "request_id": request_id})
    return _encode({"error": {"message": message, "type": type, "param": param, "code": code}})


def error_headers(refusal: Refusal) -> list[tuple[bytes, bytes]]:
    """What tells a client whether to come again, and when: 1..60 s, or never."""
    end = refusal.outcome.end
    headers: list[tuple[bytes, bytes]] = []
    if refusal.retry_after_s is not None:
        headers += retry_after(refusal.retry_after_s)
    elif refusal.status == 503:
        headers.append((b"retry-after", b"1"))
    if end.retry is False:
        headers.append((b"x-should-retry", b"false"))
    return headers + _by_status(refusal)


def retry_after(seconds: float) -> list[tuple[bytes, bytes]]:
    """Whole seconds within 1..60: some clients retry at once on 0, others sleep an hour when told so."""
    whole = min(60, max(1, int(seconds + 0.999)))
    return [(b"retry-after", b"%d" % whole)]


def _by_status(refusal: Refusal) -> list[tuple[bytes, bytes]]:
    match refusal.status:
        case 401:
            return [(b"www-authenticate", b"Bearer")]
        case 405:
            return [(b"allow", refusal.allow.encode("ascii"))]
        case 426:
            return [(b"upgrade", b"HTTP/1.1"), (b"connection", b"upgrade")]  # what is spoken here instead
    return []


def stream_error(family: Family, responses: bool, refusal: Refusal, request_id: str, sequence: int = 0) -> bytes:
    """The event that tells a client of a failure after its 200; nothing follows it (api.md, mid-stream errors)."""
    if responses:
        error = {"code": refusal.code or refusal.outcome.end.code or "server_error", "message": refusal.message}
        response = {"id": request_id, "object": "response", "status": "failed", "error": error}
        event = {"type": "response.failed", "sequence_number": sequence, "response": response}
        return b"event: response.failed\ndata: " + _encode(event) + b"\n\n"
    body = error_body(family, refusal, request_id)
    return (b"event: error\n" if family is Family.ANTHROPIC else b"") + b"data: " + body + b"\n\n"


def is_noticed(family: Family, data: bytes, name: bytes) -> bool:
    """Whether clients notice an engine's own error event as it stands: most ignore a flat one or a string."""
    try:
        event = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return False
    error = event.get("error") if isinstance(event, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return False
    return family is Family.OPENAI or (name == b"error" and event.get("type") == "error")
