"""The five deadlines, each named; the keep-alive comment; the held preamble. All in virtual time."""

import json

import pytest
import trio
from trio.testing import MockClock

from llmgw.core.breaker import State
from llmgw.core.fleet import Engine as Kind
from llmgw.gateway.limits import RelayLimits
from tests.gateway.engine_bytes import (
    ANSWER,
    CLOSE,
    DONE,
    LAST,
    ROLE,
    SSE_HEAD,
    chunk,
    delta,
    event,
    in_turn,
    plain,
    says,
    silent,
    stream,
)
from tests.gateway.world import Answer, Engine, World, chat, world

COMMENT = b": keep-alive\n\n"
QUIET = RelayLimits(keepalive_after=0)


def names(w: World, answer: Answer, limit: str) -> None:
    """The deadline is named in the answer, the record and the metric."""
    error = answer.error if answer.status != 200 else json.loads(answer.events[-1][6:])["error"]
    assert f"the {limit} deadline" in error["message"]
    assert error["code"] == "upstream_timeout"
    assert w.record.outcome == f"{limit}_timeout"
    assert f"the {limit} deadline" in w.record.message
    assert w.gate.metrics.deadlines == {limit: 1}


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_dial_that_hangs_has_its_own_deadline(autojump_clock: MockClock, streaming: bool) -> None:
    """G52"""
    async with world(Engine(silent, picks_up=trio.Event())) as w:
        answer = await w.chat(stream=streaming)

        assert answer.status == 504
        names(w, answer, "dial")
        assert trio.current_time() == pytest.approx(2.0, abs=0.1)


async def test_after_a_dial_that_hangs_another_endpoint_is_asked(autojump_clock: MockClock) -> None:
    """G52"""
    async with world(Engine(silent, picks_up=trio.Event()), Engine(says(stream(delta("b"), DONE)), "b")) as w:
        answer = await w.chat()

        assert answer.events == [delta("b"), DONE]
        assert [(name, why) for name, why, _, _ in w.record.tries] == [("a", "dial_timeout"), ("b", "ok")]


async def test_headers_that_do_not_come_are_named(autojump_clock: MockClock) -> None:
    async with world(Engine(silent), limits=QUIET) as w:
        answer = await w.chat()

        assert answer.status == 504
        names(w, answer, "headers")
        assert trio.current_time() == pytest.approx(30.0, abs=0.1)


async def test_an_engine_that_sends_its_head_with_the_first_token_has_no_limit_on_headers(
    autojump_clock: MockClock,
) -> None:
    async with world(Engine(silent, kind=Kind.LLAMACPP), limits=QUIET) as w:
        answer = await w.chat()

        names(w, answer, "first_token")
        assert trio.current_time() == pytest.approx(120.0, abs=0.1)


HEADS = [
    ("nothing", [SSE_HEAD]),
    ("comments", [SSE_HEAD, *[chunk(b": wait\n\n"), 10.0] * 20]),
    ("a role", [SSE_HEAD, chunk(ROLE)]),
]


@pytest.mark.parametrize("acts", [row[1] for row in HEADS], ids=[row[0] for row in HEADS])
async def test_a_first_token_that_does_not_come_is_named_and_neither_comments_nor_a_role_are_tokens(
    autojump_clock: MockClock, acts: list
) -> None:
    async with world(Engine(says(*acts, 1000.0)), limits=QUIET) as w:
        answer = await w.chat()

        names(w, answer, "first_token")
        assert trio.current_time() == pytest.approx(120.0, abs=0.3)


async def test_tokens_that_stop_are_named(autojump_clock: MockClock) -> None:
    async with world(Engine(says(SSE_HEAD, chunk(delta("a")), 50.0, chunk(delta("b")), 1000.0)), limits=QUIET) as w:
        answer = await w.chat()

        assert answer.events[:2] == [delta("a"), delta("b")]
        names(w, answer, "idle")
        assert answer.whole
        assert 60.0 <= trio.current_time() - 50.0 <= 60.0 * 1.06


async def test_comments_do_not_keep_a_stream_alive_whose_tokens_stopped(autojump_clock: MockClock) -> None:
    pings = [chunk(b":\n\n"), 10.0] * 100
    async with world(Engine(says(SSE_HEAD, chunk(delta("a")), *pings)), limits=QUIET) as w:
        answer = await w.chat()

        names(w, answer, "idle")
        assert trio.current_time() == pytest.approx(61.5, abs=2)


async def test_headers_at_once_and_the_first_token_late_survive_a_shorter_idle_limit(
    autojump_clock: MockClock,
) -> None:
    """G51"""
    limits = RelayLimits(idle=90, first_token=120)
    async with world(Engine(says(SSE_HEAD, 100.0, chunk(delta("a")), chunk(DONE), LAST)), limits=limits) as w:
        answer = await w.chat()

        assert [one for one in answer.events if one != COMMENT] == [delta("a"), DONE]
        assert w.record.outcome == "ok"
        assert w.record.ttft_s == pytest.approx(100.0, abs=0.01)


async def test_a_stream_that_goes_on_and_on_ends_at_the_total_limit(autojump_clock: MockClock) -> None:
    acts = [chunk(delta("x")), 10.0] * 100
    async with world(Engine(says(SSE_HEAD, *acts)), limits=RelayLimits(total=300)) as w:
        answer = await w.chat()

        names(w, answer, "total")
        assert trio.current_time() == pytest.approx(300.0, abs=0.1)


async def test_the_total_limit_counts_every_attempt_and_ends_all_of_them(autojump_clock: MockClock) -> None:
    limits = RelayLimits(total=50, keepalive_after=0)
    async with world(Engine(silent), Engine(silent, "b"), Engine(silent, "c"), limits=limits) as w:
        answer = await w.chat()

        assert w.record.outcome == "total_timeout"
        assert [outcome for _, outcome, _, _ in w.record.tries] == ["headers_timeout", "total_timeout"]
        assert trio.current_time() == pytest.approx(50.0, abs=0.1)
        assert answer.status == 504


async def test_a_plain_request_knows_no_first_token(autojump_clock: MockClock) -> None:
    async with world(Engine(says(1000.0, ANSWER))) as w:
        answer = await w.chat(stream=False)

        assert answer.status == 200
        assert trio.current_time() >= 1000


async def test_a_plain_request_has_the_total_limit(autojump_clock: MockClock) -> None:
    async with world(Engine(silent)) as w:
        answer = await w.chat(stream=False)

        names(w, answer, "total")
        assert trio.current_time() == pytest.approx(1800.0, abs=0.1)


async def test_a_plain_body_that_stops_is_idle(autojump_clock: MockClock) -> None:
    async with world(Engine(says(ANSWER[:-5], 1000.0))) as w:
        answer = await w.chat(stream=False)

        names(w, answer, "idle")
        assert trio.current_time() == pytest.approx(61.5, abs=2)


async def test_timeouts_open_the_breaker_and_the_total_limit_does_not(autojump_clock: MockClock) -> None:
    async with world(Engine(silent), limits=RelayLimits(headers=1.0)) as w:
        for _ in range(5):
            await w.chat()
        assert w.breaker() is State.OPEN
    async with world(Engine(silent), limits=RelayLimits(total=1.0)) as w:
        for _ in range(10):
            await w.chat()
        assert w.breaker() is State.CLOSED


# -- the keep-alive comment -------------------------------------------------------------------------


async def test_a_silent_stream_gets_a_comment_every_15_seconds_that_stops_no_client(autojump_clock: MockClock) -> None:
    """G50"""
    async with world(Engine(says(SSE_HEAD, 61.0, chunk(delta("a")), chunk(DONE), LAST))) as w:
        answer = await w.chat()

        assert answer.events == [COMMENT] * 4 + [delta("a"), DONE]
        assert [round(at) for at, piece in answer.pieces if piece == COMMENT] == [15, 30, 45, 60]
        assert b": ping" not in answer.raw
        assert w.record.outcome == "ok"


async def test_the_comment_waits_for_silence_and_not_for_the_clock(autojump_clock: MockClock) -> None:
    """A token at 14.9 s: the next comment is due 15 s after the last token."""
    acts = [14.9, chunk(delta("a")), 1.0, chunk(delta("b")), 14.0, chunk(delta("c")), chunk(DONE), LAST]
    async with world(Engine(says(SSE_HEAD, *acts))) as w:
        answer = await w.chat()

        assert answer.events == [delta("a"), delta("b"), delta("c"), DONE]
        assert w.record.outcome == "ok"


async def test_silence_in_the_middle_gets_comments_between_whole_events(autojump_clock: MockClock) -> None:
    late = delta("b")
    acts = [chunk(delta("a")), 5.0, chunk(late[:9]), 40.0, chunk(late[9:]), chunk(DONE), LAST]
    async with world(Engine(says(SSE_HEAD, *acts))) as w:
        answer = await w.chat()

        assert [one for one in answer.events if one != COMMENT] == [delta("a"), late, DONE]
        assert answer.events.count(COMMENT) == 2
        assert w.record.outcome == "ok"


@pytest.mark.parametrize("kind", [Kind.VLLM, Kind.LLAMACPP])
async def test_an_engines_own_comments_are_no_word_to_the_client(autojump_clock: MockClock, kind: Kind) -> None:
    """G50: they are dropped, so the client still needs ours."""
    pings = [chunk(b":\n\n"), 5.0] * 8
    async with world(Engine(says(SSE_HEAD, *pings, chunk(delta("a")), *pings, chunk(DONE), LAST), kind=kind)) as w:
        answer = await w.chat()

        assert [one for one in answer.events if one != COMMENT] == [delta("a"), DONE]
        assert answer.events.count(COMMENT) == 4


async def test_no_comment_where_it_is_switched_off_and_none_on_a_plain_answer(autojump_clock: MockClock) -> None:
    async with world(Engine(says(SSE_HEAD, 25.0, chunk(delta("a")), chunk(DONE), LAST)), limits=QUIET) as w:
        assert (await w.chat()).events == [delta("a"), DONE]
    async with world(Engine(says(100.0, ANSWER))) as w:
        assert (await w.chat(stream=False)).raw.startswith(b"HTTP/1.1 200")
        assert w.record.total_s >= 100


async def test_after_a_comment_a_failure_may_still_go_elsewhere(autojump_clock: MockClock) -> None:
    other = Engine(says(stream(delta("b"), DONE)), "b")
    async with world(Engine(says(20.0, plain({"error": "x"}, 500))), other) as w:
        answer = await w.chat()

        assert answer.events == [COMMENT, delta("b"), DONE]
        assert w.record.outcome == "ok"


async def test_after_a_comment_a_failure_nobody_can_help_is_an_error_event(autojump_clock: MockClock) -> None:
    async with world(Engine(says(20.0, plain({"error": {"message": "too long"}}, 400)))) as w:
        answer = await w.chat()

        assert answer.status == 200
        assert answer.events[0] == COMMENT
        assert json.loads(answer.events[1][6:])["error"]["message"] == "too long"
        assert answer.whole
        assert (w.record.outcome, w.record.status) == ("engine_refused", 200)


# -- the held preamble ------------------------------------------------------------------------------

AFTER_A_ROLE = [
    ("an error event", [chunk(event({"error": {"message": "boom"}}))]),
    ("not JSON", [chunk(b"data: nope\n\n")]),
    ("the end", [LAST]),
    ("a close", [CLOSE]),
]


@pytest.mark.parametrize("then", [row[1] for row in AFTER_A_ROLE], ids=[row[0] for row in AFTER_A_ROLE])
async def test_a_role_alone_is_held_so_that_a_failure_behind_it_may_go_elsewhere(
    autojump_clock: MockClock, then: list
) -> None:
    """G44"""
    other = Engine(says(stream(ROLE, delta("b"), DONE)), "b")
    async with world(Engine(says(SSE_HEAD, chunk(ROLE), 0.2, *then)), other) as w:
        answer = await w.chat()

        assert answer.events == [ROLE, delta("b"), DONE]
        assert len(w.record.tries) == 2
        assert w.record.completion_tokens == 1


async def test_a_held_role_leaves_with_the_first_token_or_after_a_quarter_second(autojump_clock: MockClock) -> None:
    """G44"""
    acts = [SSE_HEAD, chunk(ROLE), 1.0, chunk(delta("a")), chunk(DONE), LAST]
    async with world(Engine(in_turn(says(*acts[:2], 0.1, *acts[3:]), says(*acts)))) as w:
        early = await w.chat()
        w.endpoint().client._idle.pop().stream.close()
        began = trio.current_time()
        late = await w.chat()

        assert early.events == late.events == [ROLE, delta("a"), DONE]
        assert early.pieces[0][1].startswith(ROLE + delta("a"))
        assert late.pieces[0] == (pytest.approx(began + 0.25, abs=0.02), ROLE)
        assert [record.completion_tokens for record in w.closed] == [1, 1]


async def test_once_the_role_has_left_nobody_else_is_asked(autojump_clock: MockClock) -> None:
    other = Engine(says(stream(delta("b"), DONE)), "b")
    async with world(Engine(says(SSE_HEAD, chunk(ROLE), 0.3, CLOSE)), other) as w:
        answer = await w.chat()

        assert answer.events[0] == ROLE
        assert b"upstream_error" in answer.events[1]
        assert other.got == []


@pytest.mark.parametrize(
    "first",
    [
        delta("a"),
        event({"choices": [{"delta": {"role": "assistant", "reasoning": "hm"}}]}),
        event({"choices": [{"delta": {"role": "assistant", "tool_calls": [{"index": 0}]}}]}),
        event({"choices": [{"delta": {"role": "assistant", "content": "a"}}]}),
        event({"choices": [], "prompt_filter_results": []}),
    ],
)
async def test_whatever_says_more_than_a_role_leaves_at_once(autojump_clock: MockClock, first: bytes) -> None:
    async with world(Engine(says(SSE_HEAD, chunk(first), 0.2, chunk(DONE), LAST))) as w:
        client = w.client()
        await client.post("/v1/chat/completions", chat())
        await client.until(first)
        assert trio.current_time() < 0.1
        await client.answer()
