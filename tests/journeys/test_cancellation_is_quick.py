"""From client gone to engine closed: under a second for 99 of 100, by our own metric and by the engine's clock."""

import json
import random
from contextlib import suppress
from typing import Any

import pytest
import trio
from attrs import define, field

from tests.journeys.running import UNADMITTED, House, config_of, values
from tests.journeys.talking import Clients, chat, hang_up, raise_descriptor_limit, request

MANY = 1000
WITHIN_S = 1.0
LEAVE_WITHIN_S = 4.0
EVENT_EVERY_S = 0.25
_EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@define(eq=False)
class Watching:
    """An engine that never ends an answer, and notes when each of its callers has left; and when the clients did."""

    chance: random.Random
    begun: set[int] = field(factory=set, init=False)
    closed_at: dict[int, float] = field(factory=dict, init=False)
    left_at: dict[int, float] = field(factory=dict, init=False)

    async def serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            while (asked := await self._request(stream)) is None:
                await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            if asked:
                await self._answer(stream, asked)

    async def _request(self, stream: trio.SocketStream) -> Any:
        """A generation's body; None for anything else; empty once the caller has left."""
        raw = b""
        while b"\r\n\r\n" not in raw:
            piece = await stream.receive_some(65536)
            if not piece:
                return {}
            raw += piece
        head, _, body = raw.partition(b"\r\n\r\n")
        if not head.startswith(b"POST"):
            return None
        size = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        while len(body) < size:
            body += await stream.receive_some(65536)
        return json.loads(body)

    async def _answer(self, stream: trio.SocketStream, asked: Any) -> None:
        self.begun.add(int(asked["user"]))
        first_at = trio.current_time() + (self.chance.uniform(0, 3) if asked["stream"] else 3600)
        head = _HEAD
        with suppress(trio.BrokenResourceError):  # a reset: it has left as well
            while await self._stays(stream, EVENT_EVERY_S * self.chance.uniform(0.5, 1.5)):
                if trio.current_time() >= first_at:
                    await stream.send_all(head + b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT))
                    head = b""
        self.closed_at[int(asked["user"])] = trio.current_time()

    async def _stays(self, stream: trio.SocketStream, seconds: float) -> bool:
        with trio.move_on_after(seconds):
            return bool(await stream.receive_some(1))
        return True

    async def leave(self, clients: Clients, number: int) -> None:
        asked = chat(stream=number % 4 != 0, user=str(number))
        stream = await clients.connect()
        await stream.send_all(request(clients.key, asked))
        with trio.move_on_after(self.chance.uniform(0.1, LEAVE_WITHIN_S)):
            while await stream.receive_some(65536):
                continue
        self.left_at[number] = trio.current_time()
        hang_up(stream, hard=self.chance.random() < 0.5)

    def latencies(self) -> list[float]:
        """Of those it came to know of; a client may leave before its request goes on."""
        return sorted(self.closed_at[number] - self.left_at[number] for number in self.begun)


@pytest.mark.slow
async def test_the_engine_is_closed_within_a_second_of_the_clients_leaving(
    home: House, capsys: pytest.CaptureFixture[str]
):
    raise_descriptor_limit()
    watching = Watching(random.Random(7))
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1", backlog=1024)
        nursery.start_soon(trio.serve_listeners, watching.serve, [listener])
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        gateway = await trio.to_thread.run_sync(home.gateway, config_of({"watching": url}, more=UNADMITTED))
        clients = Clients(gateway, await trio.to_thread.run_sync(gateway.make_key))
        with trio.fail_after(60):
            async with trio.open_nursery() as leaving:
                for number in range(MANY):
                    leaving.start_soon(watching.leave, clients, number)
            # Bounded; an engine's callers are processes, and set no event for us.
            while len(watching.closed_at) < len(watching.begun) or len(watching.begun) < MANY * 0.9:  # noqa: ASYNC110
                await trio.sleep(0.01)
        samples = await trio.to_thread.run_sync(gateway.metrics)
        nursery.cancel_scope.cancel()
    measured = watching.latencies()
    p50, p99 = (measured[int(len(measured) * share)] * 1000 for share in (0.5, 0.99))
    name = "llmgw_cancellation_latency_seconds"
    (count,), (total,) = values(samples, f"{name}_count"), values(samples, f"{name}_sum")
    (quick,) = values(samples, f"{name}_bucket", le="1.0")
    with capsys.disabled():
        print(f"\n{len(measured)} clients gone to engine closed: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
        print(f"by the gateway's own metric {quick / count:.1%} within 1 s, {total / count * 1000:.1f} ms on average")
    assert p99 < WITHIN_S * 1000
    assert count >= len(measured)
    assert quick >= 0.99 * count
