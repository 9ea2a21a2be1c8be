"""A thousand streams at once: all whole; and cut at any moment, nothing of them stays anywhere."""

import random
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest
import trio
from attrs import frozen

from tests.journeys.running import UNADMITTED, Engine, Gateway, House, config_of, values
from tests.journeys.talking import Clients, chat, complete, hang_up, raise_descriptor_limit, read, request

MANY = 1000
TOKENS = 16
POOLED_FOR_S = 6.0
CUT_WITHIN_S = 1.5
SEED = 20_26
HELD_UP = "[probe]\nfailures = 1000\n[relay]\ndial = 30\n"


@pytest.fixture
def engines(home: House) -> list[Engine]:
    raise_descriptor_limit()
    return home.engines(3, slots=200, decode_rate=40, step=0.05)


@pytest.fixture(params=["off", "on"])
def admission(request: pytest.FixtureRequest) -> str:
    """Off: all are in the engines. On: most wait in the gateway, which believes that 32 run in each."""
    return str(request.param)


@pytest.fixture
def gateway(home: House, engines: list[Engine], admission: str) -> Gateway:
    urls = {f"e{n}": engine.url for n, engine in enumerate(engines)}
    return home.gateway(config_of(urls, more=f'[admission]\nmode = "{admission}"\n'))


async def in_flight(gateway: Gateway) -> int:
    samples = await trio.to_thread.run_sync(gateway.metrics)
    return int(sum(values(samples, "llmgw_requests_in_flight")))


async def test_a_thousand_streams_over_three_engines_are_all_whole(
    gateway: Gateway, engines: list[Engine], capsys: pytest.CaptureFixture[str]
):
    clients = Clients(gateway, gateway.make_key())
    bodies = [chat(f"question {n}", stream=True, max_tokens=TOKENS) for n in range(MANY)]
    answers = []
    for engine in engines:
        engine.fault(wedge=True)  # nobody gets a token before everybody is there

    async def ask() -> None:
        answers.extend(await clients.ask_all(bodies))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            while await in_flight(gateway) < MANY:  # noqa: ASYNC110 - a process sets no event for us
                await trio.sleep(0.05)
            began = trio.current_time()
            for engine in engines:
                await trio.to_thread.run_sync(engine.no_faults)
    took = trio.current_time() - began
    assert sum(complete(answer, TOKENS) for answer in answers) == MANY
    assert min(engine.state()["served"] for engine in engines) > MANY / 20  # all three took part
    with capsys.disabled():
        print(f"\n{MANY} streams of {TOKENS} tokens at once: {MANY / took:.0f} requests/s")


class Visitor:
    """A client that goes away at a random moment, and how far it had come by then. Some stay, and must not suffer."""

    def __init__(self, clients: Clients, number: int, chance: random.Random) -> None:
        self.clients = clients
        self.kind = chance.choices(("dialling", "waiting", "streaming", "plain", "staying"), (2, 3, 4, 3, 2))[0]
        self.hard = chance.random() < 0.5
        self.starts_after_s = chance.uniform(0, 0.5)
        self.patience_s = chance.uniform(0, CUT_WITHIN_S)
        self.pieces = chance.randint(1, 8)
        tokens = 3 if self.kind == "staying" else 400
        asked = chat(f"question {number} " * chance.randint(1, 60), stream=self.kind != "plain", max_tokens=tokens)
        self.bytes = request(clients.key, asked)
        self.bytes_sent = chance.randint(1, len(self.bytes)) if self.kind == "dialling" else len(self.bytes)

    async def come_and_go(self, seen: Counter[str]) -> None:
        await trio.sleep(self.starts_after_s)
        stream = await self.clients.connect()
        got = 0
        try:
            await stream.send_all(self.bytes[: self.bytes_sent])
            if self.kind == "streaming":
                while got < self.pieces:
                    assert await stream.receive_some(65536), "ended by itself"
                    got += 1
            elif self.kind == "staying":
                assert complete(await read(stream), 3)
            elif self.kind != "dialling":
                with trio.move_on_after(self.patience_s):
                    got += bool(await stream.receive_some(65536))
        finally:
            hang_up(stream, self.hard)
        seen[self.kind if self.kind != "waiting" or not got else "streaming"] += 1


@frozen
class Footprint:
    """What a gateway holds: descriptors but for idle pooled ones, and tasks."""

    pooled: int
    sockets: int
    others: int
    tasks: int
    connections: int

    @property
    def held(self) -> int:
        return self.sockets - self.pooled

    def within(self, before: "Footprint") -> bool:
        """Polled: an admin connection, or a probe's, may just come or go."""
        return (
            self.held <= before.held
            and self.others <= before.others
            and self.tasks <= before.tasks
            and not self.connections
        )


def footprint(gateway: Gateway) -> Footprint:
    pooled = sum(endpoint["idle_connections"] for endpoint in gateway.endpoints())
    descriptors = gateway.process.descriptors()
    sockets = sum(one.startswith("socket:") for one in descriptors)
    tree = gateway.admin("GET", "/debug/tasks").raise_for_status().text
    return Footprint(
        pooled, sockets, len(descriptors) - sockets, len(tree.splitlines()), tree.count("Door._connection")
    )


def usual_footprint(gateway: Gateway) -> Footprint:
    return sorted((footprint(gateway) for _ in range(9)), key=lambda one: one.held)[4]


COUNTS_WORK = (
    "llmgw_requests_in_flight",
    "llmgw_endpoint_in_flight",
    "llmgw_endpoint_granted",
    "llmgw_queue_depth",
    "llmgw_queue_bytes",
    "llmgw_endpoint_running",
    "llmgw_endpoint_waiting",
    "llmgw_endpoint_kv_usage",
    "llmgw_client_connections",
    "llmgw_bodies_held_bytes",
    "llmgw_usage_rows_waiting",
)


def what_is_left(gateway: Gateway, engines: list[Engine], before: Footprint) -> dict[str, Any]:
    """Everything that should be gone and is not."""
    samples = gateway.metrics()
    left: dict[str, Any] = {name: values(samples, name) for name in COUNTS_WORK if any(values(samples, name))}
    for engine in engines:
        state, blocks = engine.state(), engine.state()["blocks"]  # cached ones are free for whoever needs them
        if state["running"] or state["waiting"] or blocks["free"] + blocks["cached"] != blocks["total"]:
            left[engine.url] = state
    after = footprint(gateway)
    return left if after.within(before) else {**left, "footprint": (before, after)}


async def nothing_stays(gateway: Gateway, engines: list[Engine], before: Footprint, within_s: float = 10.0) -> None:
    look = partial(what_is_left, gateway, engines, before)
    deadline = trio.current_time() + within_s
    while left := await trio.to_thread.run_sync(look):
        if trio.current_time() > deadline:
            raise AssertionError(f"still there after {within_s:g} s: {left}")
        await trio.sleep(0.1)


async def test_a_thousand_clients_that_leave_at_any_moment_leave_nothing_behind(
    gateway: Gateway, engines: list[Engine], admission: str
):
    clients = Clients(gateway, gateway.make_key())
    assert complete(await clients.ask(chat(stream=True, max_tokens=3)), 3)
    before, seen = usual_footprint(gateway), Counter[str]()
    chance = random.Random(SEED)
    for engine in engines:
        engine.fault(wedge=True)
    with trio.fail_after(40):
        async with trio.open_nursery() as nursery:
            for number in range(MANY):
                nursery.start_soon(Visitor(clients, number, chance).come_and_go, seen)
            while seen["waiting"] < MANY / 10:  # noqa: ASYNC110 - so many leave before there is any token
                await trio.sleep(0.01)
            for engine in engines:
                await trio.to_thread.run_sync(engine.no_faults)
    await nothing_stays(gateway, engines, before)
    assert sum(seen.values()) == MANY
    assert min(seen.values()) > MANY / 20, seen  # each kind of leaving took place
    gone = sum(values(gateway.metrics(), "llmgw_requests_total", outcome="client_gone"))
    assert gone > MANY * 0.6
    aborted = sum(engine.state()["aborted"] for engine in engines)
    left_the_queue = sum(values(gateway.metrics(), "llmgw_queue_refusals_total", reason="gone"))
    assert aborted + left_the_queue > MANY * 0.5
    assert (aborted if admission == "off" else left_the_queue) > MANY * 0.2
    await trio.sleep(POOLED_FOR_S)
    pooled = footprint(gateway).pooled
    assert pooled <= 2 * len(engines)  # the probes' own
    answer = await clients.ask(chat(stream=True, max_tokens=3))
    assert complete(answer, 3)


@contextmanager
def nobody_answers() -> Iterator[str]:
    """An address where dials hang: the queue of its listening socket is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as fillers:
        for _ in range(3):
            filler = fillers.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        yield f"http://127.0.0.1:{full.getsockname()[1]}"


async def test_clients_that_leave_while_their_engine_is_dialled_leave_nothing_behind(home: House):
    with nobody_answers() as url:
        # The health checks' dials hang as well, and must not take the endpoint out before we have been there.
        gateway = home.gateway(config_of({"far": url}, more=f"{HELD_UP}{UNADMITTED}"))
        clients, before = Clients(gateway, gateway.make_key()), usual_footprint(gateway)
        with trio.fail_after(20):
            streams = [await clients.connect() for _ in range(100)]
            for number, stream in enumerate(streams):
                await stream.send_all(request(clients.key, chat(stream=bool(number % 2))))
            while sum(values(gateway.metrics(), "llmgw_endpoint_in_flight", endpoint="far")) < 100:  # noqa: ASYNC110
                await trio.sleep(0.02)
            # Each has its dial under way; so do the probes, now and then.
            assert footprint(gateway).held > before.held + 190
            for number, stream in enumerate(streams):
                hang_up(stream, hard=bool(number % 3))
        await nothing_stays(gateway, [], before)
