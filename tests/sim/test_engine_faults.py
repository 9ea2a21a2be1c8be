"""The simulated engine misbehaves as told, and only as told; whoever leaves frees what it held."""

import json
from typing import Any

import pytest
import trio

from sim.engine_model import EngineShape
from sim.faults import Faults
from sim.serving import EngineSpec
from tests.sim.engine_talk import Answer, Talk, answer_of, chat, engine

CHAT = "/v1/chat/completions"
BLOCKS_FREE = {"total": 4096, "free": 4096, "used": 0, "cached": 0}


async def faulty(talk: Talk, fault: Any, **asked: Any) -> Answer:
    assert (await talk.post("/sim/faults", fault)).status == 200
    return await talk.post(CHAT, chat(max_tokens=10, **asked))


async def test_a_fault_ends_with_its_count_and_holds_on_its_route_alone(autojump_clock: Any):
    async with engine() as talk:
        fault = {"status": 503, "count": 2, "route": CHAT, "headers": {"Retry-After": "1"}}
        first = await faulty(talk, fault)
        elsewhere = await talk.post("/v1/completions", {"prompt": "x"})
        left = (await talk.ask("GET", "/sim/faults")).json()
        second, third = [await talk.post(CHAT, chat(max_tokens=1)) for _ in range(2)]
    assert (first.status, first.headers["retry-after"]) == (503, "1")
    assert left["faults"] == [{**fault, "count": 1}]
    assert [elsewhere.status, second.status, third.status] == [200, 503, 200]


async def test_faults_are_cleared_and_replaced(autojump_clock: Any):
    async with engine() as talk:
        await talk.post("/sim/faults", [{"status": 500}, {"health_status": 503}])
        ill = await talk.ask("GET", "/health")
        await talk.post("/sim/faults", {"status": 429, "body": {"error": "slow down"}})
        replaced = await talk.post(CHAT, chat(max_tokens=1))
        well = await talk.ask("GET", "/health")
        await talk.ask("DELETE", "/sim/faults")
        cleared = await talk.post(CHAT, chat(max_tokens=1))
    assert (ill.status, well.status) == (503, 200)
    assert (replaced.status, replaced.json()) == (429, {"error": "slow down"})
    assert cleared.status == 200


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ({"hangs": True}, "hangs"),
        ({"hang": 1}, "hang"),
        ({"status": True}, "status"),
        ({"huge_line": -1}, "huge_line"),
        ({"status": 99}, "status"),
        ([3], "object"),
        ({"share": 1.5}, "share"),
        (b"[" * 100_000, "nested"),
    ],
)
async def test_a_fault_nobody_knows_is_refused(autojump_clock: Any, said: Any, names: str):
    async with engine() as talk:
        await talk.post("/sim/faults", {"health_status": 500})
        answer = await talk.post("/sim/faults", said)
        assert len((await talk.ask("GET", "/sim/faults")).json()["faults"]) == 1
    assert answer.status == 400
    assert names in answer.json()["error"]["message"]


async def test_a_hang_answers_nothing_and_ends_with_the_client(autojump_clock: Any):
    async with engine() as talk:
        await talk.post("/sim/faults", {"hang": True})
        stream = await talk.send("POST", CHAT, chat())
        with trio.move_on_after(3600) as scope:
            await stream.receive()
        assert scope.cancelled_caught
        stream.close()
        await trio.testing.wait_all_tasks_blocked()
        assert len(talk.served.door.connections) == 0


async def test_a_slow_first_token_holds_its_slot_meanwhile(autojump_clock: Any):
    async with engine() as talk:
        began = trio.current_time()
        answer = await faulty(talk, {"slow_first_token_s": 30}, stream=True)
    assert trio.current_time() - began >= 30
    assert answer.events()[-1] == "[DONE]"


@pytest.mark.parametrize("events", [0, 4])
@pytest.mark.parametrize("way", ["reset", "cut"])
async def test_a_stream_reset_or_cut_has_its_events_and_no_last_chunk(autojump_clock: Any, way: str, events: int):
    async with engine() as talk:
        answer = await faulty(talk, {f"{way}_after_events": events}, stream=True)
        state = await talk.state()
    assert (answer.whole, answer.reset) == (False, way == "reset")
    assert len(answer.events()) == 1 + events
    assert (state["blocks"]["used"], state["running"], state["aborted"]) == (0, 0, 1)


@pytest.mark.parametrize("way", ["reset", "cut"])
async def test_a_plain_answer_reset_or_cut_is_none(autojump_clock: Any, way: str):
    async with engine() as talk:
        answer = await faulty(talk, {f"{way}_after_events": 0})
    assert (answer.status, answer.reset) == (0, way == "reset")


async def test_a_share_of_requests_is_the_same_share_each_time_it_is_set(autojump_clock: Any):
    async with engine() as talk:
        runs = []
        for _ in range(2):
            await talk.post("/sim/faults", {"status": 503, "share": 0.5})
            runs.append([(await talk.post(CHAT, chat(max_tokens=1))).status for _ in range(40)])
    assert runs[0] == runs[1]
    assert 10 <= runs[0].count(503) <= 30


async def test_a_share_of_none_befalls_nobody_and_the_next_fault_may(autojump_clock: Any):
    async with engine() as talk:
        answer = await faulty(talk, [{"status": 503, "share": 0}, {"status": 429, "share": 1}])
    assert answer.status == 429


async def test_the_head_of_a_stream_does_not_wait_for_its_first_token(autojump_clock: Any):
    async with engine() as talk:
        await talk.post("/sim/faults", {"slow_first_token_s": 100})
        stream = await talk.send("POST", CHAT, chat(stream=True, max_tokens=1))
        began, head = trio.current_time(), await stream.receive()
        assert trio.current_time() - began < 1
        assert head.startswith(b"HTTP/1.1 200 ")
        assert head.endswith(b"\r\n\r\n")
        assert b'"role":"assistant"' in await stream.receive()
        assert trio.current_time() - began >= 100
        stream.close()


@pytest.mark.parametrize("stream", [True, False])
async def test_death_comes_after_so_many_events(autojump_clock: Any, stream: bool):
    async with engine() as talk:
        died = list[int]()
        talk.served.simulator.answering.die = lambda: died.append(1)
        answer = await faulty(talk, {"die_after_events": 3}, stream=stream)
    assert died == [1]
    assert not answer.whole
    assert len(answer.events()) == (4 if stream else 0)


async def test_a_truncated_stream_has_no_end_and_a_truncated_body_is_short(autojump_clock: Any):
    async with engine() as talk:
        stream = await faulty(talk, {"truncated": True}, stream=True)
        plain = await faulty(talk, {"truncated": True})
    assert stream.whole
    assert "[DONE]" not in stream.events()
    assert all(e["choices"][0]["finish_reason"] is None for e in stream.events())
    assert not plain.whole


async def test_malformed_events_and_bodies_are_not_json(autojump_clock: Any):
    async with engine() as talk:
        stream = await faulty(talk, {"malformed": True}, stream=True)
        plain = await faulty(talk, {"malformed": True})
    for answer in (stream, plain):
        assert (answer.status, answer.whole) == (200, True)
        with pytest.raises(json.JSONDecodeError):
            answer.json() if answer is plain else answer.events()


async def test_a_huge_line_is_one_event(autojump_clock: Any):
    async with engine() as talk:
        answer = await faulty(talk, {"huge_line": 300_000}, stream=True)
    assert [len(e["padding"]) for e in answer.events()[:-1] if "padding" in e] == [300_000]
    assert len(answer.events()) == 1 + 1 + 10 + 1


async def test_a_stream_may_open_and_then_fail(autojump_clock: Any):
    async with engine() as talk:
        at_once = (await faulty(talk, {"role_then_error": True}, stream=True)).events()
        later = (await faulty(talk, {"error_event_after": 2}, stream=True)).events()
    assert at_once[0]["choices"][0]["delta"]["role"] == "assistant"
    assert at_once[1]["error"]["code"] == 500
    assert ["error" in e for e in later] == [False, False, False, True, False]


async def test_a_wedged_engine_is_healthy_and_makes_no_token_until_it_is_freed(autojump_clock: Any):
    async with engine() as talk:
        await talk.post("/sim/faults", {"wedge": True})
        stream = await talk.send("POST", CHAT, chat(max_tokens=5))
        await trio.sleep(60)
        assert (await talk.ask("GET", "/health")).status == 200
        assert (await talk.state())["waiting"] == 1
        await talk.ask("DELETE", "/sim/faults")
        assert answer_of(await stream.receive()).json()["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize("after_s", [0.0, 0.01, 0.05, 0.5])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_slot_and_blocks_at_once(
    autojump_clock: Any, after_s: float, stream: bool
):
    async with engine(EngineSpec(EngineShape(slots=2))) as talk:
        streams = [await talk.send("POST", CHAT, chat(stream=stream, ignore_eos=True)) for _ in range(5)]
        await trio.sleep(after_s)
        for one in streams:
            one.close()
        await trio.testing.wait_all_tasks_blocked()
        state = await talk.state()
    assert (state["blocks"], state["running"], state["waiting"], state["served"]) == (BLOCKS_FREE, 0, 0, 0)


async def test_a_slow_reader_does_not_slow_the_others(autojump_clock: Any):
    async with engine(EngineSpec(EngineShape(decode_rate=1000))) as talk:
        stalled = await talk.send("POST", CHAT, chat(stream=True, max_tokens=5000, ignore_eos=True))
        began = trio.current_time()
        answer = await talk.post(CHAT, chat(max_tokens=1000, ignore_eos=True))
        took_s = trio.current_time() - began
        stalled.close()
    assert answer.json()["usage"]["completion_tokens"] == 1000
    assert took_s == pytest.approx(1.0, abs=0.1)


def test_faults_of_the_whole_engine_befall_no_single_request():
    faults = Faults()
    faults.set([{"ignore_sigterm": True}, {"fork_children": 2}, {"wedge": True}, {"health_status": 500}])
    assert faults.take(CHAT).status is None
    assert (faults.ignores_sigterm, faults.children, faults.wedged, faults.take_health()) == (True, 2, True, 500)
