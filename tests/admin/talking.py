"""Bytes to a listener on 127.0.0.1, and what comes back."""

import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from llmgw.admin.serve import admin_socket, serve_admin

WITHIN_S = 10.0


@asynccontextmanager
async def served(app: Any, tls: ssl.SSLContext | None = None, report: Any = None) -> AsyncIterator[int]:
    """The port; the listener ends with the block."""
    sock = admin_socket("127.0.0.1:0")
    port: int = sock.getsockname()[1]
    async with trio.open_nursery() as nursery:
        report = report if report is not None else unexpected
        await nursery.start(serve_admin, app, sock, tls, report)
        yield port
        nursery.cancel_scope.cancel()


def unexpected(what: str, request_id: str, error: BaseException | None) -> None:
    raise AssertionError(f"{what}: {error!r}")


async def connected(port: int, receive_buffer: int | None = None) -> trio.SocketStream:
    sock = trio.socket.socket()
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    try:
        await sock.connect(("127.0.0.1", port))
    except BaseException:
        sock.close()
        raise
    return trio.SocketStream(sock)


async def all_of(stream: trio.abc.ReceiveStream) -> bytes:
    """Until the other side closes, or resets."""
    got = bytearray()
    try:
        with trio.fail_after(WITHIN_S):
            while some := await stream.receive_some(65536):
                got += some
    except trio.BrokenResourceError:
        pass
    return bytes(got)


async def answer_on(stream: trio.abc.ReceiveStream) -> bytes:
    """One answer with a Content-Length, of a connection that stays."""
    got = b""
    with trio.fail_after(WITHIN_S):
        while (ends := _end_of(got)) is None or len(got) < ends:
            some = await stream.receive_some(65536)
            assert some, f"closed after {got!r}"
            got += some
    return got


def _end_of(got: bytes) -> int | None:
    head, blank, _ = got.lower().partition(b"\r\n\r\n")
    if not blank:
        return None
    length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
    return len(head) + 4 + int(length.partition(b":")[2])


def http_only(answer: Any) -> Any:
    """An ASGI app out of what answers its requests."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await answer(scope, receive, send)
        while scope["type"] == "lifespan":
            moment = (await receive())["type"]
            await send({"type": f"{moment}.complete"})

    return app


async def said_to(port: int, raw: bytes) -> bytes:
    """Everything a listener says to these bytes before it closes; we close our half after them."""
    async with await connected(port) as stream:
        try:
            await stream.send_all(raw)
            await stream.send_eof()
        except trio.BrokenResourceError:
            pass
        return await all_of(stream)


def get(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()


async def healthy(port: int) -> bool:
    return (await said_to(port, get("/health", "Connection: close"))).startswith(b"HTTP/1.1 200")
