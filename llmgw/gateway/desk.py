"""What is answered without an engine: the root, health, readiness, the list of models, CORS preflights."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs

import msgspec
from attrs import define

from llmgw import __version__
from llmgw.core.fleet import Asked, Fleet
from llmgw.core.identity import KeyRecord
from llmgw.core.outcome import Outcome, Refusal
from llmgw.gateway.exchange import Exchange

_encode = msgspec.json.Encoder().encode
_METHODS = b"GET, POST, DELETE, OPTIONS"


@define(eq=False)
class FrontDesk:
    fleet: Callable[[], Fleet]
    ready: Callable[[str | None], str | None]  # of a model, or of anything: why not, or None
    started_at: int  # wall clock, seconds: the models' `created`

    async def root(self, exchange: Exchange) -> int:
        return await _json(exchange, 200, {"service": "llmgw", "version": __version__, "api": "/v1"})

    async def health(self, exchange: Exchange) -> int:
        return await _json(exchange, 200, {"status": "ok"})

    async def readiness(self, exchange: Exchange) -> int:
        """``/ready`` and ``/ready?model=M``: has this process somewhere to send a request?"""
        why = self.ready(_wanted(exchange.query))
        if why is None:
            return await _json(exchange, 200, {"status": "ready"})
        return await _json(exchange, 503, {"status": "not ready", "reason": why})

    async def models(self, exchange: Exchange, key: KeyRecord) -> int:
        fleet = self.fleet()
        names = [name for name, asked in fleet.names.items() if may_use(key, name, asked)]
        if exchange.header(b"anthropic-version") is not None:
            listed = [self._anthropic(name) for name in names]
            first, last = (names[0], names[-1]) if names else (None, None)
            return await _json(exchange, 200, {"data": listed, "has_more": False, "first_id": first, "last_id": last})
        return await _json(exchange, 200, {"object": "list", "data": [self._openai(n, fleet.names[n]) for n in names]})

    async def model(self, exchange: Exchange, key: KeyRecord, name: str) -> int | Refusal:
        asked = self.fleet().resolve(name)
        if asked is None or not may_use(key, name, asked):
            return no_such_model(name)
        anthropic = exchange.header(b"anthropic-version") is not None
        return await _json(exchange, 200, self._anthropic(name) if anthropic else self._openai(name, asked))

    def _openai(self, name: str, asked: Asked) -> dict[str, Any]:
        shown: dict[str, Any] = {"id": name, "object": "model", "created": self.started_at, "owned_by": "llmgw"}
        if name != asked.model.name:
            shown["root"] = asked.model.name
        if asked.model.context_max:
            shown["max_model_len"] = asked.model.context_max
        return shown

    def _anthropic(self, name: str) -> dict[str, Any]:
        return {"type": "model", "id": name, "display_name": name, "created_at": _iso(self.started_at)}


def may_use(key: KeyRecord, name: str, asked: Asked) -> bool:
    return key.allows(asked.model.name) or key.allows(name)


def no_such_model(name: str) -> Refusal:
    shown = name[:128].encode("unicode_escape").decode("ascii")
    return Refusal(
        Outcome.MODEL_NOT_FOUND, f"The model `{shown}` does not exist or you do not have access to it.", "model"
    )


def too_long(asked: int, most: int) -> Refusal:
    return Refusal(
        Outcome.BAD_REQUEST, f"max_tokens is {asked}, and this model's context has {most} tokens", "max_tokens",
        "context_length_exceeded",
    )  # fmt: skip


async def preflight(exchange: Exchange) -> int:
    """OPTIONS: no key, 204, what the browser asks for is granted."""
    wanted = exchange.header(b"access-control-request-headers")
    headers = [
        (b"access-control-allow-methods", _METHODS),
        (b"access-control-max-age", b"600"),
        (b"allow", _METHODS),
    ]
    if wanted is not None:
        headers.append((b"access-control-allow-headers", wanted))
    await exchange.answer(204, b"", headers)
    return 204


def _iso(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _wanted(query: str) -> str | None:
    return parse_qs(query).get("model", [None])[0]


async def _json(exchange: Exchange, status: int, value: dict[str, Any]) -> int:
    await exchange.answer(status, _encode(value))
    return status
