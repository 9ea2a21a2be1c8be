"""The anthropic package and curl, unmodified, against the gateway in front of a simulated engine."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anthropic
import pytest

from tests.journeys.running import Gateway, House, config_of

MODEL = "org/sim-model"
ASKED = [{"role": "user", "content": "Tell me of the sea."}]


@pytest.fixture(scope="module")
def gateway(shared_home: House) -> Gateway:
    engine = shared_home.engine(MODEL, decode_rate=1000, step=0.005)
    return shared_home.gateway(config_of({"e1": engine.url}, model=MODEL))


@pytest.fixture(scope="module")
def key(gateway: Gateway) -> str:
    return gateway.make_key()


@pytest.fixture
def client(gateway: Gateway, key: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=gateway.url, api_key=key, max_retries=0, timeout=20) as made:
        yield made


def test_a_message_is_answered_with_usage_and_a_request_id(client: anthropic.Anthropic):
    message = client.messages.create(model=MODEL, messages=ASKED, max_tokens=8)
    assert message.type == "message"
    assert "".join(block.text for block in message.content if block.type == "text")
    assert message.usage.output_tokens > 0
    assert message._request_id is not None
    assert message._request_id.startswith("req_")


def test_a_streamed_message_says_what_the_plain_one_says(client: anthropic.Anthropic):
    plain = client.messages.create(model=MODEL, messages=ASKED, max_tokens=8)
    with client.messages.stream(model=MODEL, messages=ASKED, max_tokens=8) as stream:
        pieces = list(stream.text_stream)
        whole = stream.get_final_message()
    assert len(pieces) > 1
    assert "".join(pieces) == "".join(block.text for block in plain.content if block.type == "text")
    assert whole.stop_reason == plain.stop_reason


def test_the_raw_events_of_a_stream_stand_in_anthropics_order(client: anthropic.Anthropic):
    with client.messages.create(model=MODEL, messages=ASKED, max_tokens=6, stream=True) as stream:
        kinds = [event.type for event in stream]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    assert "content_block_delta" in kinds


def test_tokens_are_counted(client: anthropic.Anthropic):
    short = client.messages.count_tokens(model=MODEL, messages=ASKED).input_tokens
    longer = [{"role": "user", "content": "Tell me of the sea. " * 50}]
    assert 0 < short < client.messages.count_tokens(model=MODEL, messages=longer).input_tokens


def test_models_come_in_anthropics_form(client: anthropic.Anthropic):
    assert (MODEL, "model") in [(model.id, model.type) for model in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL


def test_failures_are_errors_of_anthropics_types(client: anthropic.Anthropic):
    with pytest.raises(anthropic.NotFoundError) as unknown:
        client.messages.create(model="no-such", messages=ASKED, max_tokens=4)
    assert unknown.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    assert unknown.value.request_id
    with pytest.raises(anthropic.AuthenticationError) as stranger:
        client.with_options(api_key="sk-wrong").messages.create(model=MODEL, messages=ASKED, max_tokens=4)
    assert stranger.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]
    with pytest.raises(anthropic.BadRequestError) as wrong:
        client.messages.create(model=MODEL, messages=[], max_tokens=4)
    assert wrong.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]


def test_a_token_instead_of_a_key_is_taken_too(gateway: Gateway, key: str):
    with anthropic.Anthropic(base_url=gateway.url, auth_token=key, max_retries=0, timeout=20) as client:
        assert client.messages.create(model=MODEL, messages=ASKED, max_tokens=4).content


def curl(*arguments: str) -> str:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    command = ["curl", "-sS", "--noproxy", "*", "--max-time", "20", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout


def test_curl_gets_a_plain_answer_and_a_stream(gateway: Gateway, key: str):
    asked = {"model": MODEL, "messages": ASKED, "max_tokens": 5}
    where, bearer = f"{gateway.url}/v1/chat/completions", f"authorization: Bearer {key}"
    plain = json.loads(curl(where, "-H", bearer, "-d", json.dumps(asked)))
    assert plain["choices"][0]["message"]["content"]
    streamed = curl("-N", where, "-H", bearer, "-d", json.dumps({**asked, "stream": True}))
    assert streamed.startswith("data: {")
    assert streamed.endswith("data: [DONE]\n\n")


def test_curl_sends_a_large_body_after_100_continue(gateway: Gateway, key: str, tmp_path: Path):
    asked = {"model": MODEL, "messages": ASKED, "max_tokens": 5, "metadata": {"filling": "x" * 1_500_000}}
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    said = curl("-v", "--stderr", "-", f"{gateway.url}/v1/chat/completions", "-H", f"authorization: Bearer {key}",
                "-H", "expect: 100-continue", "-d", f"@{tmp_path / 'asked.json'}")  # fmt: skip
    assert "< HTTP/1.1 100 Continue" in said
    assert "< HTTP/1.1 200 OK" in said


def test_curl_is_told_what_is_wrong_in_json(gateway: Gateway, key: str):
    where, bearer = f"{gateway.url}/v1/chat/completions", f"authorization: Bearer {key}"
    status = ["-w", "%{http_code}"]
    for arguments, wanted in (
        ([where, "-H", bearer, "-d", "{not json"], "400"),
        ([where, "-d", "{}"], "401"),
        ([f"{gateway.url}/v1/no/such", "-H", bearer], "404"),
        ([where, "-H", bearer], "405"),
    ):
        said = curl(*status, *arguments)
        assert said[-3:] == wanted
        assert json.loads(said[:-3])["error"]["message"]
