"""One engine, its faults and its counts, as every route sees them."""

import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import trio
from attrs import define, field

from llmgw.gateway.exchange import Exchange
from sim.answering import Answering
from sim.asked import Ask, JsonObject, object_of
from sim.engine_model import Engine, EngineShape
from sim.faults import Fault, Faults
from sim.loading import Loading
from sim.openai_forms import Form, compact

_KILLED = 137


def _die() -> None:
    os._exit(_KILLED)


@define(eq=False)
class Simulator:
    """What there is of one engine, apart from the door in front of it."""

    shape: EngineShape
    die: Callable[[], None] = _die
    wall: Callable[[], float] = time.time
    loading: Loading = field(factory=Loading)
    engine: Engine = field(init=False)
    faults: Faults = field(init=False)
    connections: Callable[[], list[bool]] = field(default=list, init=False)  # of each open one: is it busy?
    on_faults: Callable[[], None] | None = field(default=None, init=False)
    answering: Answering = field(init=False)
    finished: Counter[str] = field(factory=Counter, init=False)
    started_at: float = field(init=False)
    _asked: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.engine = Engine(self.shape)
        self.faults = Faults(self.shape.seed)
        self.answering = Answering(self.engine, self.die)
        self.started_at = self.wall()
        self.loading.on_broken = self.wedge

    def wedge(self) -> None:
        """As it is told, or for good when a shard of its replica has gone."""
        self.engine.wedged = self.faults.wedged or self.loading.broken

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
        if await self.answering.answer(exchange, ask, form, fault):
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


Route = Callable[[Simulator, Exchange], Awaitable[None]]
