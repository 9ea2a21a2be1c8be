"""What an engine's failing means to the client: one refusal for each way it can fail."""

from collections import Counter
from collections.abc import Iterable

from llmgw.core.outcome import Outcome, Refusal
from llmgw.wire.engine_errors import EngineError, read_error

_BUSY_FOR_S = 1.0
NO_ENDPOINT_FOR_S = 2.0


def of_status(status: int, body: bytes, retry_after: bytes) -> Refusal:
    """An engine's answer other than 2xx, as our client should see it. The words are the engine's where fit."""
    error = read_error(body)
    if status in (401, 403):
        return Refusal(Outcome.ENGINE_DENIED_US, "the engine refused the gateway's own credentials")
    if status in (429, 503):
        return _busy(status, error, retry_after)
    if status == 501:
        return Refusal(Outcome.NOT_SUPPORTED, error.message or "the engine does not support this")
    if status >= 500 or status < 400:
        return Refusal(Outcome.ENGINE_ERROR, _said(status, error))
    return _client_error(status, error)


def retry_after_s(value: bytes) -> float:
    """An engine's Retry-After in seconds, within 1..60; dates and nonsense count as 1."""
    try:
        return min(60.0, max(1.0, float(value)))
    except ValueError:
        return _BUSY_FOR_S


def no_endpoint(model: str, whys: Iterable[str], run_by_agents: bool = False) -> Refusal:
    """No endpoint can take this request: why, without a word of their names."""
    reasons = Counter(why.partition(":")[0] for why in whys)
    nothing = "no replica of it serves" if run_by_agents else "none is configured"
    said = ", ".join(f"{count} {why}" for why, count in reasons.most_common()) or nothing
    return Refusal(
        Outcome.NO_ENDPOINT, f"no endpoint can serve model {model} now ({said})", retry_after_s=NO_ENDPOINT_FOR_S
    )


def timed_out(limit: str, seconds: float, outcome: Outcome) -> Refusal:
    return Refusal(outcome, f"the engine did not answer in time: the {limit} deadline of {seconds:g} s passed")


def _busy(status: int, error: EngineError, retry_after: bytes) -> Refusal:
    wait = retry_after_s(retry_after)
    message = error.message or "the engine is busy"
    if status == 429:
        return Refusal(
            Outcome.ENGINE_BUSY,
            message,
            code="rate_limit_exceeded",
            retry_after_s=wait,
            as_status=429,
            as_type="requests",
        )
    return Refusal(Outcome.ENGINE_BUSY, message, retry_after_s=wait)


def _client_error(status: int, error: EngineError) -> Refusal:
    shown = 400 if status == 422 else status
    message = error.message or f"the engine refused the request with status {status}"
    code = error.code
    if status == 404:
        code = "model_not_found" if error.param == "model" or "model" in message.lower() else "unknown_url"
        message = (
            error.message if error.message != "Not Found" else "the engine of this model does not serve this route"
        )
    return Refusal(Outcome.ENGINE_REFUSED, message, error.param, code or "invalid_value", as_status=shown)


def _said(status: int, error: EngineError) -> str:
    return f"the engine answered {status}" + (f": {error.message}" if error.message else "")
