"""What engines put into their events: errors, usage, tool calls, preambles, lines that break clients."""

import json
from typing import Any

import pytest
from trio.testing import MockClock

from llmgw.gateway.limits import RelayLimits
from tests.gateway.engine_bytes import (
    CLOSE,
    DONE,
    LAST,
    SSE_HEAD,
    USAGE,
    chunk,
    delta,
    event,
    says,
    stream,
)
from tests.gateway.world import Engine, chat, world


def told(answer: Any, at: int = -1) -> Any:
    """The JSON of one event."""
    line = next(line for line in answer.events[at].split(b"\n") if line.startswith(b"data: "))
    return json.loads(line[6:])


# -- errors in the middle ---------------------------------------------------------------------------

INSIDE = [
    ("OpenAI's", {"error": {"message": "boom", "type": "x", "param": None, "code": 500}}),
    ("a string", {"error": "boom"}),
    ("flat", {"object": "error", "message": "boom", "type": "InternalServerError", "code": 500}),
    ("nested twice", {"error": {"object": "error", "message": "boom"}}),
]


@pytest.mark.parametrize("error", [row[1] for row in INSIDE], ids=[row[0] for row in INSIDE])
async def test_an_error_event_of_any_shape_is_one_that_clients_notice(autojump_clock: MockClock, error: Any) -> None:
    """G7: relayed if it has the shape clients read, made anew if not; once; the outcome is a failure."""
    script = says(stream(delta("a"), delta("b"), event(error), DONE))
    async with world(Engine(script)) as w:
        answer = await w.chat()

        assert answer.events[:2] == [delta("a"), delta("b")]
        assert "boom" in told(answer, 2)["error"]["message"]
        assert answer.events[3:] == [DONE]
        assert answer.body.count(b"boom") == 1
        assert w.record.outcome == "engine_failed_inside"
        assert w.record.completion_tokens == 2


@pytest.mark.parametrize("end", [[LAST], [CLOSE]])
async def test_an_error_event_is_not_followed_by_another_when_the_stream_then_breaks(
    autojump_clock: MockClock, end: list
) -> None:
    error = event({"error": {"message": "boom"}})
    async with world(Engine(says(SSE_HEAD, chunk(delta("a")), chunk(error), *end))) as w:
        answer = await w.chat()

        assert answer.events == [delta("a"), error]
        assert w.record.outcome == "engine_failed_inside"


async def test_an_error_before_any_token_is_a_plain_answer_with_a_status(autojump_clock: MockClock) -> None:
    async with world(Engine(says(stream(event({"error": {"message": "out of memory"}}), DONE)))) as w:
        answer = await w.chat()

        assert answer.status == 502
        assert answer.error["message"] == "out of memory"
        assert answer.header(b"content-type") == [b"application/json"]


@pytest.mark.parametrize("bad", [b"data: {nope\n\n", b"data: \xff\xfe\n\n", b"data: hello\n\n"])
async def test_an_event_that_is_not_json_never_reaches_the_client(autojump_clock: MockClock, bad: bytes) -> None:
    async with world(Engine(says(stream(delta("a"), bad, delta("b"), DONE)))) as w:
        answer = await w.chat()

        assert answer.events[0] == delta("a")
        assert told(answer)["error"]["code"] == "upstream_malformed"
        assert len(answer.events) == 2
        assert w.record.outcome == "engine_malformed"


async def test_an_event_without_an_end_is_cut_off_at_its_bound(autojump_clock: MockClock) -> None:
    script = says(SSE_HEAD, chunk(delta("a")), *[chunk(b"data: " + b"x" * 10_000) for _ in range(20)])
    async with world(Engine(script), limits=RelayLimits(event_max=50_000)) as w:
        answer = await w.chat()

        assert told(answer)["error"]["code"] == "upstream_malformed"
        assert w.record.outcome == "engine_malformed"


# -- usage ------------------------------------------------------------------------------------------


async def test_usage_we_asked_for_is_hidden_and_usage_the_client_asked_for_is_not(autojump_clock: MockClock) -> None:
    """G11"""
    async with world(Engine(says(stream(delta("a"), USAGE, DONE)))) as w:
        hidden = await w.chat()
        shown = await w.chat(stream_options={"include_usage": True})

        assert hidden.events == [delta("a"), DONE]
        assert shown.events == [delta("a"), USAGE, DONE]
        assert [record.prompt_tokens for record in w.closed] == [7, 7]
        assert [got.json()["stream_options"] for got in w.engines["a"].got] == [{"include_usage": True}] * 2


async def test_usage_nobody_asked_for_is_the_clients_own_where_we_do_not_inject(autojump_clock: MockClock) -> None:
    """G11: only what llmgw injected is hidden."""
    engine = Engine(says(stream(delta("a"), USAGE, DONE)), options={"inject_usage": False})
    async with world(engine) as w:
        answer = await w.chat()

        assert "stream_options" not in engine.got[0].json()
        assert answer.events == [delta("a"), USAGE, DONE]


OTHER_CARRIERS = [
    {"usage": {"prompt_tokens": 7, "completion_tokens": 2}},  # no choices
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 7}},
    {"choices": [], "usage": None},
    {"choices": [], "sglext": {"ids": [1]}},
]


@pytest.mark.parametrize("carrier", OTHER_CARRIERS)
async def test_an_event_that_is_more_than_usage_is_never_hidden(autojump_clock: MockClock, carrier: Any) -> None:
    """G11"""
    async with world(Engine(says(stream(delta("a"), event(carrier), DONE)))) as w:
        answer = await w.chat()

        assert answer.events == [delta("a"), event(carrier), DONE]
        assert w.record.prompt_tokens == (7 if carrier.get("usage") else 0)


async def test_a_usage_that_runs_along_is_not_summed(autojump_clock: MockClock) -> None:
    events = [delta("x", usage=None)]
    for count in (1, 2, 3):
        body = json.loads(delta("a")[6:]) | {"usage": {"prompt_tokens": 5, "completion_tokens": count}}
        events.append(event(body))
    async with world(Engine(says(stream(*events, DONE)))) as w:
        await w.chat()

        assert (w.record.prompt_tokens, w.record.completion_tokens) == (5, 3)


@pytest.mark.parametrize(
    "options", [None, {}, {"include_usage": False}, {"continuous_usage_stats": True, "x": [1, "}"]}]
)
async def test_whatever_stream_options_the_client_sends_usage_is_added_and_the_rest_kept(
    autojump_clock: MockClock, options: Any
) -> None:
    engine = Engine(says(stream(delta("a"), DONE)))
    async with world(engine) as w:
        await w.chat(stream_options=options)

        assert engine.got[0].json()["stream_options"] == {**(options or {}), "include_usage": True}


async def test_usage_is_asked_for_only_on_streams(autojump_clock: MockClock) -> None:
    engine = Engine(says(stream(DONE)))
    async with world(engine) as w:
        for body in (chat(stream=False), {"model": "m", "stream": None}, {"model": "m"}):
            await w.post("/v1/chat/completions", body)

        assert all("stream_options" not in got.json() for got in engine.got)
