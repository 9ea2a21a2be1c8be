"""What is read of engines' answers: recorded streams, usage wherever it stands, failures in every shape."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llmgw.wire.answers import (
    ChatReading,
    Kind,
    MessagesReading,
    NotJson,
    Reading,
    ResponsesReading,
    Usage,
    usage_in_tail,
    usage_of_answer,
)
from llmgw.wire.engine_errors import EngineError, read_error
from llmgw.wire.sse import Framer, read_event

RECORDED = Path(__file__).parent / "recorded"
TOKEN, ROLE, OTHER, END = Kind.TOKEN, Kind.PREAMBLE, Kind.OTHER, Kind.END


def read_all(reading: Reading, text: bytes, named: bool) -> list[Kind]:
    events = [read_event(raw, named) for raw in Framer(1 << 20).feed(text)]
    return [reading.read(event.data, event.name) for event in events if event.data is not None]


STREAMS = [
    ("chat", ChatReading, [ROLE, TOKEN, TOKEN, OTHER, TOKEN, END], None, 3),
    ("messages", MessagesReading, [ROLE, ROLE, TOKEN, TOKEN, TOKEN, OTHER, OTHER, END], Usage(16, 4), 3),
    ("responses", ResponsesReading, [ROLE, ROLE, END], Usage(16, 4), 0),
]


@pytest.mark.parametrize(("name", "reading", "kinds", "usage", "tokens"), STREAMS)
def test_recorded_streams_of_vllm_are_read(
    name: str, reading: Any, kinds: list[Kind], usage: Usage | None, tokens: int
) -> None:
    one = reading()
    text = (RECORDED / f"vllm-0.32.0-{name}-stream.sse").read_bytes()

    assert read_all(one, text, named=name != "chat") == kinds
    assert (one.usage, one.tokens, one.failure) == (usage, tokens, "")


def recorded_answers() -> dict[str, tuple[int, bytes]]:
    """Heading -> status and body, of the recorded plain answers."""
    found = {}
    for part in (RECORDED / "vllm-0.32.0-answers.txt").read_bytes().split(b"## ")[1:]:
        heading, _, answer = part.partition(b"\n")
        head, _, body = answer.replace(b"\r\n", b"\n").partition(b"\n\n")
        found[heading.decode().strip()] = (int(head.split(b" ")[1]), body.strip())
    return found


ERRORS = [
    ("unknown model", "does not exist", "model", None),
    ("context too long", "maximum context length", "input_text", "context_length_exceeded"),
    ("bad json", "JSON decode error", "body.9", None),
    ("missing messages", "Field required", "body.messages", None),
    ("bad temperature", "must be non-negative", "temperature", None),
    ("method", "Method Not Allowed", None, None),
]


@pytest.mark.parametrize(("heading", "words", "param", "code"), ERRORS)
def test_recorded_errors_of_vllm_keep_their_words(
    heading: str, words: str, param: str | None, code: str | None
) -> None:
    _, body = recorded_answers()[heading]
    error = read_error(body)

    assert words in error.message
    assert (error.param, error.code) == (param, code)


def test_recorded_plain_answers_tell_their_usage() -> None:
    answers = recorded_answers()
    assert usage_of_answer(answers["responses"][1]) == Usage(16, 4)
    assert usage_of_answer(answers["version"][1]) is None
    with pytest.raises(NotJson):
        usage_of_answer(b"")


OPENAI = b'{"error":{"message":"M","type":"t","param":"p","code":"c"}}'
VLLM = b'{"error":{"message":"M","type":"BadRequestError","param":null,"code":400}}'
FLAT = b'{"object":"error","message":"M","type":"BadRequest","param":null,"code":400}'
ANTHROPIC = b'{"type":"error","error":{"type":"overloaded_error","message":"M"}}'
SHAPES = [
    ("OpenAI's", OPENAI, EngineError("M", "t", "p", "c")),
    ("vLLM's", VLLM, EngineError("M", "BadRequestError")),
    ("flat", FLAT, EngineError("M", "BadRequest")),
    ("a string", b'{"error":"M"}', EngineError("M")),
    ("FastAPI's", b'{"detail":"M"}', EngineError("M")),
    ("Anthropic's", ANTHROPIC, EngineError("M", "overloaded_error")),
    ("only a message", b'{"error":{"message":"M"}}', EngineError("M")),
    ("nested", b'{"error":{"error":{"message":"M"}}}', EngineError("M")),
    ("a JSON string", b'"M"', EngineError("M")),
    ("an empty message", b'{"error":{"message":"","code":500}}', EngineError("")),
    ("no words", b'{"error":{"code":"c"}}', EngineError("", code="c")),
    ("an empty object", b"{}", EngineError("")),
    ("a list", b'{"detail":[{"loc":["body"],"msg":"M"}]}', EngineError('[{"loc":["body"],"msg":"M"}]')),
    ("HTML", b"<html>M</html>", EngineError("")),
    ("text", b"Internal Server Error", EngineError("")),
    ("nothing", b"", EngineError("")),
    ("deep", b"[" * 100_000, EngineError("")),
    ("bad bytes", b'{"error":"\xff"}', EngineError("")),
]


@pytest.mark.parametrize(("body", "read"), [row[1:] for row in SHAPES], ids=[row[0] for row in SHAPES])
def test_an_error_of_any_shape_is_one_value(body: bytes, read: EngineError) -> None:
    assert read_error(body) == read


@pytest.mark.parametrize(
    "body",
    [
        b'{"error":{"message":"x","type":"exceed_context_size_error","code":400}}',
        b'{"object":"error","message":"The input is longer than the model\'s context length.","code":400}',
        b'{"error":"prompt exceeds the context window"}',
    ],
)
def test_a_context_too_long_is_known_in_every_engines_words(body: bytes) -> None:
    assert read_error(body).code == "context_length_exceeded"


json_values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(-1e9, 1e9), st.text(max_size=5)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from("error message type param code choices delta content usage response object prompt_tokens"
                        " completion_tokens role detail".split()),
        inner, max_size=4,
    ),
    max_leaves=15,
)  # fmt: skip


@given(
    json_values, st.sampled_from([b"", b"error", b"message_start", b"response.completed", b"response.failed", b"\xff"])
)
@example({"response": True}, b"response.failed")
def test_no_json_however_strange_breaks_a_reading(value: Any, name: bytes) -> None:
    data = json.dumps(value).encode()
    for reading in (ChatReading(), ResponsesReading(), MessagesReading()):
        kind = reading.read(data, name)
        assert kind is not Kind.MALFORMED
        assert kind is not Kind.ERROR or isinstance(reading.failure, str)
    assert isinstance(read_error(data).message, str)
    usage_of_answer(data)
    usage_in_tail(data)


@pytest.mark.parametrize("depth", range(940, 1010, 1))
def test_an_error_of_any_depth_is_read(depth: int) -> None:
    read_error(b'{"error":' + b"[" * depth + b"1" + b"]" * depth + b"}")
    read_error(b'{"error":' * depth + b"1" + b"}" * depth)


@given(st.binary(max_size=40))
def test_no_bytes_however_strange_break_a_reading(data: bytes) -> None:
    for reading in (ChatReading(), ResponsesReading(), MessagesReading()):
        reading.read(data, data)
    read_error(data)
    with suppress(NotJson):
        usage_of_answer(data)
    usage_in_tail(data)


def chat(**members: Any) -> bytes:
    return json.dumps(members).encode()


KINDS = [
    (chat(choices=[{"delta": {"role": "assistant"}}]), ROLE),
    (chat(choices=[{"delta": {"role": "assistant", "content": ""}}]), ROLE),
    (chat(choices=[{"delta": {"role": "assistant", "content": None}, "finish_reason": None}]), ROLE),
    (chat(choices=[{"delta": {"role": "assistant", "content": "a"}}]), TOKEN),
    (chat(choices=[{"delta": {"role": "assistant", "tool_calls": [{}]}}]), TOKEN),
    (chat(choices=[{"delta": {"role": "assistant", "reasoning": "r"}}]), TOKEN),
    (chat(choices=[{"delta": {"reasoning_content": "r"}}]), TOKEN),
    (chat(choices=[{"delta": {"refusal": "r"}}]), TOKEN),
    (chat(choices=[{"text": "a"}]), TOKEN),
    (chat(choices=[{"text": ""}]), OTHER),
    (chat(choices=[{"delta": {"role": "assistant"}, "finish_reason": "stop"}]), OTHER),
    (chat(choices=[{"delta": {}}]), OTHER),
    (chat(choices=[]), OTHER),
    (chat(), OTHER),
    (chat(choices=[], usage={"prompt_tokens": 1}), Kind.USAGE_ONLY),
    (chat(choices=[], usage=None), OTHER),
    (chat(usage={"prompt_tokens": 1}), OTHER),
    (chat(choices=None, usage={"prompt_tokens": 1}), OTHER),
    (chat(error={"message": "x"}), Kind.ERROR),
    (chat(error="x", choices=[]), Kind.ERROR),
    (chat(error=None, choices=[{"text": "a"}]), TOKEN),
    (chat(object="error", message="x"), Kind.ERROR),
    (b"[DONE]", END),
    (b" [DONE] ", END),
    (b"[DONE", Kind.MALFORMED),
    (b"[" * 100_000, Kind.MALFORMED),
]


@pytest.mark.parametrize(("data", "kind"), KINDS)
def test_what_an_event_of_a_chat_means(data: bytes, kind: Kind) -> None:
    assert ChatReading().read(data, b"") is kind


def test_several_choices_in_one_event_are_several_tokens() -> None:
    reading = ChatReading()
    reading.read(chat(choices=[{"text": "a"}, {"text": "b"}, {"text": ""}]), b"")
    assert reading.tokens == 2


USAGES = [
    ({"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}, Usage(3, 4)),
    ({"input_tokens": 3, "output_tokens": 4}, Usage(3, 4)),
    ({"prompt_tokens": 3, "total_tokens": 3}, Usage(3, 0)),
    ({"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}, Usage(3, 0, 2)),
    ({"prompt_tokens": 3, "prompt_tokens_details": None, "completion_tokens": None}, Usage(3, 0)),
    ({"input_tokens": 3, "input_tokens_details": {"cached_tokens": 2, "x": [1]}}, Usage(3, 0, 2)),
    ({"input_tokens": 3, "cache_read_input_tokens": 2}, Usage(3, 0, 2)),
    ({}, Usage()),
]


@pytest.mark.parametrize(("given_", "read"), USAGES)
def test_usage_in_every_spelling(given_: dict[str, Any], read: Usage) -> None:
    answer = json.dumps({"data": [1, {"usage": "no"}], "usage": given_}).encode()
    assert usage_of_answer(answer) == read
    assert usage_in_tail(answer[9:]) == read


@given(st.integers(0, 120))
def test_a_tail_that_begins_anywhere_never_invents_usage(at: int) -> None:
    answer = b'{"data":"' + b"x" * 50 + b'","usage":{"prompt_tokens":3,"completion_tokens":4},"id":"}"}'
    assert usage_in_tail(answer[at:]) in (Usage(3, 4), None)


def test_messages_take_input_from_the_start_and_output_from_the_last_delta() -> None:
    reading = MessagesReading()
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 9, "cache_read_input_tokens": 5}}}
    reading.read(json.dumps(start).encode(), b"message_start")
    for count in (1, 4):
        delta = {"type": "message_delta", "usage": {"output_tokens": count}}
        reading.read(json.dumps(delta).encode(), b"message_delta")
    assert reading.usage == Usage(9, 4, 5)


@pytest.mark.parametrize("end", ["response.completed", "response.incomplete", "response.failed"])
def test_responses_end_with_any_terminal_event_with_or_without_its_name(end: str) -> None:
    body = {"type": end, "response": {"usage": {"input_tokens": 1, "output_tokens": 2}, "error": {"message": "x"}}}
    for data, name in ((json.dumps(body), b""), (json.dumps(body | {"type": ""}), end.encode())):
        reading = ResponsesReading()
        assert reading.read(data.encode(), name) is END
        assert reading.usage == Usage(1, 2)
        assert reading.failure == ("x" if end == "response.failed" else "")
