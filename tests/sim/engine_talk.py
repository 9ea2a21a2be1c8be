"""A client for one simulated engine over memory streams, as plain as can be."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from attrs import define, evolve, frozen

from llmgw.tasks.memory import MemoryListener, MemoryStream
from llmgw.tasks.streams import Broken
from sim.serving import EngineSpec, Served, serve_engine


@frozen
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool  # by its own framing
    reset: bool = False  # rather than closed

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """What the `data:` lines carry; `[DONE]` as it is."""
        said = [line[6:] for line in self.body.decode().split("\n") if line.startswith("data: ")]
        return [one if one == "[DONE]" else json.loads(one) for one in said]


@define(eq=False)
class Talk:
    listener: MemoryListener
    served: Served

    async def send(self, method: str, path: str, body: Any = None, **headers: str) -> MemoryStream:
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        head = {"host": "engine", "connection": "close", "content-length": str(len(data)), **headers}
        lines = [f"{method} {path} HTTP/1.1", *(f"{n.replace('_', '-')}: {v}" for n, v in head.items())]
        stream = self.listener.connect()
        await stream.send(("\r\n".join(lines) + "\r\n\r\n").encode() + data)
        return stream

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        stream = await self.send(method, path, body, **headers)
        raw, reset = b"", False
        try:
            while piece := await stream.receive():
                raw += piece
        except Broken:
            reset = True
        stream.close()
        return evolve(answer_of(raw), reset=reset)

    async def post(self, path: str, body: Any, **headers: str) -> Answer:
        return await self.ask("POST", path, body, **headers)

    async def state(self) -> Any:
        return (await self.ask("GET", "/sim/state")).json()


def answer_of(raw: bytes) -> Answer:
    head, _, rest = raw.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    status = int(lines[0].split()[1]) if head else 0
    if headers.get("transfer-encoding") != "chunked":
        return Answer(status, headers, rest, bool(head) and len(rest) == int(headers.get("content-length", len(rest))))
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            return Answer(status, headers, body, True)
        body, rest = body + rest[:length], rest[length + 2 :]
    return Answer(status, headers, body, False)


@asynccontextmanager
async def engine(spec: EngineSpec | None = None) -> AsyncIterator[Talk]:
    listener = MemoryListener()
    async with trio.open_nursery() as nursery:
        served = await nursery.start(serve_engine, spec or EngineSpec(), [listener])
        yield Talk(listener, served)
        nursery.cancel_scope.cancel()


def chat(text: str = "hello", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}
