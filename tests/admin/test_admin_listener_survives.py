"""Whatever one connection does, the admin listener goes on, and ends in time."""

import socket
import ssl
from importlib.metadata import version

import pytest
import trio
import trustme
from hpack import Encoder
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.lifespan import Lifespan
from hypercorn.trio.tcp_server import TCPServer
from hyperframe.frame import DataFrame, HeadersFrame, PriorityFrame, RstStreamFrame, SettingsFrame

from llmgw.admin import connections, serve
from llmgw.core.identity import Role
from tests.admin.talking import all_of, answer_on, connected, get, healthy, http_only, said_to, served

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SettingsFrame(0).serialize()
ORDINARY = [(b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"localhost"), (b":path", b"/health")]


def h2_request(fields: list[tuple[bytes, bytes]], ends: bool = True) -> bytes:
    flags = ["END_HEADERS", "END_STREAM"] if ends else ["END_HEADERS"]
    return HeadersFrame(1, data=Encoder().encode(fields), flags=flags).serialize()


def h2_with(name: bytes, value: bytes) -> bytes:
    return h2_request([(n, value if n == name else v) for n, v in ORDINARY])


POSTED = [(n, b"POST" if n == b":method" else b"/admin/v1/keys" if n == b":path" else v) for n, v in ORDINARY]
WEBSOCKET = ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="]
KILLS = {
    "h2c with settings that are no base64": get("/", "Upgrade: h2c", "Connection: Upgrade", "HTTP2-Settings: a"),
    "h2c with settings that are no frame": get("/", "Upgrade: h2c", "Connection: Upgrade", "HTTP2-Settings: AAAA"),
    "h2c as it should be": get("/", "Upgrade: h2c", "Connection: Upgrade", "HTTP2-Settings: AAMAAABk"),
    "a path of strange bytes": PREFACE + h2_with(b":path", b"/\xff"),
    "a method of strange bytes": PREFACE + h2_with(b":method", b"G\xffT"),
    "CONNECT without a path": PREFACE + h2_request([(b":method", b"CONNECT"), (b":authority", b"localhost")]),
    "data after an early answer": PREFACE + h2_request(POSTED, ends=False) + DataFrame(1, data=b"x" * 9000).serialize(),
    "a thousand priorities": PREFACE + b"".join(PriorityFrame(2 * n + 1).serialize() for n in range(1100)),
    "a reset request with a strange query": PREFACE + h2_with(b":path", b"/?\xff") + RstStreamFrame(1).serialize(),
    "a host that is no UTF-8": b"GET /health HTTP/1.1\r\nHost: \xff\xfe\r\nConnection: close\r\n\r\n",
}


@pytest.mark.parametrize("raw", KILLS.values(), ids=list(KILLS))
async def test_it_outlives_what_ends_a_bare_hypercorn(desk, raw):
    async with served(desk.app()) as port, await connected(port) as neighbour:
        await neighbour.send_all(get("/health"))
        assert (await answer_on(neighbour)).startswith(b"HTTP/1.1 200")

        answer = await said_to(port, raw)

        assert b"101 Switching" not in answer
        assert not answer or answer.startswith(b"HTTP/1.1 ")
        assert await healthy(port)
        await neighbour.send_all(get("/health"))
        assert (await answer_on(neighbour)).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /" + b"a" * 100_000,
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        get("/", "Upgrade: websocket", "Connection: Upgrade"),
        get("/", "Upgrade: websocket", "Connection: Upgrade", *WEBSOCKET) + b"\x81\x85\0\0\0\0hello",
        b"TRACE / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"CONNECT evil:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET http://evil/health HTTP/1.1\r\nHost: evil\r\n\r\n",
        b"\x00" * 1000,
    ],
)
async def test_what_is_no_proper_request_is_refused(desk, raw):
    async with served(desk.app()) as port:
        answer = await said_to(port, raw)

        assert not answer or int(answer.split()[1]) >= 400
        assert await healthy(port)


@http_only
async def broken(scope, receive, send):
    """An app that makes Hypercorn raise inside a connection: h11 fails, and then refuses its error page too."""
    await send({"type": "http.response.start", "status": 101, "headers": []})


async def test_a_connection_that_fails_is_reported_and_fails_alone():
    reported = []
    async with served(broken, report=lambda *what: reported.append(what)) as port:
        await said_to(port, get("/"))
        await said_to(port, get("/"))

    whats = [what for what, _, _ in reported]
    assert whats.count("a connection to the admin listener failed") == 2
    assert all(isinstance(error, BaseException) for _, _, error in reported)


class Flood:
    """An app that answers with more than any socket buffer holds, and tells how that went."""

    def __init__(self) -> None:
        self.began, self.ended = trio.Event(), trio.Event()

    async def answer(self, scope, receive, send):
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            self.began.set()
            await send({"type": "http.response.body", "body": bytes(12 * 1024 * 1024)})
        finally:
            self.ended.set()


async def test_a_client_that_stops_reading_does_not_hold_the_end(monkeypatch):
    monkeypatch.setattr(connections, "GRACE_S", 0.2)
    flood = Flood()
    with trio.fail_after(2):
        async with served(http_only(flood.answer)) as port:
            stream = await connected(port, receive_buffer=4096)
            await stream.send_all(get("/"))
            await flood.began.wait()
    await stream.aclose()


async def test_a_client_that_stops_reading_is_cut_off(monkeypatch):
    monkeypatch.setattr(connections, "WRITE_STALL_S", 0.1)
    flood = Flood()
    async with served(http_only(flood.answer)) as port, await connected(port, receive_buffer=4096) as stream:
        await stream.send_all(get("/"))
        with trio.fail_after(5):
            await flood.ended.wait()
        assert len(await all_of(stream)) < 12 * 1024 * 1024


async def test_a_slow_reader_is_not_a_stalled_one(monkeypatch):
    """What bounds a send is its progress, not the length of the answer."""
    monkeypatch.setattr(connections, "WRITE_STALL_S", 0.1)
    async with served(http_only(Flood().answer)) as port, await connected(port, receive_buffer=4096) as stream:
        await stream.send_all(get("/", "Connection: close"))
        got, started = 0, trio.current_time()
        while trio.current_time() < started + 0.25:
            got += len(await stream.receive_some(65536))
            await trio.sleep(0.002)
        assert got + len(await all_of(stream)) > 12 * 1024 * 1024


async def test_a_request_under_way_is_answered_though_the_listener_ends():
    asked, answer = trio.Event(), trio.Event()

    @http_only
    async def slow(scope, receive, send):
        asked.set()
        await answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"done"})

    sock = serve.admin_socket("127.0.0.1:0")
    port = sock.getsockname()[1]
    async with trio.open_nursery() as nursery:
        listener = trio.CancelScope()

        async def run(task_status):
            with listener:
                await serve.serve_admin(slow, sock, task_status=task_status)

        await nursery.start(run)
        async with await connected(port) as idle, await connected(port) as busy:
            await busy.send_all(get("/"))
            await asked.wait()
            listener.cancel()
            assert await all_of(idle) == b""
            with pytest.raises(OSError, match="refused"):
                await connected(port)
            answer.set()
            got = await all_of(busy)

    assert got.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in got.lower()
    assert got.endswith(b"done")


async def test_a_connection_that_is_to_be_closed_is_closed_by_us_too(desk):
    async with served(desk.app()) as port, await connected(port) as stream:
        await stream.send_all(get("/health", "Connection: close"))
        assert (await all_of(stream)).startswith(b"HTTP/1.1 200")


async def test_connections_are_bounded(desk, monkeypatch):
    monkeypatch.setattr(serve, "CONNECTIONS_MAX", 2)
    async with served(desk.app()) as port, await connected(port) as one, await connected(port) as other:
        for stream in (one, other):
            await stream.send_all(get("/health"))
            assert (await answer_on(stream)).startswith(b"HTTP/1.1 200")
        assert await said_to(port, get("/health")) == b""
        await one.aclose()
        with trio.fail_after(5):
            while not await healthy(port):
                pass


async def test_a_body_that_never_comes_is_not_waited_for(desk):
    app = desk.app()
    app.config["BODY_TIMEOUT"] = 0.1
    head = b"POST /admin/v1/keys HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n"
    token = f"Authorization: {desk.bearer(Role.OPERATOR)['Authorization']}\r\n\r\n".encode()
    async with served(app) as port, await connected(port) as stream:
        await stream.send_all(head + token + b"{")

        got = await answer_on(stream)

        assert got.startswith(b"HTTP/1.1 408")
        assert b'"request_timeout"' in got


async def test_an_early_answer_arrives_though_nobody_wants_the_large_body(desk, monkeypatch):
    """Reader and app must not wait for each other, and closing over unread bytes would take the answer back."""
    monkeypatch.setattr(connections, "CLOSE_WITHIN_S", 0.2)
    head = (
        b"POST /admin/v1/apply HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    )
    async with served(desk.app()) as port:
        for length in (b"Content-Length: 1000000\r\n\r\n", b"Content-Length: 90000000\r\n\r\n"):
            async with await connected(port) as stream:
                await stream.send_all(head + length + b"x" * 500_000)
                assert (await all_of(stream)).startswith((b"HTTP/1.1 401", b"HTTP/1.1 413"))
        assert await healthy(port)


async def test_an_answer_that_is_quicker_than_the_body_says_that_its_connection_ends(desk):
    head = b"POST /admin/v1/apply HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    async with served(desk.app()) as port, await connected(port) as stream:
        await stream.send_all(head + b"Content-Length: 100\r\n\r\n{")
        answer = await answer_on(stream)
        assert answer.startswith(b"HTTP/1.1 401")
        assert b"\r\nconnection: close\r\n" in answer
        with trio.fail_after(5):
            await stream.send_all(b" " * 99 + get("/health"))
            assert await all_of(stream) == b"", "as it said"


async def test_an_answer_to_a_whole_question_keeps_its_connection(desk):
    head = b"POST /admin/v1/keys HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    token = f"Authorization: {desk.bearer(Role.OPERATOR)['Authorization']}\r\n".encode()
    async with served(desk.app()) as port, await connected(port) as stream:
        for _ in range(2):
            await stream.send_all(head + token + b"Content-Length: 2\r\n\r\n[]")
            answer = await answer_on(stream)
            assert answer.startswith(b"HTTP/1.1 400")
            assert b"connection: close" not in answer.lower()


async def test_over_tls_it_speaks_http1_alone(desk):
    ca = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    ca.issue_cert("localhost").configure_cert(server)
    ca.configure_trust(client)
    client.set_alpn_protocols(["h2", "http/1.1"])
    async with served(desk.app(), server) as port:
        await said_to(port, b"no handshake at all")
        tcp = await trio.open_tcp_stream("127.0.0.1", port)
        async with trio.SSLStream(tcp, client, server_hostname="localhost", https_compatible=True) as stream:
            await stream.send_all(get("/health", "Connection: close"))
            assert stream.selected_alpn_protocol() == "http/1.1"
            assert (await all_of(stream)).startswith(b"HTTP/1.1 200")


async def dribble(stream, data):
    """A byte at a time, until the other side hangs up."""
    try:
        for byte in data:
            await stream.send_all(bytes([byte]))
            await trio.sleep(0.01)
    except trio.BrokenResourceError:
        return


@pytest.mark.parametrize("hello", [b"", b"\x16\x03\x01\x02\x00\x01\x00", b"\x16\x03\x01\x40\x00" + bytes(16_000)])
async def test_a_handshake_that_never_ends_is_cut_and_gives_its_place_back(desk, monkeypatch, hello):
    monkeypatch.setattr(connections, "HANDSHAKE_WITHIN_S", 0.2)
    monkeypatch.setattr(serve, "CONNECTIONS_MAX", 1)
    ca = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    ca.issue_cert("localhost").configure_cert(server)
    ca.configure_trust(client)
    async with served(desk.app(), server) as port:
        async with await connected(port) as silent, trio.open_nursery() as nursery:
            nursery.start_soon(dribble, silent, hello)
            with trio.fail_after(5):
                assert await all_of(silent) == b""
            nursery.cancel_scope.cancel()
        tcp = await trio.open_tcp_stream("127.0.0.1", port)
        async with trio.SSLStream(tcp, client, server_hostname="localhost", https_compatible=True) as stream:
            await stream.send_all(get("/health", "Connection: close"))
            assert (await all_of(stream)).startswith(b"HTTP/1.1 200")


def test_accepted_sockets_give_up_on_silent_peers():
    with serve.admin_socket("127.0.0.1:0") as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_what_is_changed_of_hypercorn_is_there_to_be_changed():
    """A Hypercorn that moved these would serve HTTP/2, or hang where it should close, without telling."""
    assert (version("hypercorn"), version("h11")) == ("0.18.0", "0.16.0"), "try every test here against the new one"
    assert H11Protocol._check_protocol is connections.stay_http1
    assert H11Protocol.stream_send is connections.say_that_it_closes
    for name in ("run", "protocol_send", "_close", "_initiate_server_close"):
        assert callable(getattr(TCPServer, name))
    for name in ("handle_lifespan", "wait_for_startup", "wait_for_shutdown"):
        assert callable(getattr(Lifespan, name))
    known = dir(connections.HypercornConfig())
    assert not [name for name in vars(connections.limits()) if name not in known and name != "closing"]
