"""Which paths are answered: an allow-list, with and without ``/v1``, tolerant of ``//`` and a trailing slash."""

import re
from collections.abc import Callable, Mapping
from enum import Enum, auto
from urllib.parse import unquote

from attrs import frozen

from llmgw.core.fleet import Engine
from llmgw.core.outcome import Outcome, Refusal
from llmgw.wire.answers import ChatReading, MessagesReading, Reading, ResponsesReading
from llmgw.wire.errors import Family

_SLASHES = re.compile("/{2,}")


class Desk(Enum):
    """Answered here, without an engine."""

    ROOT = auto()
    HEALTH = auto()
    READY = auto()
    MODELS = auto()
    MODEL = auto()


@frozen
class Route:
    """One inference route. ``path`` is what engines know it by; no reading: it never streams."""

    name: str
    path: str
    family: Family = Family.OPENAI
    reading: Callable[[], Reading] | None = None
    named_events: bool = False  # its events carry an ``event:`` line
    billable: bool = True
    model_needed: bool = True
    without_v1: frozenset[Engine] = frozenset()  # engines that know it without /v1
    inject_usage: bool = False

    def path_at(self, engine: Engine) -> str:
        return self.path.removeprefix("/v1") if engine in self.without_v1 else self.path

    @property
    def responses(self) -> bool:
        return self.name == "responses"


@frozen
class DeskRoute:
    desk: Desk
    methods: tuple[str, ...] = ("GET", "HEAD")


_BARE = frozenset({Engine.VLLM, Engine.LLAMACPP, Engine.SIM})
_ANTHROPIC = Family.ANTHROPIC
INFERENCE: Mapping[str, Route] = {
    route.name: route
    for route in (
        Route("chat/completions", "/v1/chat/completions", reading=ChatReading, inject_usage=True),
        Route("completions", "/v1/completions", reading=ChatReading, inject_usage=True),
        Route("embeddings", "/v1/embeddings"),
        Route("rerank", "/v1/rerank"),
        Route("score", "/v1/score"),
        Route("tokenize", "/v1/tokenize", billable=False, without_v1=_BARE),
        Route("detokenize", "/v1/detokenize", billable=False, without_v1=_BARE),
        Route("responses", "/v1/responses", reading=ResponsesReading, named_events=True),
        Route("messages", "/v1/messages", _ANTHROPIC, MessagesReading, named_events=True),
        Route("messages/count_tokens", "/v1/messages/count_tokens", _ANTHROPIC, billable=False),
    )
}
_DESKS: Mapping[str, DeskRoute] = {
    "": DeskRoute(Desk.ROOT),
    "health": DeskRoute(Desk.HEALTH),
    "ready": DeskRoute(Desk.READY),
    "models": DeskRoute(Desk.MODELS),
}


@frozen
class Found:
    route: Route | DeskRoute
    family: Family
    rest: str = ""  # the model's name, for models/{id}


def find(method: str, path: str) -> Found | Refusal:
    """The route of a request, or why there is none (404, 405). Raises nothing."""
    inference = _EXACT.get(path)
    if inference is not None and method == "POST":
        return inference
    name, family = name_and_family(path)
    if name in INFERENCE:
        return _allowed(method, ("POST",), Found(INFERENCE[name], family))
    if name in _DESKS:
        return _allowed(method, _DESKS[name].methods, Found(_DESKS[name], family))
    if name.startswith("models/"):
        model = unquote(name.removeprefix("models/"))
        return _allowed(method, ("GET", "HEAD"), Found(DeskRoute(Desk.MODEL), family, model))
    return Refusal(Outcome.NOT_FOUND, f"there is no {method} {_shown(path)} here")


def name_and_family(path: str) -> tuple[str, Family]:
    """A path's route name, and whose error shape it speaks, known or not."""
    name = _SLASHES.sub("/", path).strip("/")
    if name == "v1" or name.startswith("v1/"):
        name = name[3:]
    return name, _ANTHROPIC if name == "messages" or name.startswith("messages/") else Family.OPENAI


def _allowed(method: str, methods: tuple[str, ...], found: Found) -> Found | Refusal:
    if method in methods:
        return found
    allow = ", ".join((*methods, "OPTIONS"))
    return Refusal(Outcome.METHOD_NOT_ALLOWED, f"{method} is not answered here; use {methods[0]}", allow=allow)


def _shown(path: str) -> str:
    return path[:128].encode("ascii", "backslashreplace").decode("ascii")


_EXACT = {route.path: Found(route, route.family) for route in INFERENCE.values()}
