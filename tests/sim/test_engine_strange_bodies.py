"""No body, however strange, makes the simulated engine fail rather than refuse."""

from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from sim.engine_http import ROUTES
from tests.sim.engine_talk import Answer, engine

POSTS = sorted(path for path, methods in ROUTES.items() if "POST" in methods and path != "/sim/faults")
SCALARS = st.none() | st.booleans() | st.integers(-5, 50) | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.sampled_from(["", "hi", "user", "add", "text", "required", "tool", "é\0"])
KEYS = st.sampled_from(["role", "content", "type", "text", "name", "function", "parameters", "required", "properties"])
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)
TURNS = st.lists(st.fixed_dictionaries({"role": st.just("user")}, optional={"content": VALUES, "tool_calls": VALUES}))
SCHEMAS = st.fixed_dictionaries(
    {"properties": st.dictionaries(KEYS, VALUES, max_size=2) | VALUES},
    optional={"type": st.sampled_from(["object", "string", ["integer", "null"], []]) | VALUES, "required": VALUES},
)
NAMED = {"name": st.just("add"), "parameters": SCHEMAS, "input_schema": SCHEMAS}
TOOLS = st.lists(
    st.fixed_dictionaries(NAMED) | st.fixed_dictionaries({"function": st.fixed_dictionaries(NAMED)}), min_size=1
)
FIELDS = {
    "messages": TURNS | VALUES,
    "prompt": VALUES,
    "input": TURNS | VALUES,
    "query": VALUES,
    "documents": VALUES,
    "text_1": VALUES,
    "text_2": VALUES,
    "tokens": VALUES,
    "tools": VALUES,
    "tool_choice": st.just("required") | VALUES,
    "model": st.just("sim") | VALUES,
    "max_tokens": st.just(3) | VALUES,
    "stream": st.booleans() | VALUES,
    "stream_options": VALUES,
    "n": VALUES,
    "seed": VALUES,
    "temperature": VALUES,
    "min_tokens": VALUES,
    "system": VALUES,
    "instructions": VALUES,
    "previous_response_id": VALUES,
    "dimensions": VALUES,
    "top_n": VALUES,
    "encoding_format": VALUES,
}
SOUND = {
    "messages": [{"role": "user", "content": "please add"}],
    "prompt": "x",
    "input": "x",
    "query": "x",
    "documents": ["x"],
    "text_1": "x",
    "text_2": ["x"],
    "tokens": [1],
    "max_tokens": 3,
    "max_output_tokens": 3,
}
BODIES = st.builds(lambda strange: {**SOUND, **strange}, st.fixed_dictionaries({}, optional=FIELDS))
CALLING = st.builds(lambda tools: {**SOUND, "tools": tools, "tool_choice": "required"}, TOOLS)


@settings(max_examples=300, deadline=None)
@given(path=st.sampled_from(POSTS), body=BODIES | VALUES)
def test_a_strange_body_is_answered_or_refused(path: str, body: Any):
    check(path, body)


@settings(max_examples=150, deadline=None)
@given(path=st.sampled_from(["/v1/chat/completions", "/v1/responses", "/v1/messages"]), body=CALLING)
def test_a_tool_with_a_strange_schema_is_called_or_refused(path: str, body: Any):
    check(path, body)


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 100_000, b"", b"\xff", b'{"model":"\\ud800"}'])
def test_what_is_no_json_is_refused(path: str, body: bytes):
    answer, _ = trio.run(answered, path, body, clock=MockClock(autojump_threshold=0))
    assert answer.status == (200 if path == "/ping" else 400)


def check(path: str, body: Any) -> None:
    answer, state = trio.run(answered, path, body, clock=MockClock(autojump_threshold=0))
    assert answer.status < 500, answer.body
    assert answer.whole
    assert (state["blocks"]["used"], state["running"], state["waiting"]) == (0, 0, 0)


async def answered(path: str, body: Any) -> tuple[Answer, Any]:
    async with engine() as talk:
        return await talk.post(path, body), await talk.state()
