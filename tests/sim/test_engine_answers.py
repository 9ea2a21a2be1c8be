"""The simulated engine answers as vLLM does, on every route."""

import json
import struct
from base64 import b64decode
from typing import Any

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from llmgw.core.fleet import Engine
from llmgw.wire.engine_metrics import read_metrics
from sim.engine_model import EngineShape
from sim.serving import EngineSpec
from tests.sim.engine_talk import chat, engine

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
        },
    },
}
WEATHER = {"city": "word", "days": 7}


async def test_the_same_prompt_and_seed_give_the_same_text_plain_and_streamed(autojump_clock: Any):
    async with engine() as talk:
        plain = (await talk.post("/v1/chat/completions", chat(max_tokens=12, seed=3))).json()
        streamed = await talk.post("/v1/chat/completions", chat(max_tokens=12, seed=3, stream=True))
        other = (await talk.post("/v1/chat/completions", chat(max_tokens=12, seed=4))).json()
    text = plain["choices"][0]["message"]["content"]
    events = streamed.events()
    assert "".join(e["choices"][0]["delta"]["content"] for e in events[:-1]) == text
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert events[-2]["choices"][0]["finish_reason"] == "length"
    assert events[-1] == "[DONE]"
    assert len(events) == 12 + 2
    assert other["choices"][0]["message"]["content"] != text
    assert plain["usage"]["completion_tokens"] == 12


async def test_usage_comes_in_a_chunk_without_choices_when_asked_for(autojump_clock: Any):
    async with engine() as talk:
        asked = chat(max_tokens=3, stream=True, stream_options={"include_usage": True})
        events = (await talk.post("/v1/chat/completions", asked)).events()
        without = (await talk.post("/v1/chat/completions", chat(max_tokens=3, stream=True))).events()
        refused = await talk.post("/v1/chat/completions", chat(stream_options={"include_usage": True}))
    assert events[-2]["choices"] == []
    assert events[-2]["usage"]["completion_tokens"] == 3
    assert not any("usage" in e for e in without[:-1])
    assert (refused.status, refused.json()["error"]["type"]) == (400, "Bad Request")


async def test_continuous_usage_counts_up(autojump_clock: Any):
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with engine() as talk:
        events = (
            await talk.post("/v1/completions", {"prompt": "x", "stream": True, "stream_options": options})
        ).events()
    assert [e["usage"]["completion_tokens"] for e in events[:-2]] == list(range(1, 17))


async def test_several_choices_say_different_things(autojump_clock: Any):
    async with engine() as talk:
        answer = (await talk.post("/v1/chat/completions", chat(max_tokens=8, n=3))).json()
        events = (await talk.post("/v1/chat/completions", chat(max_tokens=8, n=3, stream=True))).events()
    assert len({c["message"]["content"] for c in answer["choices"]}) == 3
    assert sum(e != "[DONE]" and e["choices"][0]["index"] == 2 for e in events) == 9


async def test_an_answer_stops_by_itself_unless_told_to_ignore_its_end(autojump_clock: Any):
    async with engine() as talk:
        stops = (await talk.post("/v1/chat/completions", chat())).json()
        goes_on = (await talk.post("/v1/chat/completions", chat(max_tokens=1000, ignore_eos=True))).json()
    assert stops["choices"][0]["finish_reason"] == "stop"
    assert stops["usage"]["completion_tokens"] < 300
    assert goes_on["usage"]["completion_tokens"] == 1000


@pytest.mark.parametrize(
    ("text", "more"),
    [("hello", {"tool_choice": "required"}), ("please get_weather", {}), ("hi", {"tool_choice": TOOL})],
)
async def test_a_tool_is_called_when_it_must_be_or_is_named(autojump_clock: Any, text: str, more: dict[str, Any]):
    async with engine() as talk:
        asked = chat(text, tools=[TOOL], **more)
        choice = (await talk.post("/v1/chat/completions", asked)).json()["choices"][0]
        events = (await talk.post("/v1/chat/completions", {**asked, "stream": True})).events()[1:-1]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "get_weather"
    assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) == WEATHER
    calls = [e["choices"][0]["delta"]["tool_calls"][0] for e in events]
    assert json.loads("".join(c["function"]["arguments"] for c in calls)) == WEATHER
    assert (calls[0]["function"]["name"], calls[0]["id"][:14]) == ("get_weather", "chatcmpl-tool-")
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_no_tool_is_called_when_none_is_named_or_it_has_answered(autojump_clock: Any):
    async with engine() as talk:
        unnamed = (await talk.post("/v1/chat/completions", chat(tools=[TOOL]))).json()
        told = [{"role": "user", "content": "get_weather"}, {"role": "tool", "content": "sunny"}]
        answered = (await talk.post("/v1/chat/completions", {"messages": told, "tools": [TOOL]})).json()
    assert [a["choices"][0]["finish_reason"] for a in (unnamed, answered)] == ["stop", "stop"]


async def test_completions_echo_and_take_token_ids(autojump_clock: Any):
    async with engine() as talk:
        ids = (await talk.post("/tokenize", {"prompt": "once upon"})).json()["tokens"]
        by_text = (await talk.post("/v1/completions", {"prompt": "once upon", "echo": True})).json()
        by_ids = (await talk.post("/v1/completions", {"prompt": ids, "echo": True})).json()
        streamed = (
            await talk.post("/v1/completions", {"prompt": ["once upon"], "echo": True, "stream": True})
        ).events()
    assert by_text["choices"][0]["text"].startswith("once upon")
    assert by_text["choices"] == by_ids["choices"]
    assert "".join(e["choices"][0]["text"] for e in streamed[:-1]) == by_text["choices"][0]["text"]


async def test_a_responses_stream_counts_its_events_and_ends_completed(autojump_clock: Any):
    async with engine() as talk:
        plain = (await talk.post("/v1/responses", {"input": "hi", "max_output_tokens": 4})).json()
        events = (await talk.post("/v1/responses", {"input": "hi", "max_output_tokens": 4, "stream": True})).events()
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    assert events[0]["type"] == "response.created"
    assert events[-1]["type"] == "response.completed"
    text = plain["output"][0]["content"][0]["text"]
    assert "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta") == text
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == text
    assert plain["incomplete_details"] == {"reason": "max_output_tokens"}
    assert plain["usage"]["output_tokens"] == 4


async def test_responses_call_tools(autojump_clock: Any):
    flat = {"type": "function", **TOOL["function"]}  # type: ignore[dict-item]
    async with engine() as talk:
        asked = {"input": [{"role": "user", "content": "get_weather"}], "tools": [flat]}
        plain = (await talk.post("/v1/responses", asked)).json()
        events = (await talk.post("/v1/responses", {**asked, "stream": True})).events()
    assert json.loads(plain["output"][0]["arguments"]) == WEATHER
    deltas = [e["delta"] for e in events if e["type"] == "response.function_call_arguments.delta"]
    assert json.loads("".join(deltas)) == WEATHER
    assert [e["sequence_number"] for e in events] == list(range(len(events)))


async def test_messages_speak_anthropic(autojump_clock: Any):
    asked = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "system": "be brief"}
    async with engine() as talk:
        plain = (await talk.post("/v1/messages", asked)).json()
        streamed = await talk.post("/v1/messages", {**asked, "stream": True})
        counted = (await talk.post("/v1/messages/count_tokens", asked)).json()
        refused = await talk.post("/v1/messages", {**asked, "model": "nope"})
    events = streamed.events()
    names = [line[7:] for line in streamed.body.decode().split("\n") if line.startswith("event: ")]
    assert names == [e["type"] for e in events]
    assert names == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 4,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert "".join(e["delta"]["text"] for e in events[2:6]) == plain["content"][0]["text"]
    assert plain["stop_reason"] == "max_tokens"
    assert plain["usage"] == {**plain["usage"], "output_tokens": 4, "input_tokens": counted["input_tokens"]}
    assert (refused.status, refused.json()["type"]) == (404, "error")


async def test_messages_call_tools(autojump_clock: Any):
    tool = {"name": "get_weather", "input_schema": TOOL["function"]["parameters"]}  # type: ignore[index]
    asked = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 99, "tools": [tool]}
    async with engine() as talk:
        plain = (await talk.post("/v1/messages", {**asked, "tool_choice": {"type": "any"}})).json()
        named = {**asked, "tool_choice": {"type": "tool", "name": "get_weather"}, "stream": True}
        events = (await talk.post("/v1/messages", named)).events()
    assert plain["content"][0]["input"] == WEATHER
    assert plain["stop_reason"] == "tool_use"
    pieces = [e["delta"]["partial_json"] for e in events if e["type"] == "content_block_delta"]
    assert json.loads("".join(pieces)) == WEATHER


async def test_embeddings_are_the_same_numbers_in_both_encodings(autojump_clock: Any):
    async with engine() as talk:
        floats = (await talk.post("/v1/embeddings", {"input": ["a", "b"], "dimensions": 16})).json()
        packed = (
            await talk.post("/v1/embeddings", {"input": "b", "dimensions": 16, "encoding_format": "base64"})
        ).json()
    assert len(floats["data"]) == 2
    unpacked = struct.unpack("<16f", b64decode(packed["data"][0]["embedding"]))
    assert unpacked == pytest.approx(floats["data"][1]["embedding"])
    assert floats["usage"]["prompt_tokens"] == 2


async def test_rerank_and_score_prefer_what_shares_words(autojump_clock: Any):
    documents = ["nothing here", "the red fox"]
    async with engine() as talk:
        ranked = (await talk.post("/v1/rerank", {"query": "red fox", "documents": documents, "top_n": 1})).json()
        scored = (await talk.post("/v1/score", {"text_1": "red fox", "text_2": documents})).json()
    assert [r["index"] for r in ranked["results"]] == [1]
    assert scored["data"][1]["score"] == ranked["results"][0]["relevance_score"] > scored["data"][0]["score"]


async def test_tokens_go_there_and_back(autojump_clock: Any):
    async with engine() as talk:
        tokens = (await talk.post("/tokenize", {"prompt": "héllo wörld\0", "return_token_strs": True})).json()
        text = (await talk.post("/detokenize", {"tokens": tokens["tokens"]})).json()
    assert text == {"prompt": "héllo wörld\0"}
    assert tokens["count"] == len(tokens["token_strs"])


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (chat(model="nope"), 404, "model"),
        ({"model": "sim"}, 400, "body.messages"),
        (b'{"model": ', 400, "body.0"),
        (chat(temperature=-3.0), 400, "temperature"),
        (chat("x" * 40_000), 400, "input_tokens"),
        (chat(max_tokens=9000), 400, "max_completion_tokens"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [3]}, 400, "messages"),
        (chat(tools=3), 400, "tools"),
    ],
)
async def test_what_vllm_refuses_is_refused_in_its_shape(autojump_clock: Any, body: Any, status: int, param: str):
    async with engine() as talk:
        answer = await talk.post("/v1/chat/completions", body)
    error = answer.json()["error"]
    assert (answer.status, error["code"], error["param"]) == (status, status, param)


async def test_unknown_paths_and_methods_are_refused(autojump_clock: Any):
    async with engine() as talk:
        unknown = await talk.ask("GET", "/nowhere")
        method = await talk.ask("GET", "/v1/chat/completions")
    assert (unknown.status, unknown.json()) == (404, {"detail": "Not Found"})
    assert (method.status, method.headers["allow"]) == (405, "POST")


async def test_a_key_is_asked_for_on_v1_alone(autojump_clock: Any):
    async with engine(EngineSpec(api_key="secret")) as talk:
        without = await talk.ask("GET", "/v1/models")
        with_it = await talk.ask("GET", "/v1/models", authorization="Bearer secret")
        health = await talk.ask("GET", "/health")
    assert (without.status, without.json()) == (401, {"error": "Unauthorized"})
    assert (with_it.status, health.status) == (200, 200)


async def test_a_chat_only_engine_knows_nothing_else(autojump_clock: Any):
    async with engine(EngineSpec(chat_only=True)) as talk:
        said = await talk.post("/v1/chat/completions", chat(max_tokens=1))
        others = [await talk.ask("GET", path) for path in ("/v1/models", "/health", "/metrics")]
    assert said.status == 200
    assert [(o.status, o.json()) for o in others] == [(404, {"detail": "Not Found"})] * 3


async def test_metrics_have_vllms_names(autojump_clock: Any):
    async with engine(EngineSpec(EngineShape(models=("tiny",)))) as talk:
        for _ in range(2):
            await talk.post("/v1/chat/completions", chat("x" * 640, max_tokens=5))
        text = (await talk.ask("GET", "/metrics")).body.decode()
    said = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    labels = 'engine="0",model_name="tiny"'
    assert said[f"vllm:generation_tokens_total{{{labels}}}"] == "10.0"
    assert float(said[f"vllm:prefix_cache_hits_total{{{labels}}}"]) == 160.0
    assert said['vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"}'] == "2.0"
    assert said['vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"}'] == "0.0"


async def test_metrics_say_how_long_first_tokens_took(autojump_clock: Any):
    async with engine(EngineSpec(EngineShape(slots=1, prefill_rate=1000, decode_rate=100))) as talk:
        await talk.post("/v1/completions", {"prompt": "x" * 4000, "max_tokens": 2})  # 1 s of prefill
        await talk.post("/sim/faults", {"slow_first_token_s": 30})
        await talk.post("/v1/completions", {"prompt": "x", "max_tokens": 2})
        text = (await talk.ask("GET", "/metrics")).body.decode()
    (took,) = (f for f in text_string_to_metric_families(text) if f.name == "vllm:time_to_first_token_seconds")
    buckets = {sample.labels["le"]: sample.value for sample in took.samples if "le" in sample.labels}
    others = {sample.name.rpartition("_")[2]: sample.value for sample in took.samples if "le" not in sample.labels}
    assert (buckets["0.75"], buckets["2.5"], buckets["20.0"], buckets["40.0"], buckets["+Inf"]) == (0, 1, 1, 2, 2)
    assert others["count"] == 2
    assert others["sum"] == pytest.approx(31, abs=0.1)


async def test_the_state_shows_sequences_and_connections(autojump_clock: Any):
    async with engine(EngineSpec(EngineShape(slots=1))) as talk:
        asked = {"prompt": "x" * 100, "max_tokens": 4000, "ignore_eos": True}
        ids = {f"cmpl-r{n}" for n in range(300)}
        streams = [await talk.send("POST", "/v1/completions", asked, x_request_id=id[5:]) for id in ids]
        await trio.sleep(1)
        full = await talk.state()
        for stream in streams:
            stream.close()
        await trio.testing.wait_all_tasks_blocked()
        empty = await talk.state()
    first, *others = full["sequences"]
    assert 40 <= first.pop("made") <= 60
    assert first.pop("id") in ids
    assert first == {"state": "running", "prompt_tokens": 25, "cached_tokens": 0, "wants": 4000, "blocks": 5}
    assert {other["id"] for other in others} < ids
    assert {(other["state"], other["made"], other["blocks"]) for other in others} == {("waiting", 0, 0)}
    assert (len(full["sequences"]), full["waiting"]) == (200, 299)
    assert full["connections"] == {"open": 301, "busy": 301}  # one asks for the state
    assert (empty["sequences"], empty["connections"]) == ([], {"open": 1, "busy": 1})


async def test_the_gateway_reads_its_metrics_whatever_its_model_is_called(autojump_clock: Any):
    async with engine(EngineSpec(EngineShape(models=('a"b,c\\d',), slots=1))) as talk:
        streams = [await talk.send("POST", "/v1/completions", {"prompt": "x", "max_tokens": 4000}) for _ in range(3)]
        await trio.sleep(1)
        sample = read_metrics(Engine.SIM, (await talk.ask("GET", "/metrics")).body, at=0.0)
        for stream in streams:
            stream.close()
    assert (sample.running, sample.waiting, sample.waiting_capacity) == (1, 2, 2)
    assert sample.kv == pytest.approx(4 / 4096)
    assert sample.process_start is not None
