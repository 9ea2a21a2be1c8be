"""The whole request road in memory: a door, a gate, engines that are scripts, and a client.

An engine's script is given one connection and sends exactly the bytes it likes. When a world closes it
must be at rest: nothing in flight, no connection or task left, every engine connection closed or idle in
the pool, every request settled once. So each test that uses a world tests that too.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio.testing
from attrs import define, field

from llmgw.core.bands import AdmissionLimits
from llmgw.core.breaker import BreakerLimits, State
from llmgw.core.fleet import Endpoint, Fallback, Fleet, Model, fleet_of
from llmgw.core.fleet import Engine as Kind
from llmgw.core.identity import KeyRecord, KeyRing, digest, shown
from llmgw.core.retry import RetryBudget
from llmgw.core.scheduling import Weights
from llmgw.engines.client import EngineClient
from llmgw.engines.limits import ClientLimits
from llmgw.engines.live import LiveEndpoint, LiveFleet
from llmgw.gateway.admission import Admission
from llmgw.gateway.aggregate import Aggregates
from llmgw.gateway.desk import FrontDesk
from llmgw.gateway.door import Door, request_ids
from llmgw.gateway.gate import Gate
from llmgw.gateway.limits import DoorLimits, RelayLimits
from llmgw.gateway.record import Record, Records
from llmgw.gateway.request import Road
from llmgw.gateway.settle import Settle
from llmgw.tasks.alarms import Alarms
from llmgw.tasks.memory import MemoryListener, MemoryStream, memory_pair
from llmgw.tasks.streams import Broken
from llmgw.telemetry.metrics import Metrics
from llmgw.wire.http1 import Head, Headers, Response, parse_head

KEY = "sk-a-key-brought-along"
WALL = 1_800_000_000.0
FOR_EVER_S = 20_000.0  # a test that hangs fails by this, in virtual time


@define(eq=False)
class Got:
    """One request as an engine received it."""

    head: Head
    body: bytes

    def header(self, name: bytes) -> list[bytes]:
        return [value for known, value in self.head.headers if known == name]

    def json(self) -> Any:
        return json.loads(self.body)


@define(eq=False)
class Caller:
    """The engine's end of one connection."""

    stream: MemoryStream
    got: list[Got]
    left: trio.Event = field(factory=trio.Event)
    left_at: float | None = None
    _buffer: bytes = b""

    def __attrs_post_init__(self) -> None:
        self.stream.on_hangup = self._hung_up

    def _hung_up(self) -> None:
        self.left_at = trio.current_time()
        self.left.set()

    async def request(self) -> Got | None:
        """The next request; None when the gateway has closed."""
        while b"\r\n\r\n" not in self._buffer:
            data = await self._more()
            if not data:
                return None
            self._buffer += data
        size = self._buffer.index(b"\r\n\r\n") + 4
        head = parse_head(self._buffer[:size], 8192, 100)
        while len(self._buffer) < size + (head.length or 0):
            data = await self._more()
            if not data:
                return None
            self._buffer += data
        end = size + (head.length or 0)
        found = Got(head, self._buffer[size:end])
        self._buffer = self._buffer[end:]
        self.got.append(found)
        return found

    async def send(self, data: bytes) -> None:
        await self.stream.send(data)

    async def _more(self) -> bytes:
        try:
            return await self.stream.receive()
        except Broken:
            return b""


Script = Callable[[Caller], Awaitable[None]]


@define(eq=False)
class Engine:
    """One scripted endpoint. ``refuses`` connections, or makes a dial wait until ``picks_up`` is set."""

    script: Script
    name: str = "a"
    model: str = "m"
    kind: Kind = Kind.VLLM
    options: Mapping[str, Any] = field(factory=dict)  # of its Endpoint
    room: int = 65536
    refuses: bool = False
    picks_up: trio.Event | None = None
    dialled: trio.Event = field(factory=trio.Event)
    got: list[Got] = field(factory=list)
    callers: list[Caller] = field(factory=list)

    def endpoint(self) -> Endpoint:
        return Endpoint(self.name, self.model, f"http://{self.name}", self.kind, **self.options)

    @property
    def open_callers(self) -> int:
        return sum(not caller.left.is_set() and not caller.stream.closed for caller in self.callers)


@define(eq=False)
class Answer:
    """What a client received; ``whole`` says that the framing ended it, ``closed`` that the connection did."""

    response: Response
    raw: bytes
    pieces: list[tuple[float, bytes]]
    closed: bool

    @property
    def status(self) -> int:
        return self.response.status

    @property
    def whole(self) -> bool:
        return self.response.complete

    @property
    def body(self) -> bytes:
        return b"".join(piece for _, piece in self.pieces)

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json()["error"]

    def header(self, name: bytes) -> list[bytes]:
        return [value for known, value in self.response.headers if known == name]

    @property
    def events(self) -> list[bytes]:
        """Each event with its blank line."""
        return [event + b"\n\n" for event in self.body.split(b"\n\n")[:-1]]


@define(eq=False)
class Client:
    """The client's end of one connection; one request after another."""

    stream: MemoryStream
    _rest: bytes = b""
    _pieces: list[tuple[float, bytes]] = field(factory=list)
    _raw: bytearray = field(factory=bytearray)
    _response: Response = field(factory=Response)
    _closed: bool = False

    async def post(self, path: str, body: Any, headers: Headers | None = None, key: str | None = KEY) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = b"".join(b"%b: %b\r\n" % line for line in headers or [])
        if key is not None:
            lines += b"authorization: Bearer %b\r\n" % key.encode()
        await self.stream.send(
            b"POST %b HTTP/1.1\r\nhost: gateway\r\n%bcontent-length: %d\r\n\r\n%b"
            % (path.encode(), lines, len(data), data)
        )

    async def answer(self) -> Answer:
        """The whole answer, or what came of it before the connection ended."""
        while not self._response.complete and await self._read():
            continue
        whole = Answer(self._response, bytes(self._raw), self._pieces, self._closed)
        self._response, self._pieces, self._raw = Response(), [], bytearray()
        return whole

    async def until(self, text: bytes) -> bytes:
        """Read until the body so far contains a text; the body so far."""
        while text not in self.body:
            assert await self._read(), f"the answer ended before {text!r}: {self.body!r}"
        return self.body

    async def head(self) -> Response:
        while not self._response.head_done:
            assert await self._read(), "the connection ended without an answer"
        return self._response

    @property
    def body(self) -> bytes:
        return b"".join(piece for _, piece in self._pieces)

    def leave(self) -> None:
        self.stream.close()

    async def _read(self) -> bool:
        try:
            data = await self.stream.receive()
        except Broken:
            data = b""
        if not data:
            self._closed = True
            self._response.connection_ended()
            return False
        self._raw += data
        self._response.feed(data)
        self._pieces += [(trio.current_time(), piece) for piece in self._response.take()]
        self._closed = self.stream.gone
        return True


@define(eq=False)
class World:
    gate: Gate
    live: LiveFleet
    engines: dict[str, Engine]
    connections: trio.Nursery
    door: Door
    listener: MemoryListener = field(factory=MemoryListener)
    clients: list[Client] = field(factory=list)
    reports: list[tuple[str, BaseException | None]] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.door._common.report = lambda what, _id, error: self.reports.append((what, error))

    @property
    def closed(self) -> list[Record]:
        """Every request's record, in the order they ended."""
        return self.gate.settle.closed  # type: ignore[attr-defined]

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """The usage rows."""
        return self.gate.settle.rows  # type: ignore[attr-defined]

    def client(self, room: int = 65536) -> Client:
        one = Client(self.listener.connect(room))
        self.clients.append(one)
        return one

    async def post(self, path: str, body: Any, headers: Headers | None = None, key: str | None = KEY) -> Answer:
        """One request on a connection of its own, to its end and till it is settled."""
        client = self.client()
        await client.post(path, body, headers, key)
        answer = await client.answer()
        await self.settled()
        return answer

    async def chat(self, stream: bool = True, model: str = "m", **members: Any) -> Answer:
        return await self.post("/v1/chat/completions", chat(stream, model, **members))

    async def send(self, raw: bytes) -> Answer:
        client = self.client()
        await client.stream.send(raw)
        answer = await client.answer()
        await self.settled()
        return answer

    def endpoint(self, name: str = "a") -> LiveEndpoint:
        return next(e for e in self.live if e.id == name)

    def breaker(self, name: str = "a") -> State:
        return self.endpoint(name).breaker.state(trio.current_time())

    @property
    def record(self) -> Record:
        """Of the one request there was, or the last."""
        return self.closed[-1]

    async def settled(self) -> None:
        """Until every request that began has come to its end."""
        await trio.testing.wait_all_tasks_blocked()
        while self.gate.running:  # noqa: ASYNC110 - virtual time
            await trio.sleep(0.01)

    async def at_rest(self) -> None:
        for client in self.clients:
            client.leave()
        await trio.sleep(1.0)
        assert not self.gate.running
        assert self.gate.metrics.in_flight == 0
        assert [(e.in_flight, e.granted) for e in self.live] == [(0, 0)] * len(list(self.live))
        assert self.gate.admission.waiting == 0
        assert [(seats.held, seats.bytes) for seats in self.gate.admission.queues.seats.values()] == [(0, 0)] * 4
        assert not self.door.connections
        assert not self.connections.child_tasks
        assert self.door.bodies.held == 0
        for live in self.live:
            assert self.engines[live.id].open_callers == live.client.idle_connections, "a connection to an engine leaks"
        assert len({record.id for record in self.closed}) == len(self.closed), "a request was settled twice"
        assert [what for what, _ in self.reports] == [], self.reports


def chat(stream: bool = True, model: str = "m", **members: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "hi"}], "stream": stream, **members}


@asynccontextmanager
async def world(
    *engines: Engine,
    limits: RelayLimits | None = None,
    door_limits: DoorLimits | None = None,
    client_limits: ClientLimits | None = None,
    breaker: BreakerLimits | None = None,
    retry_budget: RetryBudget | None = None,
    aliases: Mapping[str, tuple[str, ...]] | None = None,
    fallback: Mapping[str, tuple[Fallback, ...]] | None = None,
    key_models: frozenset[str] = frozenset(),
    ring: KeyRing | None = None,
    admission: AdmissionLimits | None = None,
    cors_origins: frozenset[str] = frozenset({"*"}),
) -> AsyncIterator[World]:
    by_name = {engine.name: engine for engine in engines}
    with trio.fail_after(FOR_EVER_S):
        async with trio.open_nursery() as services, trio.open_nursery() as connections:
            connect = _connect(by_name, services)
            live = LiveFleet(
                lambda endpoint: EngineClient(endpoint, connect, client_limits or ClientLimits()),
                breaker or BreakerLimits(),
            )
            live.apply(fleet_with(engines, aliases, fallback), trio.current_time())
            alarms = Alarms()
            admitting = Admission(live, admission or AdmissionLimits(), alarms)
            budget = retry_budget or RetryBudget(0.2, 10)
            gate = _gate(live, ring or _ring(key_models), limits or RelayLimits(), budget, admitting)
            here = World(gate, live, by_name, connections, _door(gate, alarms, door_limits, cors_origins))
            services.start_soon(alarms.run)
            services.start_soon(here.door.serve, [here.listener], connections)
            yield here
            await here.at_rest()
            services.cancel_scope.cancel()


def _ring(models: frozenset[str]) -> KeyRing:
    record = KeyRecord("key_1", digest(KEY), shown(KEY), "acme", models=models)
    return KeyRing({record.digest: record})


def _wall() -> float:
    return WALL + trio.current_time()


def _gate(live: LiveFleet, ring: KeyRing, limits: RelayLimits, budget: RetryBudget, admission: Admission) -> Gate:
    metrics = Metrics()
    desk = FrontDesk(lambda: live.fleet, lambda model: live.ready(model, trio.current_time()), int(WALL))
    settle = Settled(Records(1000), Aggregates(50), [].append, metrics, None)
    settle.usage_row = settle.rows.append
    return Gate(
        live,
        lambda: live.fleet,
        lambda: ring,
        desk,
        settle,
        metrics,
        limits,
        Weights(),
        budget,
        admission,
        _wall,
        lambda: 0.0,
        None,
    )


def _door(gate: Gate, alarms: Alarms, limits: DoorLimits | None, cors_origins: frozenset[str]) -> Door:
    return Door(
        Road(gate).serve, alarms, limits or DoorLimits(), request_ids(b"\1\2\3\4"),
        cors_origins=cors_origins, refused=gate.refused, wall=_wall,
    )  # fmt: skip


@define(eq=False)
class Settled(Settle):
    """The gate's own settling, with what it settled kept in reach."""

    rows: list[tuple[Any, ...]] = field(factory=list)
    closed: list[Record] = field(factory=list)

    def close(self, story: Any, now: float) -> Record:
        record = super().close(story, now)
        assert self.records.get(record.id) is not None, "a record that can't be found again"
        self.closed.append(record)
        return record


def fleet_with(
    engines: tuple[Engine, ...],
    aliases: Mapping[str, tuple[str, ...]] | None = None,
    fallback: Mapping[str, tuple[Fallback, ...]] | None = None,
) -> Fleet:
    aliases, fallback = aliases or {}, fallback or {}
    names = dict.fromkeys([engine.model for engine in engines] + list(aliases) + list(fallback))
    return fleet_of(
        tuple(
            Model(
                name,
                aliases.get(name, ()),
                fallback.get(name, ()),
                tuple(engine.endpoint() for engine in engines if engine.model == name),
            )
            for name in names
        )
    )


def _connect(engines: dict[str, Engine], services: trio.Nursery) -> Any:
    async def connect(host: str, port: int, tls: object | None = None) -> MemoryStream:
        engine = engines[host]
        await trio.lowlevel.checkpoint()
        engine.dialled.set()
        if engine.refuses:
            raise ConnectionRefusedError("connection refused")
        if engine.picks_up is not None:
            await engine.picks_up.wait()
        near, far = memory_pair(engine.room)
        near.shielded, far.write_stall = False, FOR_EVER_S
        caller = Caller(far, engine.got)
        engine.callers.append(caller)
        services.start_soon(_played, engine.script, caller)
        return near

    return connect


async def _played(script: Script, caller: Caller) -> None:
    try:
        await script(caller)
    except Broken:
        caller.stream.close()  # the gateway left in the middle of a send
