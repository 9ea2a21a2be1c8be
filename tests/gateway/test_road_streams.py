"""Streams through the whole road: what the client gets, byte for byte, and what is counted."""

import json

import pytest
import trio
from trio.testing import MockClock

from llmgw.core.breaker import State
from tests.gateway.engine_bytes import (
    CLOSE,
    DONE,
    FINISH,
    LAST,
    RESET,
    ROLE,
    SSE_HEAD,
    USAGE,
    chunk,
    delta,
    says,
    stream,
)
from tests.gateway.world import Engine, chat, world


async def test_a_stream_reaches_the_client_whole_and_is_counted(autojump_clock: MockClock) -> None:
    events = [ROLE, delta("Hel"), delta("lo"), FINISH, DONE]
    async with world(Engine(says(stream(*events[:-1], USAGE, DONE)))) as w:
        answer = await w.chat()

        assert answer.status == 200
        assert answer.events == events
        assert answer.whole
        assert (w.record.outcome, w.record.status) == ("ok", 200)
        assert (w.record.prompt_tokens, w.record.completion_tokens, w.record.estimated) == (7, 2, False)
        assert len(w.rows) == 1
        assert w.breaker() is State.CLOSED
        assert trio.current_time() < 0.1


def carried(*pieces: bytes) -> bytes:
    """One chunked answer whose chunks are these pieces, however events lie in them."""
    return SSE_HEAD + b"".join(map(chunk, pieces)) + LAST


# G1, G4: (what the engine sends, piece by piece)
SPELLED = [
    ("no space after the colon", [USAGE.replace(b"data: ", b"data:"), b"data:[DONE]\n\n"]),
    ("CR LF", [USAGE.replace(b"\n", b"\r\n"), b"data: [DONE]\r\n\r\n"]),
    ("CR LF cut between the two", [USAGE[:-2] + b"\r", b"\n\r", b"\ndata: [DONE]\r", b"\n\r\n"]),
    ("CR alone", [USAGE.replace(b"\n", b"\r"), b"data: [DONE]\r\r"]),
    ("usage and the end in one piece", [USAGE + DONE]),
    ("byte by byte", [bytes([byte]) for byte in USAGE + DONE]),
    ("a byte-order mark first", [b"\xef\xbb\xbf" + USAGE, DONE]),
    ("the blank line behind the end is missing", [USAGE, b"data: [DONE]\n"]),
    ("spaces behind the end", [USAGE, b"data: [DONE]  \n\n"]),
]


@pytest.mark.parametrize("pieces", [row[1] for row in SPELLED], ids=[row[0] for row in SPELLED])
async def test_however_an_engine_spells_its_events_usage_counts_once_and_the_end_is_exact(
    autojump_clock: MockClock, pieces: list[bytes]
) -> None:
    async with world(Engine(says(carried(*pieces)))) as w:
        answer = await w.chat(stream_options={"include_usage": True})

        assert answer.body.endswith(DONE)
        assert len(answer.events) == 2
        assert b"\r" not in answer.body
        assert b'"prompt_tokens":7' in answer.body
        assert (w.record.outcome, w.record.prompt_tokens, w.record.completion_tokens) == ("ok", 7, 2)


async def test_an_event_without_the_space_keeps_its_bytes(autojump_clock: MockClock) -> None:
    """G1"""
    bare = delta("a").replace(b"data: ", b"data:")
    async with world(Engine(says(stream(bare, DONE)))) as w:
        answer = await w.chat()

        assert answer.events == [bare, DONE]


async def test_events_are_framed_by_their_blank_line_and_not_by_the_read(autojump_clock: MockClock) -> None:
    """G3"""
    first, second = delta("a"), delta("b")
    script = says(SSE_HEAD, chunk(first[:9]), 0.1, chunk(first[9:] + second), 0.1, chunk(DONE), LAST)
    async with world(Engine(script)) as w:
        answer = await w.chat()

        assert answer.events == [first, second, DONE]


async def test_event_by_event_the_client_has_one_before_the_engine_sends_the_next(autojump_clock: MockClock) -> None:
    """G13"""
    told = [trio.Event() for _ in range(5)]
    acts: list = [SSE_HEAD]
    for number, event in enumerate(told):
        acts += [chunk(delta(f"<{number}>")), event]
    async with world(Engine(says(*acts, chunk(DONE), LAST))) as w:
        client = w.client()
        await client.post("/v1/chat/completions", chat())
        for number, event in enumerate(told):
            body = await client.until(b"<%d>" % number)
            assert body.endswith(b"\n\n")
            event.set()
        answer = await client.answer()

        assert answer.events[-1] == DONE
        assert trio.current_time() < 0.1


async def test_a_stream_says_that_nobody_may_buffer_it(autojump_clock: MockClock) -> None:
    """G12"""
    async with world(Engine(says(stream(delta("a"), DONE)))) as w:
        answer = await w.chat()

        assert answer.header(b"content-type") == [b"text/event-stream; charset=utf-8"]
        assert answer.header(b"cache-control") == [b"no-cache"]
        assert answer.header(b"x-accel-buffering") == [b"no"]
        assert answer.header(b"content-length") == []


TRUNCATED = [
    ("cleanly", [LAST]),
    ("by closing", [CLOSE]),
    ("by a reset", [RESET]),
    ("in the middle of an event", [chunk(b'data: {"choi'), LAST]),
    ("in the middle of a chunk", [b"40\r\ndata: ", CLOSE]),
]


@pytest.mark.parametrize("end", [row[1] for row in TRUNCATED], ids=[row[0] for row in TRUNCATED])
async def test_a_stream_that_stops_short_ends_with_an_error_event_and_no_done_of_ours(
    autojump_clock: MockClock, end: list
) -> None:
    """G6, G43: and nobody else is asked, since the client has a token."""
    other = Engine(says(stream(delta("x"), DONE)), "b")
    async with world(Engine(says(SSE_HEAD, chunk(delta("Hello wor")), 0.1, *end)), other) as w:
        answer = await w.chat()

        assert answer.status == 200
        assert answer.whole
        assert answer.events[0] == delta("Hello wor")
        assert json.loads(answer.events[1][6:])["error"]["code"] in ("upstream_error", "upstream_malformed")
        assert len(answer.events) == 2
        assert b"[DONE]" not in answer.body
        assert w.record.outcome in ("engine_broke", "engine_malformed")
        assert (w.record.completion_tokens, w.record.estimated, w.record.status) == (1, True, 200)
        assert other.got == []
        assert w.endpoint().breaker.failures == 1
