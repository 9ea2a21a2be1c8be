"""Which requests are answered, by whom and in whose shape; what is refused before any engine is asked."""

import json

import pytest
import trio
from trio.testing import MockClock

from llmgw.core.fleet import Engine as Kind
from llmgw.core.fleet import Fallback, Model, fleet_of
from tests.gateway.engine_bytes import ANSWER, DONE, delta, says, stream
from tests.gateway.world import KEY, Answer, Engine, World, chat, world

AUTH = b"authorization: Bearer %b\r\n" % KEY.encode()
MESSAGES = "/v1/messages"


async def get(w: World, target: str, *headers: bytes, method: str = "GET", key: bool = True) -> Answer:
    lines = b"".join(line + b"\r\n" for line in headers) + (AUTH if key else b"")
    return await w.send(b"%b %b HTTP/1.1\r\nhost: x\r\n%b\r\n" % (method.encode(), target.encode(), lines))


INFERENCE = ["chat/completions", "completions", "embeddings", "rerank", "score", "tokenize", "detokenize", "responses",
             "messages", "messages/count_tokens"]  # fmt: skip
SPELLINGS = ["/v1/{}", "/{}", "//v1/{}", "/v1//{}", "/v1/{}/", "/v1/{}?beta=true", "//{}//"]


@pytest.mark.parametrize("route", INFERENCE)
async def test_every_route_is_found_however_it_is_spelled_and_reaches_the_engine_by_its_own_path(
    autojump_clock: MockClock, route: str
) -> None:
    engine = Engine(says(ANSWER), kind=Kind.OPENAI)
    async with world(engine) as w:
        for spelling in SPELLINGS:
            answer = await w.post(spelling.format(route), {"model": "m"})
            assert (answer.status, answer.body) == (200, ANSWER.partition(b"\r\n\r\n")[2])

        assert {(got.head.method, got.head.path, got.head.query) for got in engine.got} == {
            ("POST", f"/v1/{route}", "")
        }
        assert {record.route for record in w.closed} == {route}


@pytest.mark.parametrize("kind", [Kind.VLLM, Kind.LLAMACPP])
async def test_tokenize_has_no_v1_where_the_engine_knows_none(autojump_clock: MockClock, kind: Kind) -> None:
    engine = Engine(says(ANSWER), kind=kind)
    async with world(engine) as w:
        await w.post("/v1/tokenize", {"model": "m"})

        assert engine.got[0].head.path == "/tokenize"


UNKNOWN = [
    "/v1/nope", "/nope", "/v1/chat", "/v1/chat/completions/x", "/v2/embed", "/v1/v1/chat/completions", "/metrics",
    "/sleep", "/v1/load_lora_adapter", "/reset_prefix_cache", "/collective_rpc", "/v1/../metrics", "/%76%31/models",
    "/v1/chat%2Fcompletions", "/invocations", "/v1/audio/speech", "/v1/messages/batches", "/messages/x",
]  # fmt: skip


@pytest.mark.parametrize("path", UNKNOWN)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_anything_else_is_a_404_in_its_familys_shape_without_a_key(
    autojump_clock: MockClock, path: str, method: str
) -> None:
    """Route before key: an unknown path is 404, not 401."""
    async with world(Engine(says(ANSWER))) as w:
        answer = await get(w, path, b"content-length: 0", method=method, key=False)

        assert answer.status == 404
        assert not w.engines["a"].dialled.is_set()
        if "messages" in path:
            assert answer.json().keys() == {"type", "error", "request_id"}
            assert answer.error["type"] == "not_found_error"
        else:
            assert answer.error.keys() == {"message", "type", "param", "code"}
            assert answer.error["code"] == "unknown_url"
        assert w.gate.metrics.door_refusals == {"not_found": 1}


METHODS = [
    ("GET", "/v1/chat/completions", b"POST, OPTIONS"),
    ("DELETE", "/v1/embeddings", b"POST, OPTIONS"),
    ("HEAD", "/v1/messages", b"POST, OPTIONS"),
    ("PUT", "/v1/messages", b"POST, OPTIONS"),
    ("POST", "/v1/models", b"GET, HEAD, OPTIONS"),
    ("DELETE", "/v1/models/m", b"GET, HEAD, OPTIONS"),
    ("PATCH", "/health", b"GET, HEAD, OPTIONS"),
]


@pytest.mark.parametrize(("method", "path", "allow"), METHODS)
async def test_another_method_is_405_and_says_which_are_allowed(
    autojump_clock: MockClock, method: str, path: str, allow: bytes
) -> None:
    async with world(Engine(says(ANSWER))) as w:
        lines = b"%b %b HTTP/1.1\r\nhost: x\r\n\r\n" % (method.encode(), path.encode())
        raw = await raw_answer(w, lines)

        assert raw.startswith(b"HTTP/1.1 405 ")
        assert b"\r\nallow: %b\r\n" % allow in raw
        if path == MESSAGES and method != "HEAD":
            assert b'{"type":"error"' in raw


async def raw_answer(w: World, raw: bytes) -> bytes:
    """One answer, which leaves in one send, and may have no body."""
    client = w.client()
    await client.stream.send(raw)
    return await client.stream.receive()


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/", "/health", "/ready", "/v1/models"])
async def test_head_is_get_without_the_body(autojump_clock: MockClock, path: str) -> None:
    """Claude Code sends HEAD to its base URL before anything else."""
    async with world(Engine(says(ANSWER))) as w:
        client = w.client()
        line = b" %b HTTP/1.1\r\nhost: x\r\n%b\r\n" % (path.encode(), AUTH)
        await client.stream.send(b"HEAD" + line)
        alone = await client.stream.receive()
        await client.stream.send(b"GET" + line)
        answer = await client.answer()

        assert alone.startswith(b"HTTP/1.1 200 ")
        assert alone.endswith(b"\r\n\r\n")
        assert b"content-length: %d\r\n" % len(answer.body) in alone


async def test_the_front_door_needs_no_key_and_names_no_model(autojump_clock: MockClock) -> None:
    async with world(Engine(says(ANSWER), model="secret")) as w:
        for path in ("/", "/v1", "/health", "/ready"):
            answer = await get(w, path, key=False)
            assert answer.status == 200
            assert b"secret" not in answer.body


async def test_ready_says_whether_there_is_somewhere_to_send_a_request(autojump_clock: MockClock) -> None:
    async with world(Engine(says(ANSWER)), Engine(says(ANSWER), "b", "org/n")) as w:
        w.endpoint("a").healthy = False
        assert (await get(w, "/ready")).status == 200
        assert (await get(w, "/ready?model=org/n")).status == 200
        assert (await get(w, "/ready?model=org%2Fn")).status == 200
        unready = await get(w, "/ready?model=m")
        assert (unready.status, unready.json()["status"]) == (503, "not ready")
        assert (await get(w, "/ready?model=nope")).status == 503
        w.endpoint("b").healthy = False
        assert (await get(w, "/ready")).status == 503
        assert (await get(w, "/health")).status == 200


NAME = "meta-llama/Llama-3.1-8B:x"


@pytest.mark.parametrize("spelled", [NAME, "meta-llama%2FLlama-3.1-8B:x", "meta-llama%2fLlama-3.1-8B%3Ax", NAME + "/"])
@pytest.mark.parametrize("prefix", ["/v1/models/", "/models/", "//v1//models/"])
async def test_a_model_is_found_by_its_name_with_slashes(autojump_clock: MockClock, spelled: str, prefix: str) -> None:
    async with world(Engine(says(ANSWER), model=NAME)) as w:
        answer = await get(w, prefix + spelled)

        assert answer.status == 200
        assert answer.json() == {"id": NAME, "object": "model", "created": 1_800_000_000, "owned_by": "llmgw"}


async def test_a_percent_sign_is_decoded_once(autojump_clock: MockClock) -> None:
    async with world(Engine(says(ANSWER), model="a%2Fb")) as w:
        assert (await get(w, "/v1/models/a%252Fb")).json()["id"] == "a%2Fb"
        assert (await get(w, "/v1/models/a%2Fb")).status == 404


async def test_models_are_those_the_key_may_use_in_the_form_the_client_reads(autojump_clock: MockClock) -> None:
    engines = Engine(says(ANSWER)), Engine(says(ANSWER), "b", "n", options={"adapters": frozenset({"lora"})})
    async with world(*engines, aliases={"n": ("gpt-4",)}, key_models=frozenset({"n"})) as w:
        listed = (await get(w, "/v1/models?limit=1000")).json()
        anthropic = (await get(w, "/v1/models", b"anthropic-version: 2023-06-01")).json()

        assert listed["object"] == "list"
        assert {entry["id"] for entry in listed["data"]} == {"n", "gpt-4", "lora"}
        assert {entry["id"] for entry in anthropic["data"]} == {"n", "gpt-4", "lora"}
        assert {entry["type"] for entry in anthropic["data"]} == {"model"}
        assert anthropic["has_more"] is False
        assert anthropic["first_id"] == anthropic["data"][0]["id"]
        assert (await get(w, "/v1/models/m")).status == 404
        assert (await get(w, "/v1/models", key=False)).status == 401
        assert (await get(w, "/v1/models/n", key=False)).status == 401


# -- the key ----------------------------------------------------------------------------------------

GIVEN = [
    (b"authorization: Bearer %b", 200),
    (b"Authorization: bearer   %b  ", 200),
    (b"x-api-key: %b", 200),
    (b"api-key: %b", 200),
    (b"authorization: Basic %b", 401),
    (b"authorization: %b", 401),
    (b"authorization: Bearer %bx", 401),
    (b"authorization: Bearer sk-llmgw-not-well-formed\r\nx-api-key: %b", 200),
    (b"authorization: Bearer other\r\nx-api-key: %b", 401),
    (b"cookie: key=%b", 401),
    (b"authorization: Bearer %b\r\nauthorization: Bearer other", 400),
    (b"x-api-key: other\r\nx-api-key: %b", 400),
]


@pytest.mark.parametrize(("line", "status"), GIVEN)
async def test_a_key_is_read_where_clients_put_it(autojump_clock: MockClock, line: bytes, status: int) -> None:
    async with world(Engine(says(ANSWER))) as w:
        lines = [tuple(part.split(b": ", 1)) for part in (line % KEY.encode()).split(b"\r\n")]
        answer = await w.post("/v1/chat/completions", chat(False), lines, key=None)  # type: ignore[arg-type]

        assert answer.status == status
        if status == 401:
            assert answer.error["code"] == "invalid_api_key"
            assert answer.header(b"www-authenticate") == [b"Bearer"]
            assert KEY.encode() not in answer.raw
            assert not w.engines["a"].dialled.is_set()


async def test_what_the_gateway_itself_refuses_on_messages_is_in_anthropics_shape(autojump_clock: MockClock) -> None:
    async with world(Engine(says(ANSWER), refuses=True)) as w:
        stranger = await w.post(MESSAGES, {"model": "m"}, key=None)
        unknown = await w.post(MESSAGES, {"model": "nope"})
        garbage = await w.post(MESSAGES, b"[")
        failed = await w.post(MESSAGES, {"model": "m"})

        shown = [(a.status, a.json()["type"], a.error["type"]) for a in (stranger, unknown, garbage, failed)]
        assert shown == [
            (401, "error", "authentication_error"),
            (404, "error", "not_found_error"),
            (400, "error", "invalid_request_error"),
            (502, "error", "api_error"),
        ]
        assert stranger.header(b"request-id") == [stranger.json()["request_id"].encode()]


# -- the body ---------------------------------------------------------------------------------------

REFUSED = [
    ("an array", b"[]", 400, "invalid_json"),
    ("a string", b'"x"', 400, "invalid_json"),
    ("nothing", b"", 400, "invalid_json"),
    ("deep", b'{"model":"m","x":' + b"[" * 100_000, 400, "invalid_json"),
    ("deep and whole", b'{"model":"m","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, "invalid_json"),
    ("no model", b"{}", 400, "missing_required_parameter"),
    ("a model that is no string", b'{"model":7}', 400, "invalid_value"),
    ("a model that is half a character", b'{"model":"\\ud800"}', 400, None),
    ("an unknown model", b'{"model":"nope"}', 404, "model_not_found"),
    ("an unknown model of odd characters", '{"model":"\\u0000\u2028\\"x"}'.encode(), 404, "model_not_found"),
]


@pytest.mark.parametrize(("body", "status", "code"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
async def test_a_body_that_is_no_request_is_refused_and_never_a_500(
    autojump_clock: MockClock, body: bytes, status: int, code: str | None
) -> None:
    """G39"""
    async with world(Engine(says(ANSWER))) as w:
        answer = await w.post("/v1/chat/completions", body)

        assert answer.status == status
        assert code is None or answer.error["code"] == code
        assert not w.engines["a"].dialled.is_set()
        assert w.record.status == status


async def test_a_known_model_with_no_endpoint_up_is_503_with_retry_after(autojump_clock: MockClock) -> None:
    """G39"""
    async with world(Engine(says(ANSWER)), aliases={"n": ()}) as w:
        w.endpoint().healthy = False
        down, none = await w.chat(), await w.chat(model="n")

        assert (down.status, none.status) == (503, 503)
        assert down.header(b"retry-after") == [b"2"]
        assert "unhealthy" in down.error["message"]
        assert {record.outcome for record in w.closed} == {"no_endpoint"}
        assert b'"a"' not in down.body


async def test_a_model_whose_replicas_are_all_down_says_so(autojump_clock: MockClock) -> None:
    async with world(Engine(says(ANSWER))) as w:
        for by_agents, why in ((True, "no replica of it serves"), (False, "none is configured")):
            w.live.apply(fleet_of((Model("solo", run_by_agents=by_agents),)), trio.current_time())
            answer = await w.chat(model="solo")

            assert answer.status == 503
            assert answer.error["message"] == f"no endpoint can serve model solo now ({why})"


async def test_a_model_the_key_may_not_use_does_not_exist(autojump_clock: MockClock) -> None:
    engines = Engine(says(ANSWER)), Engine(says(ANSWER), "b", "n")
    async with world(*engines, key_models=frozenset({"n"})) as w:
        hidden, unknown = await w.chat(model="m"), await w.chat(model="o")

        assert hidden.body.replace(b"`m`", b"`o`") == unknown.body
        assert hidden.status == unknown.status == 404


async def test_a_longer_name_in_a_chunked_body_has_the_right_length(autojump_clock: MockClock) -> None:
    """G33"""
    engine = Engine(says(ANSWER), model="m", options={"served_as": "a-much-longer-name/than-that"})
    async with world(engine, aliases={"m": ("x",)}) as w:
        body = json.dumps(chat(False, "x")).encode()
        pieces = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in (body[:5], body[5:11], body[11:]))
        raw = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n" + AUTH + b"transfer-encoding: chunked\r\n\r\n"
        answer = await w.send(raw + pieces + b"0\r\n\r\n")

        assert answer.status == 200
        got = engine.got[0]
        assert got.head.length == len(got.body)
        assert not got.head.chunked
        assert got.json() == chat(False, "a-much-longer-name/than-that")


async def test_unknown_members_survive_byte_for_byte(autojump_clock: MockClock) -> None:
    engine = Engine(says(stream(delta("a"), DONE)), options={"served_as": "served"})
    async with world(engine) as w:
        odd = b'"big":12345678901234567890123,"f":1.50e+1,"u":"\\u00e9\xc3\xa9 \\/","model ":1,"a":{"model":"m"}'
        await w.post("/v1/chat/completions", b' {  "model" : "m" , ' + odd + b' ,"stream":true}\n')

        expected = b' {"stream_options":{"include_usage":true},  "model" : "served" , ' + odd + b' ,"stream":true}\n'
        assert engine.got[0].body == expected


async def test_a_lora_adapter_keeps_its_name_and_an_alias_loses_it(autojump_clock: MockClock) -> None:
    engine = Engine(says(ANSWER), options={"adapters": frozenset({"lora"}), "served_as": "base"})
    async with world(engine, aliases={"m": ("gpt-4",)}, fallback={"m": (Fallback("m"),)}) as w:
        for name in ("m", "gpt-4", "lora"):
            await w.chat(False, name)

        assert [got.json()["model"] for got in engine.got] == ["base", "base", "lora"]
        assert [(r.asked, r.model, r.adapter) for r in w.closed] == [
            ("m", "m", ""), ("gpt-4", "m", ""), ("lora", "m", "lora")
        ]  # fmt: skip
