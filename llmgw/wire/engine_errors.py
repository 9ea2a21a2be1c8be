"""An engine's error body, in any of the shapes engines use, as one value."""

import re
from typing import Any

import msgspec
from attrs import frozen

from llmgw.wire.answers import failure_text

_CONTEXT = re.compile(r"maximum context length|context (window|length|size)|exceed_context_size", re.IGNORECASE)
_MESSAGE_MAX = 4000


@frozen
class EngineError:
    """``message`` is empty when the body had no words fit for a client (HTML, nothing)."""

    message: str
    type: str | None = None
    param: str | None = None
    code: str | None = None


def read_error(body: bytes) -> EngineError:
    """Five shapes and none: OpenAI's, flat (SGLang), a string, FastAPI's ``detail``, Anthropic's, text."""
    try:
        found: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return EngineError("")
    if not isinstance(found, dict):
        return _words(found)
    error = found.get("error", found)
    if not isinstance(error, dict):
        return _words(error)
    message = failure_text(error)[:_MESSAGE_MAX]
    return EngineError(message, _text(error.get("type")), _text(error.get("param")), _code(error, message))


def _words(error: Any) -> EngineError:
    message = failure_text(error)[:_MESSAGE_MAX]
    return EngineError(message, code=_code({}, message))


def _code(error: dict[str, Any], message: str) -> str | None:
    if error.get("type") == "exceed_context_size_error" or _CONTEXT.search(message):
        return "context_length_exceeded"
    code = error.get("code")
    return code if isinstance(code, str) and code else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
