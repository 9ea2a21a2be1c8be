"""Plain answers: bytes and headers that agree, whatever the engine's coding and framing; large ones piped."""

import base64
import gzip
import json
import struct
import zlib

import pytest
import trio
from trio.testing import MockClock

from llmgw.core.breaker import State
from llmgw.gateway.limits import RelayLimits
from tests.gateway.engine_bytes import ANSWER, CLOSE, LAST, RESET, chunk, delta, plain, says, stream
from tests.gateway.world import Answer, Caller, Engine, World, chat, world

BODY = ANSWER.partition(b"\r\n\r\n")[2]
CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"


def packed(coding: bytes, body: bytes, status: int = 200) -> bytes:
    data = gzip.compress(body) if coding == b"gzip" else zlib.compress(body)
    return plain(data, status, b"content-encoding: " + coding)


def agrees(answer: Answer) -> bool:
    """Nothing says that the body is coded, and its length is what was said."""
    length = answer.header(b"content-length")
    return answer.whole and answer.header(b"content-encoding") == [] and length in ([b"%d" % len(answer.body)], [])


@pytest.mark.parametrize("coding", [b"gzip", b"deflate", b"x-gzip"])
async def test_an_engine_that_packs_though_asked_not_to_is_unpacked(autojump_clock: MockClock, coding: bytes) -> None:
    """G30"""
    data = gzip.compress(BODY) if coding != b"deflate" else zlib.compress(BODY)
    async with world(Engine(says(plain(data, 200, b"content-encoding: " + coding)))) as w:
        answer = await w.chat(stream=False)

        assert answer.body == BODY
        assert agrees(answer)
        assert w.engines["a"].got[0].header(b"accept-encoding") == [b"identity"]
        assert (w.record.prompt_tokens, w.record.completion_tokens) == (3, 4)


@pytest.mark.parametrize("status", [400, 500])
async def test_a_packed_error_is_read_as_any_error(autojump_clock: MockClock, status: int) -> None:
    """G30"""
    async with world(Engine(says(packed(b"gzip", b'{"error":{"message":"the words"}}', status)))) as w:
        answer = await w.chat(stream=False)

        assert "the words" in answer.error["message"]
        assert agrees(answer)


async def test_a_packed_stream_is_unpacked_event_by_event(autojump_clock: MockClock) -> None:
    """G30"""
    packer = zlib.compressobj(wbits=31)
    pieces = [packer.compress(one) + packer.flush(zlib.Z_SYNC_FLUSH) for one in (delta("a"), delta("b"))]
    pieces.append(packer.compress(b"data: [DONE]\n\n") + packer.flush())
    head = CHUNKED.replace(b"application/json", b"text/event-stream\r\ncontent-encoding: gzip")
    async with world(Engine(says(head, chunk(pieces[0]), 1.0, *map(chunk, pieces[1:]), LAST))) as w:
        client = w.client()
        await client.post("/v1/chat/completions", chat())
        await client.until(delta("a"))
        assert trio.current_time() < 0.1
        answer = await client.answer()

        assert answer.events == [delta("a"), delta("b"), b"data: [DONE]\n\n"]
        assert answer.header(b"content-encoding") == []


async def test_a_large_packed_answer_is_unpacked_as_it_passes(autojump_clock: MockClock) -> None:
    body = json.dumps({"text": "x" * 3_000_000, "usage": {"prompt_tokens": 5}}).encode()
    async with world(Engine(says(packed(b"gzip", body)))) as w:
        answer = await w.chat(stream=False)

        assert answer.body == body
        assert agrees(answer)
        assert w.record.prompt_tokens == 5


async def test_a_packed_body_that_unpacks_without_end_is_cut_off(autojump_clock: MockClock) -> None:
    async with world(Engine(says(packed(b"gzip", bytes(5_000_000)))), limits=RelayLimits(answer_max=1_000_000)) as w:
        answer = await w.chat(stream=False)

        assert (answer.status, answer.error["code"]) == (502, "upstream_malformed")


BROKEN = [
    ("cut short", plain(gzip.compress(BODY)[:-9], 200, b"content-encoding: gzip")),
    ("corrupt", plain(b"\x1f\x8b not gzip at all", 200, b"content-encoding: gzip")),
]


@pytest.mark.parametrize("sent", [row[1] for row in BROKEN], ids=[row[0] for row in BROKEN])
async def test_a_packed_answer_that_does_not_unpack_is_not_passed_off_as_whole(
    autojump_clock: MockClock, sent: bytes
) -> None:
    async with world(Engine(says(sent))) as w:
        answer = await w.chat(stream=False)

        assert (answer.status, answer.error["code"]) == (502, "upstream_malformed")


async def test_a_coding_nobody_here_reads_passes_with_its_name(autojump_clock: MockClock) -> None:
    async with world(Engine(says(plain(b"\x0b\x02\x80{}\x03", 200, b"content-encoding: br")))) as w:
        answer = await w.chat(stream=False)

        assert answer.body == b"\x0b\x02\x80{}\x03"
        assert answer.header(b"content-encoding") == [b"br"]
        assert answer.header(b"content-length") == [b"6"]


async def test_only_the_content_type_is_the_engines(autojump_clock: MockClock) -> None:
    """G35"""
    theirs = [
        b"server: uvicorn", b"date: Mon, 01 Jan 2001 00:00:00 GMT", b"set-cookie: a=b", b"x-request-id: theirs",
        b"access-control-allow-origin: *", b"x-ratelimit-limit-requests: 1", b"keep-alive: timeout=5", b"via: x",
        b"openai-processing-ms: 1", b"openai-organization: o", b"retry-after: 9", b"location: http://evil",
    ]  # fmt: skip
    async with world(Engine(says(plain(b"RIFF\x00\xff", 200, *theirs, content_type=b"audio/wav")))) as w:
        answer = await w.chat(stream=False)

        assert answer.body == b"RIFF\x00\xff"
        assert answer.header(b"content-type") == [b"audio/wav"]
        assert answer.header(b"server") == [b"llmgw"]
        assert answer.header(b"x-request-id") == [w.record.id.encode()]
        names = [name for name, _ in answer.response.headers]
        assert len(names) == len(set(names))
        assert set(names) == {
            b"server", b"date", b"x-request-id", b"request-id", b"openai-processing-ms", b"content-type",
            b"content-length",
        }  # fmt: skip
        assert b"2001" not in answer.raw


@pytest.mark.parametrize("end", [[CLOSE], [RESET]])
async def test_a_large_answer_that_breaks_off_is_seen_to_be_cut(autojump_clock: MockClock, end: list) -> None:
    """G42: no final chunk, the connection closes, and nobody else is asked."""
    other = Engine(says(ANSWER), "b")
    whole = [chunk(b"x" * 100_000)] * 4
    for script in (says(CHUNKED, *whole, 0.1, *end), says(plain(b"x" * 900_000)[:500_000], 0.1, *end)):
        async with world(Engine(script), other) as w:
            answer = await w.chat(stream=False)

            assert answer.status == 200
            assert len(answer.body) >= 390_000
            assert not answer.whole
            assert answer.closed
            assert other.got == []
            assert w.record.outcome == "engine_broke"
            assert w.endpoint().breaker.failures == 1


async def test_a_large_answer_is_piped_with_its_length_and_its_usage_is_found(autojump_clock: MockClock) -> None:
    body = json.dumps({"data": "x" * 2_000_000, "usage": {"prompt_tokens": 11, "completion_tokens": 0}}).encode()
    async with world(Engine(says(plain(body)))) as w:
        answer = await w.post("/v1/embeddings", {"model": "m", "input": "hi"})

        assert answer.body == body
        assert answer.header(b"content-length") == [b"%d" % len(body)]
        assert answer.header(b"transfer-encoding") == []
        assert w.record.prompt_tokens == 11
        assert w.record.bytes_out == len(body)


async def test_what_the_client_does_not_read_stays_with_the_engine(autojump_clock: MockClock) -> None:
    """Backpressure: of 10 MB hardly more than the buffers leaves the engine."""
    sent = 0

    async def floods(caller: Caller) -> None:
        nonlocal sent
        await caller.request()
        await caller.send(b"HTTP/1.1 200 OK\r\ncontent-length: 10000000\r\n\r\n")
        for _ in range(1000):
            await caller.send(b"x" * 10_000)
            sent += 10_000

    async with world(Engine(floods)) as w:
        client = w.client()
        await client.post("/v1/chat/completions", chat(stream=False))
        await trio.sleep(10.0)
        assert 256 * 1024 <= sent < 1_000_000
        answer = await client.answer()
        await w.settled()

        assert len(answer.body) == 10_000_000
        assert w.record.outcome == "ok"


async def test_an_answer_beyond_the_bound_is_refused(autojump_clock: MockClock) -> None:
    async with world(Engine(says(plain(b"x" * 200_000))), limits=RelayLimits(answer_max=100_000)) as w:
        assert (await w.chat(stream=False)).status == 502
    async with world(Engine(says(plain(b"x" * 900_000))), limits=RelayLimits(answer_max=500_000)) as w:
        answer = await w.chat(stream=False)
        assert not answer.whole
        assert w.record.outcome == "engine_malformed"


@pytest.mark.parametrize("cut", [1, 20, 60, 4000])
async def test_an_answer_in_pieces_is_one_answer(autojump_clock: MockClock, cut: int) -> None:
    pieces = [chunk(BODY[at : at + cut]) for at in range(0, len(BODY), cut)]
    async with world(Engine(says(CHUNKED, *pieces, LAST))) as w:
        answer = await w.chat(stream=False)

        assert answer.body == BODY
        assert agrees(answer)
        assert w.record.completion_tokens == 4


# -- embeddings -------------------------------------------------------------------------------------

VECTORS = [[0.1, -0.2, 3e-9, 4.0], [1.0, 0.0, -1.5, 2.25]]


def embeddings(vectors: list, pad: str = "") -> bytes:
    data = [{"object": "embedding", "index": i, "embedding": v} for i, v in enumerate(vectors)]
    return json.dumps({"object": "list", "pad": pad, "data": data, "usage": {"prompt_tokens": 8}}).encode()


def as_sent(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


async def embedded(w: World, **members: object) -> Answer:
    return await w.post("/v1/embeddings", {"model": "m", "input": "hi", **members})


@pytest.mark.parametrize("cut", [7, 40, 100_000])
async def test_floats_become_the_base64_that_was_asked_for(autojump_clock: MockClock, cut: int) -> None:
    """However the engine's answer is cut into pieces."""
    body = embeddings(VECTORS)
    pieces = [chunk(body[at : at + cut]) for at in range(0, len(body), cut)]
    async with world(Engine(says(CHUNKED, *pieces, LAST))) as w:
        answer = await embedded(w, encoding_format="base64")

        assert [item["embedding"] for item in answer.json()["data"]] == [as_sent(v) for v in VECTORS]
        assert answer.json()["usage"] == {"prompt_tokens": 8}
        assert agrees(answer)
        assert w.record.prompt_tokens == 8
        assert w.engines["a"].got[0].json()["encoding_format"] == "base64"


async def test_many_floats_become_base64_too(autojump_clock: MockClock) -> None:
    vectors = [[float(n) / 7] * 1024 for n in range(64)]
    async with world(Engine(says(plain(embeddings(vectors))))) as w:
        answer = await embedded(w, encoding_format="base64")

        assert [item["embedding"] for item in answer.json()["data"]] == [as_sent(v) for v in vectors]


@pytest.mark.parametrize("given", [{}, {"encoding_format": "float"}])
async def test_floats_that_were_asked_for_pass_byte_for_byte(autojump_clock: MockClock, given: dict) -> None:
    async with world(Engine(says(plain(embeddings(VECTORS))))) as w:
        assert (await embedded(w, **given)).body == embeddings(VECTORS)


async def test_base64_from_the_engine_passes_byte_for_byte(autojump_clock: MockClock) -> None:
    body = embeddings([as_sent(v) for v in VECTORS])
    async with world(Engine(says(plain(body)))) as w:
        assert (await embedded(w, encoding_format="base64")).body == body
        assert w.breaker() is State.CLOSED


async def test_a_plain_answer_to_a_stream_nobody_asked_for_is_not_read_as_one(autojump_clock: MockClock) -> None:
    async with world(Engine(says(stream(delta("a"))))) as w:
        answer = await embedded(w, stream=True)

        assert answer.body == delta("a")
        assert w.record.stream is False
