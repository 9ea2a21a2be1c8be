"""Clients as plain as can be, hundreds at once: a request on a connection of its own, its answer to the end."""

import json
import resource
from typing import Any

import trio

from tests.journeys.running import Gateway
from tests.sim.engine_talk import Answer, answer_of

DIALS_AT_ONCE = 200  # a listening socket's queue is bounded, and one that is full costs a second
DONE = "[DONE]"
RESET = b"\x01\0\0\0\0\0\0\0"  # struct linger: on, 0 s


def raise_descriptor_limit() -> None:
    """For ourselves and every process started from now on."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def chat(content: str = "hello", **more: Any) -> dict[str, Any]:
    asked = {"model": "sim-model", "messages": [{"role": "user", "content": content}], "ignore_eos": True}
    return {**asked, **more}


def request(key: str, body: Any, path: str = "/v1/chat/completions") -> bytes:
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {key}\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


class Clients:
    """Many clients of one gateway, with one key."""

    def __init__(self, gateway: Gateway, key: str) -> None:
        self.gateway, self.key = gateway, key
        self._dialling = trio.CapacityLimiter(DIALS_AT_ONCE)

    async def connect(self) -> trio.SocketStream:
        async with self._dialling:
            return await trio.open_tcp_stream(*self.gateway.address)

    async def ask(self, body: Any, path: str = "/v1/chat/completions") -> Answer:
        async with await self.connect() as stream:
            await stream.send_all(request(self.key, body, path))
            return await read(stream)

    async def ask_all(self, bodies: list[Any]) -> list[Answer | None]:
        """All at once; None where the connection broke."""
        answers: list[Answer | None] = [None] * len(bodies)

        async def one(place: int, body: Any) -> None:
            try:
                answers[place] = await self.ask(body)
            except (trio.BrokenResourceError, OSError):
                answers[place] = None

        async with trio.open_nursery() as nursery:
            for place, body in enumerate(bodies):
                nursery.start_soon(one, place, body)
        return answers


async def read(stream: trio.SocketStream) -> Answer:
    """To the end of the connection."""
    raw = bytearray()
    while piece := await stream.receive_some(65536):
        raw += piece
    return answer_of(bytes(raw))


def complete(answer: Answer | None, tokens: int) -> bool:
    """A stream with all its tokens, its finish and its end."""
    if answer is None or answer.status != 200 or not answer.whole:
        return False
    events = answer.events()
    finishes = [choice["finish_reason"] for event in events[:-1] for choice in event["choices"]]
    texts = [choice["delta"].get("content") for event in events[:-1] for choice in event["choices"]]
    return events[-1:] == [DONE] and finishes[-1:] == ["length"] and sum(bool(text) for text in texts) == tokens


def hang_up(stream: trio.SocketStream, hard: bool) -> None:
    """Leave, with a goodbye or with a reset; at once."""
    if hard:
        stream.socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, RESET)
    stream.socket.close()
