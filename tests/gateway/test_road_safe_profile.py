"""What reaches a client of an engine's event lines: the safe profile, around the same JSON, in each family."""

import json
from pathlib import Path

import pytest
from trio.testing import MockClock

from tests.gateway.engine_bytes import CLOSE, DONE, LAST, SSE_HEAD, chunk, delta, event, says, stream
from tests.gateway.world import Answer, Engine, World, chat, world

RECORDED = Path(__file__).parent.parent / "wire" / "recorded"
PARAMS = {"model": "m", "stream": True, "input": "hi", "messages": [], "max_tokens": 4}
TOOLS = [
    event({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f"}}]}}]}),
    event({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "b", "function": {"name": "g"}}]}}]}),
    event({"choices": [{"index": 0, "delta": {"tool_calls": [{"id": "", "function": {"arguments": '{"a":'}}]}}]}),
    b'data: {"choices": [ {"delta": {"tool_calls": [{"function": {"arguments":"1e2\\u0020}"}}]} } ]  , "x":1.50 }\n\n',
]


async def test_tool_calls_pass_byte_for_byte_however_strange(autojump_clock: MockClock) -> None:
    """G15"""
    async with world(Engine(says(stream(*TOOLS, DONE)))) as w:
        answer = await w.chat()

        assert answer.events == [*TOOLS, DONE]
        assert w.record.completion_tokens == len(TOOLS)


ONE = b'{"choices":[{"delta":{"content":"a"}}]}'
LINES = [
    ("id", b"id: 7\ndata: " + ONE + b"\n\n"),
    ("retry", b"retry: 3000\ndata: " + ONE + b"\n\n"),
    ("event", b"event: message\ndata: " + ONE + b"\n\n"),
    ("a comment inside", b": x\ndata: " + ONE + b"\n\n"),
    ("an unknown field", b"foo: bar\ndata: " + ONE + b"\n\n"),
    ("a field without a colon", b"data: " + ONE + b"\nfoo\n\n"),
    ("several blank lines", b"\n\ndata: " + ONE + b"\n\n\n\n"),
    ("two data lines", b'data: {"choices":\ndata: [{"delta":{"content":"a"}}]}\n\n'),
    ("CR LF", b"data: " + ONE + b"\r\n\r\n"),
]


@pytest.mark.parametrize("sent", [row[1] for row in LINES], ids=[row[0] for row in LINES])
async def test_an_event_that_would_break_clients_is_made_anew_around_its_json(
    autojump_clock: MockClock, sent: bytes
) -> None:
    """G2, G10"""
    async with world(Engine(says(SSE_HEAD, chunk(sent), chunk(DONE), LAST))) as w:
        answer = await w.chat()

        assert len(answer.events) == 2
        first, end = answer.events
        assert first.startswith(b"data: {")
        assert first.count(b"\n") == 2
        assert json.loads(first[6:]) == json.loads(ONE)
        assert end == DONE
        assert w.record.completion_tokens == 1


SILENT = [
    b"data:\n\n",
    b"data: \n\n",
    b"data\n\n",
    b": ping\n\n",
    b":\n\n",
    b"event: ping\n\n",
    b"retry: 3000\n\n",
    b"id: 1\n\n",
]


@pytest.mark.parametrize("sent", SILENT)
async def test_what_says_nothing_is_not_passed_on_and_is_no_token(autojump_clock: MockClock, sent: bytes) -> None:
    """G10"""
    async with world(Engine(says(SSE_HEAD, chunk(sent), 1.0, chunk(delta("a")), chunk(sent), chunk(DONE), LAST))) as w:
        answer = await w.chat()

        assert answer.events == [delta("a"), DONE]
        assert w.record.ttft_s == pytest.approx(1.0, abs=0.01)
        assert w.record.completion_tokens == 1


async def test_done_is_the_end_and_nothing_behind_it_is_passed_on(autojump_clock: MockClock) -> None:
    async with world(Engine(says(SSE_HEAD, chunk(delta("a") + DONE + delta("b")), LAST))) as w:
        answer = await w.chat()

        assert answer.events == [delta("a"), DONE]
        assert w.record.outcome == "ok"


async def test_a_token_that_says_done_is_not_the_end(autojump_clock: MockClock) -> None:
    async with world(Engine(says(stream(delta("[DONE]"), delta("data: [DONE]\n\n"), DONE)))) as w:
        answer = await w.chat()

        assert answer.events == [delta("[DONE]"), delta("data: [DONE]\n\n"), DONE]


# -- the other families -----------------------------------------------------------------------------


def recorded(name: str) -> list[bytes]:
    text = (RECORDED / f"vllm-0.32.0-{name}-stream.sse").read_bytes()
    return [one + b"\n\n" for one in text.split(b"\n\n") if one.strip()]


FAMILIES = [
    ("/v1/chat/completions", "chat", (0, 3)),
    ("/v1/messages", "messages", (16, 4)),
    ("/v1/responses", "responses", (16, 4)),
]


@pytest.mark.parametrize(("path", "name", "usage"), FAMILIES)
async def test_a_recorded_stream_of_vllm_passes_byte_for_byte(
    autojump_clock: MockClock, path: str, name: str, usage: tuple[int, int]
) -> None:
    events = recorded(name)
    async with world(Engine(says(stream(*events)))) as w:
        answer = await w.post(path, PARAMS)

        assert answer.events == events
        assert w.record.outcome == "ok"
        assert (w.record.prompt_tokens, w.record.completion_tokens) == usage


@pytest.mark.parametrize(("path", "name"), [row[:2] for row in FAMILIES[1:]])
async def test_a_done_from_the_engine_is_swallowed_where_clients_know_none(
    autojump_clock: MockClock, path: str, name: str
) -> None:
    events = recorded(name)
    async with world(Engine(says(stream(*events[:-1], DONE, events[-1], DONE)))) as w:
        answer = await w.post(path, PARAMS)

        assert answer.events == events
        assert w.record.outcome == "ok"


async def asked(w: World, path: str) -> Answer:
    return await w.post(path, PARAMS)


@pytest.mark.parametrize("end", [[LAST], [CLOSE]])
async def test_a_cut_messages_stream_ends_with_an_anthropic_error_event(autojump_clock: MockClock, end: list) -> None:
    events = recorded("messages")[:4]
    async with world(Engine(says(SSE_HEAD, *map(chunk, events), *end))) as w:
        answer = await asked(w, "/v1/messages")

        assert answer.events[:4] == events
        name, data = answer.events[4].rstrip().split(b"\n")
        assert name == b"event: error"
        error = json.loads(data[6:])
        assert (error["type"], error["error"]["type"], error["request_id"]) == ("error", "api_error", w.record.id)
        assert answer.whole
        assert (w.record.outcome, w.record.prompt_tokens) == ("engine_broke", 16)


@pytest.mark.parametrize("end", [[LAST], [CLOSE]])
async def test_a_cut_responses_stream_ends_with_response_failed(autojump_clock: MockClock, end: list) -> None:
    events = recorded("responses")[:2]
    async with world(Engine(says(SSE_HEAD, *map(chunk, events), 1.0, *end))) as w:
        answer = await asked(w, "/v1/responses")

        name, data = answer.events[2].rstrip().split(b"\n")
        failed = json.loads(data[6:])
        assert name == b"event: response.failed"
        assert (failed["type"], failed["sequence_number"]) == ("response.failed", 2)
        assert failed["response"]["error"]["code"] == "upstream_error"
        assert answer.whole
        assert w.record.outcome == "engine_broke"


RESPONSES_ERRORS = [
    b'event: error\ndata: {"type":"error","code":"x","message":"boom","sequence_number":2}\n\n',
    b'data: {"error":{"object":"error","message":"boom"}}\n\n',
]


@pytest.mark.parametrize("error", RESPONSES_ERRORS)
async def test_an_error_event_on_responses_is_followed_by_the_failed_that_codex_waits_for(
    autojump_clock: MockClock, error: bytes
) -> None:
    events = [*recorded("responses")[:2], error]
    async with world(Engine(says(SSE_HEAD, *map(chunk, events[:2]), 1.0, chunk(error), LAST))) as w:
        answer = await asked(w, "/v1/responses")

        assert answer.events[:3] == events
        failed = json.loads(answer.events[3].split(b"\n")[1][6:])
        assert (failed["type"], failed["response"]["error"]["message"]) == ("response.failed", "boom")
        assert len(answer.events) == 4
        assert w.record.outcome == "engine_failed_inside"


async def test_a_failed_response_is_whole_and_still_a_failure(autojump_clock: MockClock) -> None:
    body = {"type": "response.failed", "response": {"status": "failed", "error": {"message": "boom"}}}
    events = [*recorded("responses")[:2], b"event: response.failed\n" + event(body)]
    async with world(Engine(says(stream(*events)))) as w:
        answer = await asked(w, "/v1/responses")

        assert answer.events == events
        assert w.record.outcome == "engine_failed_inside"


MESSAGES_ERRORS = [
    b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"boom"}}\n\n',
    b'data: {"type":"error","error":{"type":"overloaded_error","message":"boom"}}\n\n',
    b'data: {"error":{"message":"boom","code":500}}\n\n',
    b'event: error\ndata: {"error":"boom"}\n\n',
]


@pytest.mark.parametrize("error", MESSAGES_ERRORS)
async def test_an_error_event_on_messages_is_one_anthropic_clients_see(autojump_clock: MockClock, error: bytes) -> None:
    async with world(Engine(says(stream(*recorded("messages")[:4], error)))) as w:
        answer = await asked(w, "/v1/messages")

        assert len(answer.events) == 5
        name, data = answer.events[4].rstrip().split(b"\n")
        assert name == b"event: error"
        assert json.loads(data[6:])["error"]["message"] == "boom"
        assert w.record.outcome == "engine_failed_inside"


async def test_a_stream_that_was_not_asked_for_is_piped_as_any_answer(autojump_clock: MockClock) -> None:
    """Only the body's ``stream`` decides, not the content type that comes."""
    async with world(Engine(says(stream(delta("a"), DONE)))) as w:
        answer = await w.chat(stream=False)

        assert answer.body == delta("a") + DONE
        assert answer.header(b"content-type") == [b"text/event-stream"]


@pytest.mark.parametrize("kind", [b"application/json", b"text/html"])
async def test_an_answer_that_is_no_stream_is_not_passed_off_as_one(autojump_clock: MockClock, kind: bytes) -> None:
    script = says(b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: 13\r\n\r\n<html></html>" % kind)
    async with world(Engine(script)) as w:
        answer = await w.post("/v1/chat/completions", chat())

        assert (answer.status, answer.error["code"]) == (502, "upstream_malformed")
        assert b"<html>" not in answer.body
