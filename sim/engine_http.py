"""The engine on HTTP: which route does what, as vLLM has them, and what only a simulator has."""

import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import msgspec
import trio
from attrs import define, field

from llmgw.gateway.exchange import Exchange
from sim.answering import Answering
from sim.asked import Ask, Call, JsonObject, Wrong, generation, object_of, prompt_of, required
from sim.chat_template import call_for, chat_prompt, last_user_text, openai_tools
from sim.engine_metrics import CONTENT_TYPE, metrics
from sim.engine_model import Engine, EngineShape
from sim.faults import NO_FAULT, Fault, Faults
from sim.openai_forms import ChatForm, CompletionForm, Form, compact

VERSION = "0.32.0"
_KILLED = 137
_COMPLETION_TOKENS = 16
Route = Callable[["Simulator", Exchange], Awaitable[None]]


def _die() -> None:
    os._exit(_KILLED)


@define(eq=False)
class Simulator:
    """One engine and its faults; ``handle`` is what a door calls."""

    shape: EngineShape
    api_key: str | None = None
    chat_only: bool = False
    die: Callable[[], None] = _die
    wall: Callable[[], float] = time.time
    engine: Engine = field(init=False)
    faults: Faults = field(factory=Faults, init=False)
    on_faults: Callable[[], None] | None = field(default=None, init=False)
    answering: Answering = field(init=False)
    finished: Counter[str] = field(factory=Counter, init=False)
    started_at: float = field(init=False)
    _asked: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.engine = Engine(self.shape)
        self.answering = Answering(self.engine, self.die)
        self.started_at = self.wall()

    async def handle(self, exchange: Exchange) -> None:
        try:
            await self._route(exchange)
        except Wrong as wrong:
            await exchange.answer(wrong.status, wrong.body)

    async def _route(self, exchange: Exchange) -> None:
        path = exchange.path
        methods = ROUTES.get(path)
        if methods is None or (self.chat_only and path not in CHAT_ONLY and not path.startswith("/sim/")):
            await exchange.answer(404, b'{"detail":"Not Found"}')
            return
        route = methods.get("GET" if exchange.method == "HEAD" else exchange.method)
        if route is None:
            allow = ", ".join(methods).encode()
            await exchange.answer(405, b'{"detail":"Method Not Allowed"}', [(b"allow", allow)])
            return
        if path.startswith("/v1") and not self._knows(exchange):
            await exchange.answer(401, b'{"error":"Unauthorized"}')
            return
        await route(self, exchange)

    def _knows(self, exchange: Exchange) -> bool:
        return self.api_key is None or exchange.header(b"authorization") == b"Bearer " + self.api_key.encode()

    async def body(self, exchange: Exchange) -> tuple[JsonObject, Fault] | None:
        """What is asked and what befalls it; None when a fault has answered already."""
        body = await exchange.body()
        fault = self.faults.take(exchange.path)
        if fault.hang:
            await trio.sleep_forever()
        if fault.status is not None:
            await _answer_fault(exchange, fault)
            return None
        return object_of(body), fault

    async def generate(self, exchange: Exchange, ask: Ask, form: Form, fault: Fault) -> None:
        await self.answering.answer(exchange, ask, form, fault)
        self.finished["length" if ask.finish == "length" else "stop"] += 1

    def new_id(self, prefix: str, exchange: Exchange) -> str:
        """vLLM names an answer after the caller's request id, when there is one."""
        given = exchange.header(b"x-request-id")
        self._asked += 1
        return prefix + (given.decode("latin-1") if given else f"{self.shape.seed:08x}{self._asked:08x}")

    def now(self) -> int:
        return int(self.wall())


async def _answer_fault(exchange: Exchange, fault: Fault) -> None:
    status = fault.status or 500
    kind = HTTPStatus(status).phrase.replace(" ", "") if status in set(HTTPStatus) else "Error"
    body = fault.body
    if body is None:
        body = {"error": {"message": "a fault was set", "type": kind, "param": None, "code": status}}
    headers = [(name.lower().encode(), value.encode()) for name, value in fault.headers.items()]
    if isinstance(body, str):
        await exchange.answer(status, body.encode(), headers, content_type=b"text/plain; charset=utf-8")
    else:
        await exchange.answer(status, compact(body), headers)


async def chat(sim: Simulator, exchange: Exchange) -> None:
    if (got := await sim.body(exchange)) is None:
        return
    asked, fault = got
    messages = required(asked, "messages")
    prompt = chat_prompt(messages, asked.get("tools"))
    call = call_for(openai_tools(asked), asked.get("tool_choice"), last_user_text(messages))
    ask = generation(asked, sim.shape, prompt, ("max_completion_tokens", "max_tokens"), None, call)
    form = ChatForm(ask, sim.new_id("chatcmpl-", exchange), sim.now())
    await sim.generate(exchange, ask, form, fault)


async def completions(sim: Simulator, exchange: Exchange) -> None:
    if (got := await sim.body(exchange)) is None:
        return
    asked, fault = got
    prompt = prompt_of(required(asked, "prompt"))
    no_call: Call | None = None
    ask = generation(asked, sim.shape, prompt, ("max_tokens",), _COMPLETION_TOKENS, no_call)
    echo = prompt if asked.get("echo") else b""
    form = CompletionForm(ask, sim.new_id("cmpl-", exchange), sim.now(), echo=echo)
    await sim.generate(exchange, ask, form, fault)


async def models(sim: Simulator, exchange: Exchange) -> None:
    listed = [_model_card(name, sim) for name in sim.shape.models]
    await exchange.answer(200, compact({"object": "list", "data": listed}))


def _model_card(name: str, sim: Simulator) -> JsonObject:
    return {
        "id": name,
        "object": "model",
        "created": int(sim.started_at),
        "owned_by": "vllm",
        "root": name,
        "parent": None,
        "max_model_len": sim.shape.longest,
        "permission": [],
    }


async def health(sim: Simulator, exchange: Exchange) -> None:
    await exchange.answer(sim.faults.take_health(), b"")


async def version(sim: Simulator, exchange: Exchange) -> None:
    await exchange.answer(200, compact({"version": VERSION}))


async def load(sim: Simulator, exchange: Exchange) -> None:
    busy = len(sim.engine.running) + len(sim.engine.waiting)
    await exchange.answer(200, compact({"server_load": busy}))


async def show_metrics(sim: Simulator, exchange: Exchange) -> None:
    text = metrics(sim.engine, sim.shape.models[0], sim.started_at, sim.finished)
    await exchange.answer(200, text, content_type=CONTENT_TYPE)


async def state(sim: Simulator, exchange: Exchange) -> None:
    engine = sim.engine
    blocks = engine.blocks
    held = {"total": blocks.total, "free": blocks.free, "used": blocks.used, "cached": blocks.cached}
    counters = engine.counters
    shown = {
        "blocks": held,
        "running": len(engine.running),
        "waiting": len(engine.waiting),
        "served": counters.served,
        "aborted": counters.aborted,
        "preempted": counters.preempted,
        "generation_tokens": counters.generation_tokens,
    }
    await exchange.answer(200, compact(shown))


async def show_faults(sim: Simulator, exchange: Exchange) -> None:
    await exchange.answer(200, compact({"faults": sim.faults.shown()}))


async def set_faults(sim: Simulator, exchange: Exchange) -> None:
    try:
        sim.faults.set(msgspec.json.decode(await exchange.body()))
    except (ValueError, msgspec.DecodeError) as error:
        raise Wrong(400, str(error)) from error
    await _faults_changed(sim, exchange)


async def clear_faults(sim: Simulator, exchange: Exchange) -> None:
    sim.faults.clear()
    await _faults_changed(sim, exchange)


async def _faults_changed(sim: Simulator, exchange: Exchange) -> None:
    sim.engine.wedged = sim.faults.wedged
    if sim.on_faults is not None:
        sim.on_faults()
    await show_faults(sim, exchange)


CHAT_ONLY = {"/v1/chat/completions"}
ROUTES: dict[str, dict[str, Route]] = {
    "/v1/chat/completions": {"POST": chat},
    "/v1/completions": {"POST": completions},
    "/v1/models": {"GET": models},
    "/health": {"GET": health},
    "/ping": {"GET": health, "POST": health},
    "/version": {"GET": version},
    "/load": {"GET": load},
    "/metrics": {"GET": show_metrics},
    "/sim/state": {"GET": state},
    "/sim/faults": {"GET": show_faults, "POST": set_faults, "DELETE": clear_faults},
}
__all__ = ["NO_FAULT", "ROUTES", "Simulator"]
