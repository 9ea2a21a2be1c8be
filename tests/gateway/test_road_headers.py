"""What travels: which headers reach an engine, which reach a client; CORS, upgrades, early answers."""

import pytest
import trio
from trio.testing import MockClock

from llmgw.core.secret import Secret
from llmgw.gateway.limits import DoorLimits
from tests.gateway.engine_bytes import ANSWER, DONE, delta, plain, says, stream
from tests.gateway.world import KEY, Answer, Engine, World, chat, world

AUTH = b"authorization: Bearer %b\r\n" % KEY.encode()

DROPPED = [
    (b"cookie", b"session=1"), (b"x-api-key", KEY.encode()), (b"api-key", KEY.encode()), (b"x-llmgw-debug", b"1"),
    (b"x-request-id", b"theirs"), (b"x-client-request-id", b"theirs"), (b"x-session-id", b"1"),
    (b"x-data-parallel-rank", b"3"), (b"x-vllm-priority", b"1"), (b"x-override-rid", b"1"),
    (b"x-conversation-id", b"1"), (b"endpoint-load-metrics-format", b"x"), (b"te", b"trailers"),
    (b"keep-alive", b"timeout=5"), (b"proxy-authorization", b"Basic x"), (b"upgrade", b"h2c"),
    (b"http2-settings", b"AAMAAABk"), (b"x-forwarded-for", b"1.2.3.4"), (b"forwarded", b"for=1.2.3.4"),
    (b"accept-encoding", b"gzip, br"), (b"origin", b"http://a"), (b"referer", b"http://a/b"),
    (b"x-stainless-os", b"Linux"), (b"openai-organization", b"o"), (b"sec-fetch-mode", b"cors"),
]  # fmt: skip
PASSED = [
    (b"accept", b"application/json"), (b"user-agent", b"a client/1"), (b"anthropic-version", b"2026-10-21"),
    (b"anthropic-beta", b"a,b"), (b"openai-beta", b"assistants=v2"), (b"traceparent", b"00-a-b-01"),
    (b"tracestate", b"a=b"),
]  # fmt: skip


async def test_an_engine_gets_what_it_needs_and_nothing_it_would_act_on(autojump_clock: MockClock) -> None:
    engine = Engine(says(ANSWER), options={"api_key": Secret("engine-key")})
    async with world(engine) as w:
        await w.post("/v1/chat/completions", chat(False), [*DROPPED, *PASSED])

        got = dict(engine.got[0].head.headers)
        assert len(got) == len(engine.got[0].head.headers)
        assert got.pop(b"content-length") == b"%d" % len(engine.got[0].body)
        assert got == dict(PASSED) | {
            b"host": b"a",
            b"content-type": b"application/json",
            b"accept-encoding": b"identity",
            b"authorization": b"Bearer engine-key",
            b"x-request-id": f"{w.record.id}-1".encode(),
            b"x-llmgw-hops": b"1",
        }
        assert w.record.label == "theirs"


@pytest.mark.parametrize(("said", "passed"), [(b"4", b"5"), (b"x", b"1"), (b"-3", b"1"), (b"99999", b"1")])
async def test_gateways_behind_one_another_are_counted(autojump_clock: MockClock, said: bytes, passed: bytes) -> None:
    async with world(Engine(says(ANSWER))) as w:
        await w.post("/v1/chat/completions", chat(False), [(b"x-llmgw-hops", said)])

        assert w.engines["a"].got[0].header(b"x-llmgw-hops") == [passed]


async def test_an_endpoint_that_leads_back_here_ends_a_request_soon(autojump_clock: MockClock) -> None:
    async with world(Engine(says(ANSWER))) as w:
        answer = await w.post("/v1/chat/completions", chat(False), [(b"x-llmgw-hops", b"5")])

        assert (answer.status, answer.error["code"]) == (508, "request_loop")
        assert not w.engines["a"].dialled.is_set()


async def test_without_a_key_of_its_own_an_engine_gets_none(autojump_clock: MockClock) -> None:
    engine = Engine(says(ANSWER))
    async with world(engine) as w:
        await w.chat(False)

        assert engine.got[0].header(b"authorization") == []


@pytest.mark.parametrize(
    "lines",
    [
        [(b"connection", b"user-agent, traceparent")],
        [(b"connection", b"USER-AGENT"), (b"connection", b"keep-alive, Traceparent")],
        [(b"connection", b"Traceparent ,user-agent"), (b"connection", b"keep-alive")],
    ],
)
async def test_what_connection_names_goes_no_further(autojump_clock: MockClock, lines: list) -> None:
    engine = Engine(says(ANSWER))
    async with world(engine) as w:
        await w.post("/v1/chat/completions", chat(False), [*lines, *PASSED])

        got = engine.got[0]
        assert got.header(b"user-agent") == got.header(b"traceparent") == []
        assert got.header(b"accept") == [b"application/json"]
        assert got.header(b"tracestate") == [b"a=b"]


async def test_a_header_with_a_name_inside_a_named_one_still_passes(autojump_clock: MockClock) -> None:
    engine = Engine(says(ANSWER))
    async with world(engine) as w:
        await w.post("/v1/chat/completions", chat(False), [(b"connection", b"x-user-agent-x"), (b"user-agent", b"u")])

        assert engine.got[0].header(b"user-agent") == [b"u"]


@pytest.mark.parametrize("label", [b"a b", b"x" * 4000, b"\xff", b'"', b"../etc"])
async def test_a_label_is_short_and_plain_or_not_kept(autojump_clock: MockClock, label: bytes) -> None:
    async with world(Engine(says(ANSWER))) as w:
        answer = await w.post("/v1/chat/completions", chat(False), [(b"x-request-id", label)])

        assert w.record.label in ("", "x" * 128)
        assert answer.header(b"x-request-id") == [w.record.id.encode()]


EVERY = [
    ("an answer", "POST", "/v1/chat/completions", AUTH),
    ("no key", "POST", "/v1/chat/completions", b""),
    ("no path", "POST", "/nope", b""),
    ("no method", "GET", "/v1/chat/completions", b""),
    ("health", "GET", "/health", b""),
    ("models", "GET", "/v1/models", AUTH),
    ("no model", "GET", "/v1/models/nope", AUTH),
]


@pytest.mark.parametrize(("method", "path", "auth"), [row[1:] for row in EVERY], ids=[row[0] for row in EVERY])
async def test_every_answer_has_one_of_each_header_and_our_request_id(
    autojump_clock: MockClock, method: str, path: str, auth: bytes
) -> None:
    async with world(Engine(says(ANSWER))) as w:
        answer = await w.send(
            b"%b %b HTTP/1.1\r\nhost: x\r\nconnection: close\r\norigin: http://a\r\n%bcontent-length: 13\r\n\r\n"
            b'{"model":"m"}' % (method.encode(), path.encode(), auth)
        )

        names = [name for name, _ in answer.response.headers if name != b"vary"]
        assert sorted(names) == sorted(set(names))
        assert answer.header(b"server") == [b"llmgw"]
        assert answer.header(b"x-request-id")[0].startswith(b"req_01020304")
        assert answer.header(b"access-control-allow-origin") == [b"http://a"]
        assert answer.header(b"connection") == [b"close"]
        assert answer.closed


# -- browsers ---------------------------------------------------------------------------------------


async def preflight(w: World, path: str, *lines: bytes) -> Answer:
    return await w.send(
        b"OPTIONS %b HTTP/1.1\r\nhost: x\r\n%b\r\n" % (path.encode(), b"".join(x + b"\r\n" for x in lines))
    )


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models/a%2Fb", "/", "*", "/nope"])
async def test_a_preflight_needs_no_key_and_grants_what_is_asked(autojump_clock: MockClock, path: str) -> None:
    async with world(Engine(says(ANSWER))) as w:
        answer = await preflight(
            w, path, b"origin: http://a", b"access-control-request-method: POST",
            b"access-control-request-headers: authorization, x-stainless-os",
        )  # fmt: skip

        assert (answer.status, answer.body) == (204, b"")
        assert answer.header(b"access-control-allow-origin") == [b"http://a"]
        assert answer.header(b"access-control-allow-headers") == [b"authorization, x-stainless-os"]
        assert answer.header(b"access-control-allow-methods") == [b"GET, POST, DELETE, OPTIONS"]
        assert answer.header(b"vary") == [b"Origin"]
        assert answer.header(b"content-length") == []


async def test_an_origin_that_is_not_allowed_gets_no_grant(autojump_clock: MockClock) -> None:
    async with world(Engine(says(ANSWER)), cors_origins=frozenset({"http://good"})) as w:
        for origin, allowed in ((b"http://good", [b"http://good"]), (b"http://evil", [])):
            answer = await w.post("/v1/chat/completions", chat(False), [(b"origin", origin)])
            assert answer.header(b"access-control-allow-origin") == allowed
            assert answer.header(b"vary") == [b"Origin"]
            assert (await preflight(w, "/", b"origin: " + origin)).header(b"access-control-allow-origin") == allowed


async def test_a_browser_may_read_our_headers_and_the_engines_cors_is_not_heard(autojump_clock: MockClock) -> None:
    theirs = plain({}, 200, b"access-control-allow-origin: *", b"vary: Accept")
    async with world(Engine(says(theirs))) as w:
        answer = await w.post("/v1/chat/completions", chat(False), [(b"origin", b"null")])

        assert answer.header(b"access-control-allow-origin") == [b"null"]
        assert b"x-request-id" in answer.header(b"access-control-expose-headers")[0]
        assert answer.header(b"vary") == [b"Origin"]
        no_browser = await w.chat(False)
        assert no_browser.header(b"access-control-allow-origin") == []


# -- upgrades and early answers ---------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/realtime", "/"])
async def test_a_websocket_is_told_to_speak_plain_http(autojump_clock: MockClock, path: str) -> None:
    """Codex falls back at once on 426, and slowly or never on anything else."""
    async with world(Engine(says(ANSWER))) as w:
        answer = await w.send(
            b"GET %b HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
            b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n" % path.encode()
        )

        assert (answer.status, answer.error["code"]) == (426, "upgrade_required")
        assert len(answer.header(b"upgrade")) == 1
        assert len(answer.header(b"connection")) == 1


async def test_a_jdk_clients_upgrade_is_ignored_and_its_body_is_not(autojump_clock: MockClock) -> None:
    engine = Engine(says(ANSWER))
    async with world(engine) as w:
        upgrade = [(b"connection", b"Upgrade, HTTP2-Settings"), (b"upgrade", b"h2c"), (b"http2-settings", b"AAMAAABk")]
        answer = await w.post("/v1/chat/completions", chat(False), upgrade)

        assert answer.status == 200
        assert engine.got[0].json() == chat(False)
        assert engine.got[0].header(b"upgrade") == engine.got[0].header(b"connection") == []


async def test_requests_follow_one_another_on_one_connection(autojump_clock: MockClock) -> None:
    async with world(Engine(says(stream(delta("a"), DONE)))) as w:
        client = w.client()
        for path, body, status in (
            ("/v1/chat/completions", chat(), 200),
            ("/v1/nope", {}, 404),
            ("/v1/chat/completions", b"[", 400),
            ("/v1/chat/completions", chat(model="nope"), 404),
            ("/v1/chat/completions", chat(), 200),
        ):
            await client.post(path, body)
            answer = await client.answer()
            assert (answer.status, answer.whole, answer.closed) == (status, True, False)
        await w.settled()

        assert len({record.id for record in w.closed}) == 4


async def test_an_early_401_to_a_large_unread_body_arrives_and_leaves_nothing(autojump_clock: MockClock) -> None:
    async with world(Engine(says(ANSWER))) as w:
        client = w.client()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.post, "/v1/chat/completions", b"x" * 1_000_000, None, None)
            answer = await client.answer()

        assert (answer.status, answer.closed) == (401, True)


async def test_a_body_beyond_the_bound_is_413_in_the_familys_shape(autojump_clock: MockClock) -> None:
    async with world(Engine(says(ANSWER)), door_limits=DoorLimits(body_max=10_000)) as w:
        answer = await w.post("/v1/messages", b"x" * 20_000)

        assert (answer.status, answer.error["type"]) == (413, "request_too_large")
        assert "10000" in answer.error["message"]
        assert w.record.outcome == "body_too_large"


async def test_expect_100_continue_is_met_when_the_body_is_wanted(autojump_clock: MockClock) -> None:
    async with world(Engine(says(ANSWER))) as w:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 13\r\n"
        stranger = await w.send(head + b"\r\n")
        client = w.client()
        await client.stream.send(head + AUTH + b"\r\n")
        went_on = await client.stream.receive()
        await client.stream.send(b'{"model":"m"}')
        answer = await client.answer()
        await w.settled()

        assert stranger.status == 401
        assert went_on == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert answer.status == 200
