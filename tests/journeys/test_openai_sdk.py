"""The openai package, unmodified, against the gateway in front of two simulated engines."""

import asyncio
import json
from collections.abc import Iterator

import openai
import pytest

from tests.journeys.running import Gateway, House, config_of

MODEL = "org/sim-model"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "the weather somewhere",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ASKED = [{"role": "user", "content": "Tell me of the sea."}]


@pytest.fixture(scope="module")
def gateway(shared_home: House) -> Gateway:
    engines = shared_home.engines(2, MODEL, decode_rate=1000, step=0.005)
    config = config_of({f"e{n}": engine.url for n, engine in enumerate(engines)}, model=MODEL)
    return shared_home.gateway(config)


@pytest.fixture(scope="module")
def key(gateway: Gateway) -> str:
    return gateway.make_key()


@pytest.fixture
def client(gateway: Gateway, key: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0, timeout=20) as made:
        yield made


def test_a_chat_is_answered_with_usage_and_a_request_id(client: openai.OpenAI):
    answer = client.chat.completions.create(model=MODEL, messages=ASKED, max_tokens=8, extra_body={"ignore_eos": True})
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8
    assert answer._request_id is not None
    assert answer._request_id.startswith("req_")


def test_an_alias_is_answered_too(client: openai.OpenAI):
    assert client.chat.completions.create(model="gpt-4o", messages=ASKED, max_tokens=4).choices[0].message.content


def test_a_stream_comes_in_pieces_and_says_what_the_plain_answer_says(client: openai.OpenAI):
    plain = client.chat.completions.create(model=MODEL, messages=ASKED, max_tokens=12, seed=3)
    pieces, finishes = [], []
    with client.chat.completions.create(model=MODEL, messages=ASKED, max_tokens=12, seed=3, stream=True) as stream:
        for chunk in stream:
            assert chunk.usage is None  # nobody asked for it
            pieces.append(chunk.choices[0].delta.content or "")
            finishes.append(chunk.choices[0].finish_reason)
    assert "".join(pieces) == plain.choices[0].message.content
    assert len([piece for piece in pieces if piece]) > 1
    assert finishes[-1] == plain.choices[0].finish_reason


def test_a_stream_that_asks_for_usage_ends_with_it(client: openai.OpenAI):
    asked = {"include_usage": True}
    with client.chat.completions.create(
        model=MODEL, messages=ASKED, max_tokens=5, stream=True, stream_options=asked, extra_body={"ignore_eos": True}
    ) as stream:
        last = list(stream)[-1]
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 5


def test_the_stream_helper_builds_the_whole_message(client: openai.OpenAI):
    with client.chat.completions.stream(model=MODEL, messages=ASKED) as stream:
        kinds = {event.type for event in stream}
        whole = stream.get_final_completion()
    assert "content.delta" in kinds
    assert whole.choices[0].message.content


def test_a_tool_is_called_plain_and_streamed_with_the_same_arguments(client: openai.OpenAI):
    asked = {"model": MODEL, "messages": ASKED, "tools": [WEATHER], "tool_choice": "required"}
    plain = client.chat.completions.create(**asked)
    (call,) = plain.choices[0].message.tool_calls or []
    assert call.function.name == "get_weather"
    assert "city" in json.loads(call.function.arguments)
    with client.chat.completions.stream(**asked) as stream:
        (streamed,) = stream.get_final_completion().choices[0].message.tool_calls or []
    assert streamed.function.arguments == call.function.arguments


def test_the_tools_answer_can_be_sent_back(client: openai.OpenAI):
    first = client.chat.completions.create(model=MODEL, messages=ASKED, tools=[WEATHER], tool_choice="required")
    message = first.choices[0].message
    result = {"role": "tool", "tool_call_id": (message.tool_calls or [])[0].id, "content": "it rains"}
    turns = [*ASKED, message, result]
    answer = client.chat.completions.create(model=MODEL, messages=turns, tools=[WEATHER], tool_choice="none")
    assert answer.choices[0].message.content


def test_a_completion_of_the_old_kind(client: openai.OpenAI):
    assert client.completions.create(model=MODEL, prompt="Once", max_tokens=4).choices[0].text
    with client.completions.create(model=MODEL, prompt="Once", max_tokens=4, stream=True) as stream:
        assert "".join(chunk.choices[0].text for chunk in stream)


def test_embeddings_are_the_same_as_floats_and_as_the_packages_own_base64(client: openai.OpenAI):
    floats = client.embeddings.create(model=MODEL, input=["one", "two"], encoding_format="float")
    default = client.embeddings.create(model=MODEL, input=["one", "two"])
    assert [one.index for one in default.data] == [0, 1]
    assert len(floats.data[0].embedding) > 8
    for plain, decoded in zip(floats.data, default.data, strict=True):
        assert decoded.embedding == pytest.approx(plain.embedding, rel=1e-6)


def test_models_are_listed_and_one_with_a_slash_is_found(client: openai.OpenAI):
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL


def test_a_response_is_created_and_streamed(client: openai.OpenAI):
    plain = client.responses.create(model=MODEL, input="Tell me of the sea.", max_output_tokens=8)
    assert plain.output_text
    with client.responses.create(model=MODEL, input="Tell me of the sea.", max_output_tokens=8, stream=True) as stream:
        events = list(stream)
    assert events[0].type == "response.created"
    assert events[-1].type in ("response.completed", "response.incomplete")
    assert events[-1].response.output_text == plain.output_text
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))


def test_an_unknown_model_is_not_found(client: openai.OpenAI):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="no-such", messages=ASKED)
    assert caught.value.code == "model_not_found"
    assert caught.value.request_id
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no/such")


def test_a_wrong_key_is_an_authentication_error(client: openai.OpenAI):
    with pytest.raises(openai.AuthenticationError) as caught:
        client.with_options(api_key="sk-wrong").chat.completions.create(model=MODEL, messages=ASKED)
    assert caught.value.code == "invalid_api_key"
    assert caught.value.request_id


def test_a_body_the_engine_refuses_is_a_bad_request_in_its_words(client: openai.OpenAI):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=ASKED, max_tokens=1_000_000)
    assert "1000000" in str(caught.value)
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=MODEL, messages=[])


def test_the_asynchronous_client_streams_too(gateway: Gateway, key: str):
    async def streamed() -> str:
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0) as client:
            stream = await client.chat.completions.create(model=MODEL, messages=ASKED, max_tokens=6, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert asyncio.run(streamed())
