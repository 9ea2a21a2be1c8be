"""Raw bytes against the door: what two parsers could read differently is refused, and the connection closes.

Rows are named after the vectors of the hardening list they stand for.
"""

import gzip
import re
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from llmgw.core.outcome import Outcome, Refusal
from llmgw.gateway.door import Door, request_ids
from llmgw.gateway.exchange import Exchange, Refused
from llmgw.gateway.limits import DoorLimits
from llmgw.tasks.alarms import Alarms
from llmgw.tasks.sockets import Watcher, listen
from tests.polling import until

LIMITS = DoorLimits(body_max=100_000, head_within=0.5, drain_within=0.3)
OK = b"POST /echo HTTP/1.1\r\nHost: x\r\n"
GET = b"GET / HTTP/1.1\r\nHost: x\r\n"


async def echo(exchange: Exchange) -> None:
    if exchange.path == "/early":
        await exchange.answer(401, b"{}")
        return
    body = await exchange.body()
    await exchange.answer(200, b"%d:%b" % (len(body), body[:64]))


@asynccontextmanager
async def door(handler=echo, limits: DoorLimits = LIMITS) -> AsyncIterator[tuple[int, Door]]:
    with Watcher() as watcher, trio.fail_after(20):
        alarms = Alarms()
        listener = await listen(watcher, "127.0.0.1:0")
        one = Door(handler, alarms, limits, request_ids(b"\1\2"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watcher.run)
            nursery.start_soon(alarms.run)
            nursery.start_soon(one.serve, [listener], nursery)
            yield listener.port, one
            nursery.cancel_scope.cancel()


async def talk(port: int, *pieces: bytes) -> tuple[bytes, bool]:
    """Send the pieces; everything that came back, and whether the door closed."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    came = b""
    async with stream:
        try:
            for piece in pieces:
                await stream.send_all(piece)
                await trio.sleep(0.005)
        except trio.BrokenResourceError:
            came += b""
        with trio.move_on_after(1.2):
            try:
                while data := await stream.receive_some():
                    came += data
            except trio.BrokenResourceError:
                return came, True
            return came, True
    return came, False


def statuses(came: bytes) -> list[int]:
    return [int(code) for code in re.findall(rb"HTTP/1\.1 (\d{3}) ", came) if code != b"100"]


REFUSED = [
    ("H1 length and chunked", OK + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", {400}),
    ("H2 two lengths", OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", {400}),
    ("H2 the same length twice", OK + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", {400}),
    ("H4 signed length", OK + b"Content-Length: +5\r\n\r\nhello", {400}),
    ("H4 negative length", OK + b"Content-Length: -1\r\n\r\n", {400}),
    ("H4 hex length", OK + b"Content-Length: 0x5\r\n\r\nhello", {400}),
    ("H4 underscore length", OK + b"Content-Length: 1_0\r\n\r\nhello", {400}),
    ("H4 empty length", OK + b"Content-Length: \r\n\r\n", {400}),
    ("H4 arabic digits", OK + b"Content-Length: \xd9\xa5\r\n\r\n", {400}),
    ("H4 thirty digits", OK + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n", {400}),
    ("H4 a list of lengths", OK + b"Content-Length: 5, 5\r\n\r\nhello", {400}),
    ("H5 xchunked", OK + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", {400, 501}),
    ("H5 gzip, chunked", OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", {400, 501}),
    ("H5 chunked, identity", OK + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", {400, 501}),
    ("H5 quoted chunked", OK + b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n', {400, 501}),
    ("H6 twice", OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", {400, 501}),
    ("H8 space before the colon", OK + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", {400}),
    ("H9 folded coding", OK + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", {400}),
    ("H10 chunked on 1.0", b"POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", {400}),
    ("H11 folded header", GET + b"X-A: b\r\n c\r\n\r\n", {400}),
    ("H11 folded with a tab", GET + b"X-A: b\r\n\tc\r\n\r\n", {400}),
    ("H12 bare LF", b"GET / HTTP/1.1\nHost: x\n\n", {400}),
    ("H12 one bare LF", b"GET / HTTP/1.1\r\nHost: x\nX-A: b\r\n\r\n", {400}),
    ("H12 bare LF before the request", b"\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    ("H13 bare CR in a value", GET + b"X-A: b\rc\r\n\r\n", {400}),
    ("H13 NUL in a value", GET + b"X-A: b\0c\r\n\r\n", {400}),
    ("H13 DEL in a value", GET + b"X-A: b\x7fc\r\n\r\n", {400}),
    ("H16 no colon", GET + b"XA\r\n\r\n", {400}),
    ("H16 empty name", GET + b": b\r\n\r\n", {400}),
    ("H16 leading space line", b"GET / HTTP/1.1\r\n Host: x\r\n\r\n", {400}),
    ("H16 a name that is no token", GET + b"X(A): b\r\n\r\n", {400}),
    ("H18 hex prefix", OK + b"Transfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n", {400}),
    ("H18 plus", OK + b"Transfer-Encoding: chunked\r\n\r\n+1\r\na\r\n0\r\n\r\n", {400}),
    ("H18 huge", OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 21 + b"\r\na\r\n0\r\n\r\n", {400}),
    ("H18 LF only", OK + b"Transfer-Encoding: chunked\r\n\r\n1\na\n0\n\n", {400}),
    ("H18 LF in an extension", OK + b"Transfer-Encoding: chunked\r\n\r\n1;a\nb\r\nx\r\n0\r\n\r\n", {400}),
    ("H19 bad terminator", OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\naX\r\n0\r\n\r\n", {400}),
    ("H20 endless extension", OK + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"a" * 80_000, {400}),
    ("H26 no host", b"GET / HTTP/1.1\r\n\r\n", {400}),
    ("H26 two hosts", GET + b"Host: y\r\n\r\n", {400}),
    ("H28 host not ASCII", b"GET / HTTP/1.1\r\nHost: \xff\r\n\r\n", {400}),
    ("H29 0.9", b"GET /\r\n\r\n", {400}),
    ("H29 lower case", b"GET / http/1.1\r\nHost: x\r\n\r\n", {400}),
    ("H29 RTSP", b"GET / RTSP/1.0\r\nHost: x\r\n\r\n", {400}),
    ("H29 ICE", b"SOURCE / ICE/1.0\r\nHost: x\r\n\r\n", {400}),
    ("H30 1.2", b"GET / HTTP/1.2\r\nHost: x\r\n\r\n", {400, 505}),
    ("H30 2.0", b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", {400, 505}),
    ("H33 CONNECT", b"CONNECT evil:443 HTTP/1.1\r\nHost: x\r\n\r\n", {405}),
    ("H33 TRACE", b"TRACE / HTTP/1.1\r\nHost: x\r\n\r\n", {405}),
    ("H32 unknown method", b"BREW / HTTP/1.1\r\nHost: x\r\n\r\n", {405, 501}),
    ("H34 absolute form", b"GET http://evil/x HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    ("H36 space in the target", b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    ("H36 two spaces", b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    ("H36 not ASCII", b"GET /\xc3\xa9 HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    ("H36 tab", b"GET\t/ HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    ("fragment", b"GET /a#b HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    ("underscore in a framing name", OK + b"Content_Length: 5\r\n\r\n", {400}),
    ("H40 one header of 40 KB", GET + b"X-A: " + b"a" * 40_000 + b"\r\n\r\n", {431}),
    ("H40 4000 headers", GET + b"".join(b"a%d: b\r\n" % i for i in range(4000)) + b"\r\n", {431}),
    ("H40 150 headers", GET + b"".join(b"a%d: b\r\n" % i for i in range(150)) + b"\r\n", {431}),
    ("a target of 9 KB", b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", {414}),
    ("H48 body too large by length", OK + b"Content-Length: 100001\r\n\r\n", {413}),
    (
        "H48 body too large in chunks",
        OK
        + b"Transfer-Encoding: chunked\r\n\r\n"
        + b"8000\r\n"
        + b"a" * 0x8000
        + b"\r\n8000\r\n"
        + b"a" * 0x8000
        + b"\r\n8000\r\n"
        + b"a" * 0x8000
        + b"\r\n8000\r\n"
        + b"a" * 0x8000
        + b"\r\n0\r\n\r\n",
        {413},
    ),
    ("H21 framing in a trailer", OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 9\r\n\r\n", {400}),
    ("H54 prior knowledge", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400, 505}),
    ("H63 TLS on the plain port", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", {400}),
    ("an expectation nobody knows", OK + b"Expect: tea\r\nContent-Length: 5\r\n\r\nhello", {417}),
]


@pytest.mark.parametrize(("sent", "expected"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
async def test_ambiguous_bytes_are_refused_and_the_connection_closes(sent, expected):
    async with door() as (port, one):
        came, closed = await talk(port, sent)

        assert len(statuses(came)) == 1
        assert statuses(came)[0] in expected
        assert closed
        assert b'"error"' in came
        assert b"x-request-id: req_" in came
        await until(lambda: not one.connections)


SERVED = [
    ("H15 high bytes in a value", GET + b"X-A: \xff\xfe\r\n\r\n", [200]),
    ("H20 short chunk extensions", OK + b"Transfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\n\r\n", [200]),
    (
        "H21 trailers are dropped",
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Late: 9\r\n\r\n",
        [200],
    ),
    ("H24 pipelined", GET + b"\r\n" + GET + b"\r\n" + GET + b"\r\n", [200, 200, 200]),
    ("H37 CR LF in the path", b"GET /%0d%0aX HTTP/1.1\r\nHost: x\r\n\r\n", [200]),
    (
        "H52 h2c is ignored",
        GET + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: a\r\n\r\n",
        [200],
    ),
    ("H53 h2c with a body", OK + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 5\r\n\r\nhello", [200]),
    (
        "h2c with a chunked body",
        OK + b"Upgrade: h2c\r\nConnection: Upgrade\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        [200],
    ),
    ("an empty line first", b"\r\n" + GET + b"\r\n", [200]),
    ("a query", b"GET /a?b=c HTTP/1.1\r\nHost: x\r\n\r\n", [200]),
]


@pytest.mark.parametrize(("sent", "expected"), [row[1:] for row in SERVED], ids=[row[0] for row in SERVED])
async def test_odd_but_clear_bytes_are_served_and_the_connection_stays(sent, expected):
    async with door() as (port, _):
        came, closed = await talk(port, sent)

        assert statuses(came) == expected
        assert not closed


async def test_a_body_behind_an_upgrade_header_reaches_the_handler():
    async with door() as (port, _):
        came, _ = await talk(
            port,
            OK + b"Upgrade: h2c\r\nConnection: Upgrade\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
            b"lo\r\n0\r\n\r\n",
        )

        assert came.endswith(b"5:hello")


@pytest.mark.parametrize(
    ("coding", "sent", "status"),
    [(b"zstd", b"hello", 415), (b"gzip", b"hello", 400), (b"gzip, gzip", b"hello", 415), (b"identity", b"hello", 200)],
)
async def test_a_content_coding_is_read_or_refused_by_name(coding, sent, status):
    """H51"""
    async with door() as (port, _):
        came, _ = await talk(
            port, OK + b"Content-Encoding: %b\r\nContent-Length: %d\r\n\r\n%b" % (coding, len(sent), sent)
        )

        assert statuses(came) == [status]


async def test_gzip_and_deflate_bodies_are_decoded_under_a_cap():
    async with door() as (port, _):
        head = OK + b"Content-Encoding: %b\r\nContent-Length: %d\r\n\r\n"
        for coding, packed in ((b"gzip", gzip.compress(b"hello")), (b"deflate", zlib.compress(b"hello"))):
            came, _ = await talk(port, head % (coding, len(packed)) + packed)
            assert came.endswith(b"5:hello")
        bomb = gzip.compress(bytes(10_000_000))
        came, _ = await talk(port, head % (b"gzip", len(bomb)) + bomb)
        short, _ = await talk(port, head % (b"gzip", 20) + gzip.compress(b"hello" * 100)[:20])

        assert statuses(came) == [413]
        assert statuses(short) == [400]


async def test_http_1_0_is_answered_without_chunks_and_closed():
    async def stream(exchange: Exchange) -> None:
        await exchange.start(200)
        await exchange.send(b"one")
        await exchange.send(b"two")
        await exchange.end()

    async with door(stream) as (port, _):
        came, closed = await talk(port, b"GET / HTTP/1.0\r\n\r\n")

        assert came.endswith(b"\r\n\r\nonetwo")
        assert b"transfer-encoding" not in came
        assert closed


async def test_head_is_answered_without_a_body():
    async with door() as (port, _):
        came, closed = await talk(port, b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")

        assert statuses(came) == [200]
        assert came.endswith(b"\r\n\r\n")
        assert not closed


@pytest.mark.parametrize("size", [10, 50_000, 90_000])
async def test_an_early_answer_leaves_no_connection_behind(size):
    """H22, H23: the rest of the body is never taken for a request, and nothing leaks."""
    smuggled = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    body = smuggled + b"a" * (size - len(smuggled)) if size > len(smuggled) else b"a" * size
    async with door() as (port, one):
        came, closed = await talk(port, b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size, body)

        assert statuses(came) == [401]
        assert closed
        await until(lambda: not one.connections)


async def test_an_early_answer_to_a_small_body_keeps_the_connection():
    async with door() as (port, _):
        request = b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
        came, closed = await talk(port, request + request)

        assert statuses(came) == [401, 401]
        assert not closed


async def test_twenty_early_answers_to_unread_bodies_free_everything():
    async with door() as (port, one):
        streams = []
        for _ in range(20):
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            await stream.send_all(b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 90000\r\n\r\n" + b"a" * 50_000)
            streams.append(stream)
        await until(lambda: not one.connections)
        for stream in streams:
            await stream.aclose()


async def test_100_continue_is_sent_only_when_the_body_is_wanted():
    async with door() as (port, _):
        wanted, _ = await talk(port, OK + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n", b"hello")
        refused, closed = await talk(
            port, b"POST /early HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
        )

        assert wanted.startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert wanted.endswith(b"5:hello")
        assert refused.startswith(b"HTTP/1.1 401")
        assert closed


async def test_a_head_that_dribbles_is_ended_in_time():
    """H42"""
    async with door() as (port, one):
        came, closed = await talk(port, b"GET / HTTP/1.1\r\nHo")

        assert statuses(came) == [408]
        assert closed
        await until(lambda: not one.connections)


async def test_an_exception_in_a_handler_is_a_500_and_stays_its_own():
    reported = []

    async def fails(exchange: Exchange) -> None:
        if exchange.path == "/fails":
            raise ZeroDivisionError
        await exchange.answer(200, b"{}")

    async with door(fails) as (port, one):
        one._common.report = lambda what, request_id, error: reported.append((what, type(error)))
        came, closed = await talk(port, b"GET /fails HTTP/1.1\r\nHost: x\r\n\r\n" + GET + b"\r\n")

        assert statuses(came) == [500, 200]
        assert b"ZeroDivision" not in came
        assert not closed
        assert reported == [("request failed", ZeroDivisionError)]


async def test_bodies_together_have_a_bound():
    waiting, go = trio.Event(), trio.Event()

    async def holds(exchange: Exchange) -> None:
        await exchange.body()
        waiting.set()
        await go.wait()
        await exchange.answer(200, b"{}")

    async with door(holds, DoorLimits(bodies_total_max=100)) as (port, one), trio.open_nursery() as nursery:
        request = OK + b"Content-Length: 80\r\n\r\n" + b"a" * 80
        nursery.start_soon(talk, port, request)
        await waiting.wait()
        came, _ = await talk(port, request)
        go.set()

        assert statuses(came) == [503]
        assert b"retry-after: " in came
    assert one.bodies.held == 0


async def test_a_refusal_raised_by_a_handler_is_told_in_openai_shape():
    async def refuses(exchange: Exchange) -> None:
        raise Refused(Refusal(Outcome.BUDGET_SPENT, "spent"))

    async with door(refuses) as (port, _):
        came, _ = await talk(port, GET + b"\r\n")

        assert statuses(came) == [429]
        assert b"x-should-retry: false" in came
        assert b'"code":"insufficient_quota"' in came
