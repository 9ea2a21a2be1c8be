"""A failure that may go elsewhere: another endpoint, a fallback model, within a budget; and what never may."""

import json

import pytest
import trio
from trio.testing import MockClock

from llmgw.core.breaker import BreakerLimits, State
from llmgw.core.fleet import Fallback, FallbackOn
from llmgw.core.retry import RetryBudget
from llmgw.gateway.limits import RelayLimits
from tests.gateway.engine_bytes import (
    ANSWER,
    CLOSE,
    DONE,
    RESET,
    SSE_HEAD,
    chunk,
    delta,
    event,
    plain,
    says,
    silent,
    stream,
)
from tests.gateway.world import Engine, chat, world

GOOD = stream(delta("good"), DONE)
QUICK = RelayLimits(headers=1.0, first_token=2.0, keepalive_after=0)
HTML = plain(b"<html>at /srv/engine: oops</html>", 500, content_type=b"text/html")

FAILS = [
    ("refuses the connection", None, "engine_unreachable"),
    ("closes at once", [CLOSE], "engine_broke"),
    ("resets", [RESET], "engine_broke"),
    ("closes inside its head", [SSE_HEAD[:20], CLOSE], "engine_broke"),
    ("closes behind its head", [SSE_HEAD, CLOSE], "engine_broke"),
    ("500", [plain({"error": "x"}, 500)], "engine_error"),
    ("500 in HTML", [HTML], "engine_error"),
    ("502", [plain({}, 502)], "engine_error"),
    ("503", [plain({"error": "loading"}, 503)], "engine_busy"),
    ("429", [plain({"error": "busy"}, 429)], "engine_busy"),
    ("401", [plain({"error": "Unauthorized"}, 401)], "engine_denied_us"),
    ("403", [plain({"error": "Forbidden"}, 403)], "engine_denied_us"),
    ("a redirect", [plain(b"", 302, b"location: http://evil/")], "engine_error"),
    ("no HTTP", [b"SSH-2.0-OpenSSH\r\n\r\n"], "engine_malformed"),
    ("other protocols", [b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"], "engine_malformed"),
    ("an endless head", [b"HTTP/1.1 200 OK\r\n", *[b"x-a: %b\r\n" % (b"a" * 4000)] * 20], "engine_malformed"),
    ("silence", [600.0], "headers_timeout"),
    ("an error event first", [stream(event({"error": {"message": "x"}}))], "engine_failed_inside"),
    ("no event at all", [stream()], "engine_broke"),
    ("not JSON", [stream(b"data: x\n\n")], "engine_malformed"),
]  # fmt: skip


@pytest.mark.parametrize(("acts", "outcome"), [row[1:] for row in FAILS], ids=[row[0] for row in FAILS])
async def test_while_nothing_has_reached_the_client_another_endpoint_is_asked(
    autojump_clock: MockClock, acts: list | None, outcome: str
) -> None:
    bad = Engine(says(*acts or []), refuses=acts is None)
    other = Engine(says(GOOD), "b")
    async with world(bad, other, limits=QUICK) as w:
        answer = await w.chat()

        assert (answer.status, answer.events) == (200, [delta("good"), DONE])
        assert [(name, what) for name, what, _, _ in w.record.tries] == [("a", outcome), ("b", "ok")]
        assert (w.record.outcome, w.record.endpoint) == ("ok", "b")
        assert w.gate.metrics.retries == {outcome: 1}
        assert len(w.rows) == 1


@pytest.mark.parametrize(("acts", "outcome"), [row[1:] for row in FAILS], ids=[row[0] for row in FAILS])
async def test_where_there_is_nobody_else_the_failure_is_told_in_a_clean_shape(
    autojump_clock: MockClock, acts: list | None, outcome: str
) -> None:
    """G8: a status, valid JSON, all four keys, and not a word of what was not meant for clients."""
    async with world(Engine(says(*acts or []), refuses=acts is None), limits=QUICK) as w:
        answer = await w.chat()

        assert answer.status in (429, 502, 503, 504)
        assert answer.error.keys() == {"message", "type", "param", "code"}
        assert answer.header(b"content-type") == [b"application/json"]
        assert answer.header(b"x-request-id") == [w.record.id.encode()]
        for secret in (b"<html", b"/srv", b"evil", b"Unauthorized"):
            assert secret not in answer.raw
        assert (w.record.outcome, w.record.status) == (outcome, answer.status)


async def test_quotes_in_an_engines_words_make_no_broken_json(autojump_clock: MockClock) -> None:
    """G8"""
    async with world(Engine(says(plain(b'{"error":"boom \\"quoted\\""}', 500)))) as w:
        answer = await w.chat()

        assert answer.status == 502
        assert 'boom "quoted"' in answer.error["message"]


CLIENTS_OWN = [
    (400, {"error": {"message": "temperature must be non-negative", "param": "temperature", "code": 400}}, 400),
    (404, {"error": {"message": "The model `nope` does not exist.", "param": "model", "code": 404}}, 404),
    (413, {"error": "too large"}, 413),
    (422, {"detail": [{"loc": ["body"], "msg": "Field required"}]}, 400),
    (501, {"error": {"message": "no", "type": "not_supported_error"}}, 501),
]


@pytest.mark.parametrize(("status", "body", "shown"), CLIENTS_OWN)
async def test_what_the_client_did_wrong_goes_nowhere_else_and_marks_nobody(
    autojump_clock: MockClock, status: int, body: object, shown: int
) -> None:
    other = Engine(says(GOOD), "b")
    async with world(Engine(says(plain(body, status))), other) as w:
        answer = await w.chat()

        assert answer.status == shown
        assert other.got == []
        assert isinstance(answer.error["code"], str)
        assert w.endpoint().breaker.failures == 0


async def test_ten_that_are_too_long_leave_the_breaker_closed(autojump_clock: MockClock) -> None:
    """G46"""
    too_long = {"error": {"message": "This model's maximum context length is 1024 tokens.", "code": 400}}
    async with world(Engine(says(plain(too_long, 400)))) as w:
        for _ in range(10):
            answer = await w.chat()
            assert answer.error["code"] == "context_length_exceeded"
        assert w.breaker() is State.CLOSED


async def test_five_failures_take_an_endpoint_out_and_one_good_answer_brings_it_back(
    autojump_clock: MockClock,
) -> None:
    engine = Engine(says(GOOD), refuses=True)
    async with world(engine, breaker=BreakerLimits(failures=5, open_for=5.0)) as w:
        for _ in range(5):
            assert (await w.chat()).status == 502
        assert w.breaker() is State.OPEN
        turned_away = await w.chat()
        assert turned_away.status == 503
        assert turned_away.header(b"retry-after") == [b"2"]
        assert w.record.tries == []
        engine.refuses = False
        await trio.sleep(5.0)
        assert (await w.chat()).status == 200

        assert w.breaker() is State.CLOSED


async def test_at_most_so_many_endpoints_are_tried_and_each_once(autojump_clock: MockClock) -> None:
    engines = [Engine(says(plain({}, 500)), name) for name in "abcde"]
    async with world(*engines) as w:
        answer = await w.chat()

        assert answer.status == 502
        assert len({name for name, *_ in w.record.tries}) == len(w.record.tries) == 3
        assert sum(len(engine.got) for engine in engines) == 3


async def test_each_attempt_is_made_from_the_pristine_request_under_its_own_id(autojump_clock: MockClock) -> None:
    first = Engine(says(plain({}, 500)), options={"served_as": "a-very-long-name", "inject_usage": False})
    second = Engine(says(GOOD), "b", options={"served_as": "s"})
    async with world(first, second) as w:
        await w.chat(rid="x", text="m", nested={"model": "m"})

        one, two = first.got[0].json(), second.got[0].json()
        assert (one.pop("model"), two.pop("model")) == ("a-very-long-name", "s")
        assert two.pop("stream_options") == {"include_usage": True}
        assert one == two
        assert first.got[0].header(b"x-request-id") == [f"{w.record.id}-1".encode()]
        assert second.got[0].header(b"x-request-id") == [f"{w.record.id}-2".encode()]


async def test_retries_are_a_share_of_requests(autojump_clock: MockClock) -> None:
    """A storm of failures must not feed itself."""
    bad, worse = Engine(says(plain({}, 500))), Engine(says(plain({}, 500)), "b")
    lenient = BreakerLimits(failures=10_000, share=1.0)
    async with world(bad, worse, retry_budget=RetryBudget(0.2, 2), breaker=lenient) as w:
        for _ in range(50):
            assert (await w.chat()).status == 502

        retries = sum(len(record.tries) - 1 for record in w.closed)
        assert retries == 10
        assert sum(w.gate.metrics.retries.values()) == 10


# -- fallback models --------------------------------------------------------------------------------

ONLY_429 = {"m": (Fallback("n", frozenset({FallbackOn.RATE_LIMITED})),)}
DEFAULT = {"m": (Fallback("n"),)}


def pair(*acts: object, refuses: bool = False) -> tuple[Engine, Engine]:
    return Engine(says(*acts), refuses=refuses), Engine(says(GOOD), "b", "n")  # type: ignore[arg-type]


async def test_a_fallback_for_429_is_not_taken_for_500(autojump_clock: MockClock) -> None:
    """G49"""
    first, other = pair(plain({}, 500))
    async with world(first, other, fallback=ONLY_429) as w:
        assert (await w.chat()).status == 502
        assert other.got == []
        assert w.record.fallbacks == []


REASONS = [
    (FallbackOn.RATE_LIMITED, [plain({}, 429)], False),
    (FallbackOn.SERVER_ERROR, [plain({}, 500)], False),
    (FallbackOn.SERVER_ERROR, [plain({}, 503)], False),
    (FallbackOn.UNREACHABLE, [], True),
    (FallbackOn.UNREACHABLE, [CLOSE], False),
    (FallbackOn.TIMEOUT, [600.0], False),
]


@pytest.mark.parametrize(("reason", "acts", "refuses"), REASONS)
async def test_a_fallback_is_taken_for_the_reasons_it_names_and_for_no_other(
    autojump_clock: MockClock, reason: FallbackOn, acts: list, refuses: bool
) -> None:
    for on, taken in ((frozenset({reason}), True), (frozenset(FallbackOn) - {reason}, False)):
        first, other = pair(*acts, refuses=refuses)
        async with world(first, other, fallback={"m": (Fallback("n", on),)}, limits=QUICK) as w:
            answer = await w.chat()

            assert (answer.status == 200) is taken
            assert len(other.got) == taken
            if taken:
                assert other.got[0].json()["model"] == "n"
                assert (w.record.model, w.record.asked, w.record.fallbacks) == ("n", "m", ["n"])
                assert w.gate.metrics.fallbacks == {("m", "n"): 1}


async def test_where_no_endpoint_stands_the_fallback_is_asked_at_once(autojump_clock: MockClock) -> None:
    other = Engine(says(GOOD), "b", "n")
    async with world(other, fallback=DEFAULT) as w:
        assert (await w.chat()).status == 200
        assert (w.record.fallbacks, len(w.record.tries)) == (["n"], 1)


async def test_a_clients_own_error_never_falls_back(autojump_clock: MockClock) -> None:
    first, other = pair(plain({"error": {"message": "bad"}}, 400))
    async with world(first, other, fallback={"m": (Fallback("n", frozenset(FallbackOn)),)}) as w:
        assert (await w.chat()).status == 400
        assert other.got == []


async def test_fallbacks_that_point_at_each_other_end(autojump_clock: MockClock) -> None:
    engines = Engine(says(plain({}, 500))), Engine(says(plain({}, 500)), "b", "n")
    async with world(*engines, fallback={"m": (Fallback("n"),), "n": (Fallback("m"),)}) as w:
        assert (await w.chat()).status == 502
        assert [len(engine.got) for engine in engines] == [1, 1]


async def test_once_a_token_has_left_no_fallback_is_asked(autojump_clock: MockClock) -> None:
    """G43"""
    first, other = pair(SSE_HEAD, chunk(delta("Hello wor")), 0.1, RESET)
    async with world(first, other, fallback={"m": (Fallback("n", frozenset(FallbackOn)),)}) as w:
        answer = await w.chat()

        assert "error" in json.loads(answer.events[-1][6:])
        assert other.got == []


async def test_a_key_is_not_led_to_a_model_it_may_not_use(autojump_clock: MockClock) -> None:
    first, other = pair(plain({}, 500))
    async with world(first, other, fallback=DEFAULT, key_models=frozenset({"m"})) as w:
        assert (await w.chat()).status == 502
        assert other.got == []
    first, other = pair(plain({}, 500))
    async with world(first, other, fallback=DEFAULT, key_models=frozenset({"m", "n"})) as w:
        assert (await w.chat()).status == 200


@pytest.mark.parametrize(
    ("given", "shown"), [(b"7", b"7"), (b"3600", b"60"), (b"0", b"1"), (b"-5", b"1"), (b"soon", b"1")]
)
async def test_an_engines_retry_after_is_one_that_no_client_misreads(
    autojump_clock: MockClock, given: bytes, shown: bytes
) -> None:
    async with world(Engine(says(plain({"error": "busy"}, 429, b"retry-after: " + given)))) as w:
        answer = await w.chat()

        assert (answer.status, answer.header(b"retry-after")) == (429, [shown])
        assert (answer.error["type"], answer.error["code"]) == ("requests", "rate_limit_exceeded")


async def test_plain_answers_go_elsewhere_too_while_nothing_has_left(autojump_clock: MockClock) -> None:
    """G42: an engine dies in the middle of a body that was still being kept whole."""
    async with world(Engine(says(ANSWER[:-9], CLOSE)), Engine(says(ANSWER), "b")) as w:
        answer = await w.post("/v1/chat/completions", chat(stream=False))

        assert answer.body == ANSWER.partition(b"\r\n\r\n")[2]
        assert (w.record.prompt_tokens, w.record.completion_tokens) == (3, 4)


async def test_nobody_waits_for_an_endpoint_that_was_tried(autojump_clock: MockClock) -> None:
    async with world(Engine(silent), limits=QUICK) as w:
        answer = await w.chat()

        assert answer.status == 504
        assert len(w.record.tries) == 1


OPENINGS = {
    "/v1/messages": [
        b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":3}}}\n\n',
        b'event: content_block_start\ndata: {"type":"content_block_start","index":0}\n\n',
        b'event: ping\ndata: {"type":"ping"}\n\n',
    ],
    "/v1/responses": [
        b'event: response.created\ndata: {"type":"response.created","response":{}}\n\n',
        b'event: response.in_progress\ndata: {"type":"response.in_progress","response":{}}\n\n',
        b'event: response.output_item.added\ndata: {"type":"response.output_item.added"}\n\n',
        b'event: response.content_part.added\ndata: {"type":"response.content_part.added"}\n\n',
    ],
}
LASTS = {
    "/v1/messages": b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    "/v1/responses": b'event: response.completed\ndata: {"type":"response.completed","response":{}}\n\n',
}


@pytest.mark.parametrize("end", [CLOSE, RESET])
@pytest.mark.parametrize("path", OPENINGS)
async def test_a_stream_that_fails_right_behind_its_opening_goes_elsewhere_on_every_route(
    autojump_clock: MockClock, path: str, end: str
) -> None:
    good = [*OPENINGS[path], LASTS[path]]
    fails = Engine(says(SSE_HEAD, *map(chunk, OPENINGS[path]), end), "a")
    async with world(fails, Engine(says(stream(*good)), "b")) as w:
        answer = await w.post(path, {"model": "m", "stream": True, "messages": [], "input": "hi"})

        assert answer.events == good
        assert w.record.endpoint == "b"


NO_JSON = [plain(b"hello", content_type=b"text/plain"), plain(b'{"choices":[{"mess'), plain(b"")]


@pytest.mark.parametrize("said", NO_JSON, ids=["words", "half of it", "nothing"])
async def test_a_plain_answer_that_no_client_could_read_goes_elsewhere_and_is_no_200(
    autojump_clock: MockClock, said: bytes
) -> None:
    async with world(Engine(says(said), "a"), Engine(says(ANSWER), "b")) as w:
        answers = [await w.chat(stream=False) for _ in range(2)]
        assert [answer.status for answer in answers] == [200, 200]
        assert {record.endpoint for record in w.closed} == {"b"}
    async with world(Engine(says(said))) as w:
        answer = await w.chat(stream=False)

        assert (answer.status, answer.error["code"]) == (502, "upstream_malformed")
        assert w.record.outcome == "engine_malformed"
