"""Control planes on 127.0.0.1 that speak the management API over real sockets, as far as a console asks it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from attrs import define, field

Json = dict[str, Any]
PREFIX = "/admin/v1"
WITHIN_S = 20.0


@define(eq=False)
class Asked:
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any


@define(eq=False)
class Gateway:
    """``other``: who leads, while this one stands by. ``answers``: by path, instead of what it would say."""

    port: int = 0
    cluster: str = "c1"
    token: str = "secret"
    term: str = "0.1"
    leads: bool = True
    other: str = ""
    told: str = ""  # the leader's address, as the leader says it
    beside: str = ""  # that of one who stands by
    nodes: list[Json] = field(factory=list)
    events: list[Json] = field(factory=list)
    most: int = 10_000  # events that are remembered
    answers: dict[str, Callable[[Asked], tuple[int, Any]]] = field(factory=dict)
    asked: list[Asked] = field(factory=list)
    feeds: int = 0  # that are open
    hangs_at: set[str] = field(factory=set)  # paths that are never answered
    _news: asyncio.Event = field(factory=asyncio.Event)
    _runs: asyncio.Event = field(factory=asyncio.Event)
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def last(self) -> int:
        return self.events[-1]["seq"] if self.events else 0

    def tell(self, kind: str = "node.back", subject: str = "node-1", seq: int | None = None) -> Json:
        seq = self.last + 1 if seq is None else seq
        event = {"seq": seq, "at": 1.0, "kind": kind, "subject": subject, "sentence": f"{subject} {seq}", "data": {}}
        self.events.append(event)
        self._wake()
        return event

    def paths(self, path: str) -> list[Asked]:
        return [one for one in self.asked if one.path == path]

    async def start(self) -> None:
        self._runs.set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """As a process that ends: nobody listens, and every connection breaks."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.drop()

    def hang(self) -> None:
        """As a process that was stopped: what is asked is taken, and nothing is answered."""
        self._runs.clear()

    def goes_on(self) -> None:
        self._runs.set()

    def drop(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def demote(self, other: str = "") -> None:
        self.leads, self.other = False, other
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    # -- a connection ------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while (asked := await _request(reader)) is not None:
                self.asked.append(asked)
                await self._runs.wait()
                if asked.path in self.hangs_at:
                    await asyncio.Event().wait()
                if asked.path == "/events" and asked.query.get("follow") and self.leads and self._knows(asked):
                    await self._feed(asked, writer)
                    return
                status, headers, value = self._answer(asked)
                if status == 0:
                    return  # it never answers
                body = value if isinstance(value, bytes) else json.dumps(value).encode()
                head = "".join(f"{name}: {said}\r\n" for name, said in headers.items())
                writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n{head}\r\n".encode() + body)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            return  # whoever asked has left
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _feed(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n: hello\n\n")
        seq = int(asked.headers["last-event-id"])
        self.feeds += 1
        try:
            while self.leads and self._server is not None and not writer.is_closing():
                news, strange = self._news, seq > self.last
                seq = 0 if strange else seq
                kept = self.events[-self.most :]
                lost = max(0, kept[0]["seq"] - 1 - seq) if kept else 0
                if strange or lost:
                    writer.write(b'event: missed\ndata: {"missed": %d, "since": %d}\n\n' % (lost, seq))
                for event in kept:
                    if event["seq"] > seq:
                        writer.write(
                            f"id: {event['seq']}\nevent: {event['kind']}\ndata: {json.dumps(event)}\n\n".encode()
                        )
                        seq = event["seq"]
                seq = max(seq, self.last)
                await writer.drain()
                await news.wait()
        finally:
            self.feeds -= 1

    def _knows(self, asked: Asked) -> bool:
        return asked.headers.get("authorization") == f"Bearer {self.token}"

    # -- what it says ------------------------------------------------------------------------------------

    def _answer(self, asked: Asked) -> tuple[int, Mapping[str, str], Any]:
        if not self._knows(asked):
            return 401, {}, refusal("no valid admin token was sent", "token")
        if asked.path in self.answers:
            status, value = self.answers[asked.path](asked)
            return status, {}, value
        if not self.leads and (asked.method != "GET" or asked.path == "/events"):
            return 421, {}, refusal("this control plane stands by", "not_leading", leader=self.other)
        of_the_leader = asked.path in ("/snapshot", "/nodes")
        age = {"x-llmgw-leader": self.other, "x-llmgw-age": "0.0"} if of_the_leader and not self.leads else {}
        return 200, age, self._said(asked)

    def _said(self, asked: Asked) -> Any:
        match asked.path:
            case "/snapshot":
                return self.snapshot()
            case "/events":
                since, limit = int(asked.query.get("since", 0)), int(asked.query["limit"])
                found = [one for one in self.events[-self.most :] if one["seq"] > since]
                return {"events": found[-limit:], "missed": 0, "last": self.last}
            case "/pools":
                return {"pools": [{"model": "m", "saturation": 0.5}]}
            case "/queues":
                return {"bands": [], "queues": []}
            case "/traffic":
                return {"since": 1.0, "ttft_bounds_s": [1.0], "models": []}
            case "/requests/running" | "/requests":
                return {"requests": [{"id": f"{asked.path} {sorted(asked.query)}", "at": 1.0}]}
        return {"did": f"{asked.method} {asked.path}", "body": asked.body}

    def snapshot(self) -> Json:
        leader = {
            "leader": {"addresses": {"admin": self.told}} if self.told else None,
            "standbys": [{"addresses": {"admin": self.beside}}] if self.beside else None,
        }
        return {
            "seq": self.last, "at": 1.0, "you": {"name": "ann", "role": "operator"}, "hold": "", "leader": leader,
            "status": {"cluster_id": self.cluster, "term": self.term}, "models": [], "nodes": self.nodes,
            "replicas": [], "drains": [],
        }  # fmt: skip


def refusal(message: str, code: str, **more: Any) -> Json:
    return {"error": {"message": message, "code": code, "hint": "", **more}}


async def _request(reader: asyncio.StreamReader) -> Asked | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    except asyncio.IncompleteReadError:
        return None
    method, target, _ = head[0].split()
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    parts = urlsplit(target)
    path = parts.path.removeprefix(PREFIX)
    return Asked(method, path, dict(parse_qsl(parts.query)), headers, json.loads(body) if body else None)


@asynccontextmanager
async def up(*gateways: Gateway) -> AsyncIterator[None]:
    for gateway in gateways:
        await gateway.start()
    try:
        yield
    finally:
        for gateway in gateways:
            await gateway.stop()
