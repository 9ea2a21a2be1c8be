"""The admin listener over real sockets: what kills or wedges a bare Hypercorn leaves it answering, and it ends."""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import TCPServer
from quart import Quart, Response

from llmgw.admin import serve
from llmgw.admin.serve import admin_socket, serve_admin

GET = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
UPGRADE = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"  # and empty settings


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


KILLERS = {
    "HC2 bad base64": UPGRADE + b"HTTP2-Settings: a\r\n\r\n",
    "HC2 bad settings": UPGRADE + b"HTTP2-Settings: AAAA\r\n\r\n",
    "h2c, valid": UPGRADE + b"HTTP2-Settings: " + base64.urlsafe_b64encode(b"\0\3\0\0\0d") + b"\r\n\r\n",
    "HC3 path not ASCII": PREFACE + frame(1, 5, 1, b"\x82\x44\x02/\xff\x86\x41\x01x"),
    "HC4 CONNECT without a path": PREFACE + frame(1, 5, 1, b"\x42\x07CONNECT\x41\x01x"),
    "HC5 data after an early answer": PREFACE + frame(1, 4, 1, b"\x83\x86\x84\x41\x01x") + frame(0, 0, 1, b"a" * 900),
    "HC6 priority flood": PREFACE + b"".join(frame(2, 0, 2 * i + 1, b"\0\0\0\0\x10") for i in range(1100)),
    "HC8 host not UTF-8": b"GET /health HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n",
    "a websocket without a key": b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    "a websocket of version 99": b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 99\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\nx",  # noqa: E501
    "nonsense": b"\x16\x03\x01\x02\0\1\0\1\xfc\3\3" * 20,
    "a head without end": b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000,
}  # fmt: skip


def app() -> Quart:
    from quart_trio import QuartTrio

    made = QuartTrio("test")

    @made.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @made.get("/big")
    async def big() -> Response:
        return Response(b"a" * 30_000_000)

    @made.get("/fails")
    async def fails() -> Response:
        raise ZeroDivisionError

    return made


@asynccontextmanager
async def listener() -> AsyncIterator[int]:
    sock = admin_socket("127.0.0.1:0")
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(serve_admin, app(), sock))
            yield sock.getsockname()[1]
            nursery.cancel_scope.cancel()


async def ask(port: int, sent: bytes, within_s: float = 2.0) -> bytes:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    came = b""
    with trio.move_on_after(within_s):
        try:
            await stream.send_all(sent)
            while data := await stream.receive_some():
                came += data
        except trio.BrokenResourceError:
            pass
    await trio.aclose_forcefully(stream)
    return came


@pytest.mark.parametrize("sent", KILLERS.values(), ids=KILLERS.keys())
async def test_one_connections_bytes_do_not_end_the_listener(sent):
    async with listener() as port:
        came = await ask(port, sent, within_s=0.5)
        after = await ask(port, GET)

        assert b" 101 " not in came.split(b"\r\n")[0]
        assert after.startswith(b"HTTP/1.1 200")


async def test_a_failing_view_is_one_answer():
    async with listener() as port:
        failed = await ask(port, GET.replace(b"/health", b"/fails"))
        after = await ask(port, GET)

        assert failed.startswith(b"HTTP/1.1 500")
        assert after.startswith(b"HTTP/1.1 200")


async def test_a_client_that_stops_reading_does_not_hold_the_end(monkeypatch):
    monkeypatch.setattr(serve, "WRITE_STALL_S", 0.3)
    async with listener() as port:
        stalled = await trio.open_tcp_stream("127.0.0.1", port)
        await stalled.send_all(GET.replace(b"/health", b"/big"))
        await stalled.receive_some(1)
        after = await ask(port, GET)
        began = trio.current_time()

        assert after.startswith(b"HTTP/1.1 200")
    assert trio.current_time() - began < 4
    await trio.aclose_forcefully(stalled)


def test_what_is_patched_and_overridden_exists():
    """A new Hypercorn that moved these would serve HTTP/2 or die of one connection without telling."""
    assert H11Protocol._check_protocol is serve._stay_http1
    assert callable(TCPServer.run)
    assert callable(TCPServer.protocol_send)
    assert {"run", "protocol_send"} <= vars(serve.SafeConnection).keys()
