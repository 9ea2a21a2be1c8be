"""An engine dies in the middle of many streams: who had nothing yet is answered by others, the rest are told."""

import signal

import trio

from tests.journeys.running import UNADMITTED, Engine, Gateway, House, config_of, values
from tests.journeys.talking import DONE, Clients, chat, complete
from tests.sim.engine_talk import Answer

MANY = 200
TOKENS = 30
SLOTS = 45  # of 66 that come to each: the others wait without a token


async def test_streams_without_a_token_go_elsewhere_and_the_rest_get_an_error_event(home: House):
    engines = home.engines(3, slots=SLOTS, decode_rate=15)
    gateway = home.gateway(config_of({f"e{n}": engine.url for n, engine in enumerate(engines)}, more=UNADMITTED))
    clients = Clients(gateway, gateway.make_key())
    answers: list[Answer | None] = []

    async def ask() -> None:
        answers.extend(await clients.ask_all([chat(f"q{n}", stream=True, max_tokens=TOKENS) for n in range(MANY)]))

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            while not all(busy(engine) for engine in engines):  # noqa: ASYNC110 - a process sets no event for us
                await trio.sleep(0.02)
            engines[0].process.signal(signal.SIGKILL)
    told, moved = judged(gateway, answers)
    assert told > SLOTS / 2
    assert moved > 5
    outcomes = gateway.metrics()
    assert sum(values(outcomes, "llmgw_requests_total", outcome="ok")) == MANY - told
    assert sum(values(outcomes, "llmgw_requests_total", outcome="engine_broke")) == told
    assert sum(values(outcomes, "llmgw_retries_total")) == moved
    assert not any(values(outcomes, "llmgw_endpoint_in_flight"))


def busy(engine: Engine) -> bool:
    """Full, with some waiting, and everybody who runs has tokens."""
    state = engine.state()
    return state["running"] == SLOTS and state["waiting"] > 5 and state["generation_tokens"] > 3 * SLOTS


def judged(gateway: Gateway, answers: list[Answer | None]) -> tuple[int, int]:
    """How many were told of the failure, and how many had their whole answer from another engine."""
    listed = gateway.admin("GET", f"/admin/v1/requests?limit={MANY}").json()["requests"]
    tries = {one["id"]: [tried["endpoint"] for tried in one["tries"]] for one in listed}
    told = moved = 0
    for answer in answers:
        assert answer is not None
        assert answer.whole  # ended by its own framing, even where it was told of a failure
        where = tries[answer.headers["x-request-id"]]
        if complete(answer, TOKENS):
            moved += where[0] == "e0" and len(where) > 1
            continue
        events = answer.events()
        assert where == ["e0"]
        assert events[0]["choices"], "an error that could have gone elsewhere"
        assert events[-1]["error"]["code"] == "upstream_error"
        assert DONE not in events
        told += 1
    return told, moved


async def test_an_engine_that_dies_before_anybody_has_a_token_costs_nobody_an_answer(home: House):
    engines = home.engines(3, slots=100, decode_rate=100)
    gateway = home.gateway(config_of({f"e{n}": engine.url for n, engine in enumerate(engines)}, more=UNADMITTED))
    clients = Clients(gateway, gateway.make_key())
    answers: list[Answer | None] = []

    async def ask() -> None:
        answers.extend(await clients.ask_all([chat(f"q{n}", stream=True, max_tokens=TOKENS) for n in range(MANY)]))

    for engine in engines:
        engine.fault(wedge=True)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            while sum(values(gateway.metrics(), "llmgw_endpoint_in_flight")) < MANY:  # noqa: ASYNC110
                await trio.sleep(0.02)
            engines[0].process.signal(signal.SIGKILL)
            for engine in engines[1:]:
                engine.no_faults()
    assert sum(complete(answer, TOKENS) for answer in answers) == MANY
    assert sum(values(gateway.metrics(), "llmgw_retries_total")) > MANY / 5  # a third of them, in one stroke


async def test_a_plain_answer_that_its_engine_did_not_live_to_give_comes_from_another(home: House):
    engines = home.engines(2, slots=40, decode_rate=15)
    gateway = home.gateway(config_of({f"e{n}": engine.url for n, engine in enumerate(engines)}, more=UNADMITTED))
    clients = Clients(gateway, gateway.make_key())
    answers: list[Answer | None] = []

    async def ask() -> None:
        answers.extend(await clients.ask_all([chat(f"q{n}", max_tokens=TOKENS) for n in range(20)]))

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            while engines[0].state()["generation_tokens"] < 20:  # noqa: ASYNC110 - a process sets no event for us
                await trio.sleep(0.02)
            engines[0].process.signal(signal.SIGKILL)
    assert [answer.status for answer in answers if answer] == [200] * 20
    assert all(answer and len(answer.json()["choices"][0]["message"]["content"]) > TOKENS for answer in answers)
    assert 0 < sum(values(gateway.metrics(), "llmgw_retries_total")) < 20
