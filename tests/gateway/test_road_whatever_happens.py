"""Whatever an engine sends and whenever the client leaves: an honest answer, one record, nothing left behind."""

import json
from typing import Any

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from llmgw.core.fleet import Engine as Kind
from llmgw.core.outcome import Outcome
from tests.gateway.engine_bytes import (
    ANSWER,
    CLOSE,
    DONE,
    FINISH,
    LAST,
    RESET,
    ROLE,
    SSE_HEAD,
    USAGE,
    chunk,
    delta,
    event,
    plain,
    says,
)
from tests.gateway.world import Answer, Engine, World, chat, world

PIECES = [
    ROLE, delta("a"), delta("b" * 3000), FINISH, USAGE, DONE, b": ping\n\n", b"data: {nope\n\n", b"data:\n\n",
    delta("a")[:9], delta("a")[9:], delta("a").replace(b"\n", b"\r\n"), b"\r", b"\n", b"\n\n", b"id: 1\n" + delta("a"),
    event({"error": {"message": "boom"}}), event({"object": "error", "message": "boom"}), b"data: [1]\n\n", b"\xff\xfe",
]  # fmt: skip
RAW = [
    LAST, SSE_HEAD, ANSWER, ANSWER[:40], b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"zz\r\n", b"x",
    plain({"error": "x"}, 500), plain({"error": "x"}, 429), plain({"error": {"message": ""}}, 400), plain(b"", 204),
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\n\r\n\x1f\x8b",
]  # fmt: skip
acts = st.lists(
    st.one_of(
        st.sampled_from(PIECES).map(chunk),
        st.sampled_from(PIECES).map(chunk),
        st.sampled_from(RAW),
        st.sampled_from([0.01, 0.3, 16.0, 70.0, 200.0]),
        st.sampled_from([CLOSE, RESET]),
    ),
    max_size=8,
)
scripts = st.tuples(st.sampled_from([[SSE_HEAD], [SSE_HEAD], [0.5, SSE_HEAD], []]), acts).map(
    lambda two: two[0] + two[1]
)
leaves = st.one_of(st.none(), st.sampled_from([0.0, 0.1, 0.4, 20.0, 100.0]))


async def asked(w: World, streaming: bool, leaves_at: float | None) -> Answer | None:
    """The answer; None if the client left before it had come."""
    client = w.client()
    await client.post("/v1/chat/completions", chat(streaming))
    if leaves_at is None:
        answer: Answer | None = await client.answer()
    else:
        answer = None
        with trio.move_on_after(leaves_at):
            answer = await client.answer()
        client.leave()
    await w.settled()
    return answer


def honest(answer: Answer, streaming: bool, outcome: Outcome) -> None:
    """The client can tell how it went, and the record agrees."""
    if answer.status != 200:
        assert answer.status in (204, 400, 429, 502, 503, 504)
        if answer.status != 204:
            assert answer.error.keys() == {"message", "type", "param", "code"}
            assert not outcome.ok
    elif streaming:
        assert answer.whole
        events = [one for one in answer.events if not one.startswith(b":")]
        failed = [one for one in events if b'"error"' in one]
        assert outcome.ok is (events[-1] == DONE and not failed)
        assert len(failed) == (not outcome.ok)
        for one in events:
            assert one == DONE or (one.startswith(b"data:") and one.count(b"\n") == 2)
            assert one == DONE or json.loads(one[5:]) is not None
        assert DONE not in events[:-1]
    else:
        assert answer.whole is outcome.ok


@given(scripts, scripts, st.booleans(), leaves, st.sampled_from([Kind.VLLM, Kind.LLAMACPP]))
def test_whatever_happens_the_answer_is_honest_and_nothing_is_left(
    first: list[Any], second: list[Any], streaming: bool, leaves_at: float | None, kind: Kind
) -> None:
    async def story() -> None:
        async with world(Engine(says(*first), kind=kind), Engine(says(*second), "b", kind=kind)) as w:
            answer = await asked(w, streaming, leaves_at)

            assert len(w.closed) == 1
            outcome = Outcome(w.record.outcome)
            assert outcome not in (Outcome.INTERNAL, Outcome.SHUTTING_DOWN)
            assert len(w.record.tries) <= 2
            assert len(w.rows) == 1
            if answer is not None:
                honest(answer, streaming, outcome)

    trio.run(story, clock=MockClock(autojump_threshold=0))
