"""The request an engine gets: path, headers, body, made anew for each attempt from what the client sent."""

from llmgw.core.fleet import Asked, Engine
from llmgw.core.outcome import Outcome, Refusal
from llmgw.engines.client import Call
from llmgw.engines.live import LiveEndpoint
from llmgw.gateway.exchange import Exchange, Headers, Refused
from llmgw.gateway.passage import Passage
from llmgw.wire import openai

_PASSED = frozenset(
    (b"accept", b"user-agent", b"anthropic-version", b"anthropic-beta", b"openai-beta", b"traceparent", b"tracestate")
)


def early_headers(engine: Engine) -> bool:
    """Whether a stream's head comes before its first token; the others hold it back until they have one."""
    return engine is not Engine.LLAMACPP and engine is not Engine.OPENAI


def call(live: LiveEndpoint, passage: Passage, ask: openai.Ask, asked: Asked, attempt_id: str) -> Call:
    """Raises Refused when the body can't be changed as it must be."""
    endpoint, route = live.endpoint, passage.route
    served = asked.adapter if asked.adapter in endpoint.adapters and asked.adapter else endpoint.engine_name
    try:
        body = openai.for_engine(ask, served, passage.hide_usage and endpoint.inject_usage)
    except openai.Invalid as error:
        raise Refused(Refusal(Outcome.BAD_REQUEST, error.message, error.param, error.code)) from None
    headers = passed_on(passage.exchange.headers, attempt_id, hops(passage.exchange))
    return live.client.post(route.path_at(endpoint.engine), headers, body)


def hops(exchange: Exchange) -> int:
    """How many gateways of our kind a request has passed before this one."""
    said = exchange.first.get(b"x-llmgw-hops", b"")
    return int(said) if said.isdigit() and len(said) < 4 else 0


def passed_on(headers: Headers, attempt_id: str, hops: int = 0) -> bytes:
    """Header lines: an allow-list of the client's, and our own id. Nothing that ``Connection`` names, nothing odd."""
    own = b"content-type: application/json\r\nx-request-id: %b\r\nx-llmgw-hops: %d\r\n"
    lines = [own % (attempt_id.encode("ascii"), hops + 1)]
    named = b""
    for name, value in headers:
        if name == b"connection":
            named += b"," + value.lower().replace(b" ", b"").replace(b"\t", b"")
    for name, value in headers:
        if name in _PASSED and value.isascii() and not (named and name in named.split(b",")):
            lines += (name, b": ", value, b"\r\n")
    return b"".join(lines)
