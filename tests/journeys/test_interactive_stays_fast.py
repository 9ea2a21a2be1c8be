"""What admission is for: interactive requests beside five hundred batch requests that never end.

Three engines of 32 slots whose rates do not depend on the batch. Measured idle, with the batch load and admission
off, and with it on; the median of three runs. It fails as well when the load was no load.
"""

import json
import re
from statistics import median
from typing import Any

import pytest
import trio
from attrs import define, field

from tests.journeys.running import Engine, Gateway, House, config_of
from tests.journeys.talking import chat, raise_descriptor_limit
from tests.sim.engine_talk import answer_of

RUNS = 3
SLOTS = 32
ENGINES = 3
BRONZE = 500
BRONZE_TOKENS = 40
PLATINUM_TOKENS = 8
PLATINUM = 320  # requests measured on each side
EVERY_S = 0.08  # one platinum request
WARM_UP_S = 8.0  # until the batch load stands as it will
ENOUGH = 300
FIRST_TOKEN = re.compile(rb'"content": ?"[^"]')


@define(eq=False)
class Side:
    """One situation, measured: seconds of each platinum request, and what bronze got done meanwhile."""

    first: list[float] = field(factory=list)
    total: list[float] = field(factory=list)
    bronze_done: int = 0
    seconds: float = 0.0
    queued: list[int] = field(factory=list)  # in all engines together, as seen now and then

    def p99(self, of: str) -> float:
        ordered = sorted(getattr(self, of))
        return float(ordered[int(len(ordered) * 0.99)])

    @property
    def bronze_a_second(self) -> float:
        return self.bronze_done / self.seconds


@define(eq=False)
class Load:
    gateway: Gateway
    engines: list[Engine]
    platinum: str
    bronze: str
    side: Side = field(factory=Side)
    measuring: bool = False

    async def measured(self, batch: bool) -> Side:
        """One side: the batch load if asked, then platinum requests at their own pace."""
        self.side, self.measuring = Side(), False
        async with trio.open_nursery() as nursery:
            if batch:
                for number in range(BRONZE):
                    nursery.start_soon(self._bronze, number)
                await trio.sleep(WARM_UP_S)
            nursery.start_soon(self._watch_engines)
            self.measuring, began = True, trio.current_time()
            async with trio.open_nursery() as asking:
                for number in range(PLATINUM):
                    asking.start_soon(self._platinum, number)
                    await trio.sleep_until(began + (number + 1) * EVERY_S)
            self.side.seconds = trio.current_time() - began
            nursery.cancel_scope.cancel()
        await self._until_idle()
        return self.side

    async def _bronze(self, number: int) -> None:
        """One that is replaced as soon as it has ended."""
        body = chat(f"batch {number}", max_tokens=BRONZE_TOKENS)
        stream = await trio.open_tcp_stream(*self.gateway.address)
        async with stream:
            while True:
                answer = await plain(stream, self.bronze, body)
                assert answer.status == 200, answer.body
                self.side.bronze_done += self.measuring

    async def _platinum(self, number: int) -> None:
        body = chat(f"question {number}", stream=True, max_tokens=PLATINUM_TOKENS)
        began = trio.current_time()
        async with await trio.open_tcp_stream(*self.gateway.address) as stream:
            await stream.send_all(asked(self.platinum, body, close=True))
            raw, first = bytearray(), 0.0
            while piece := await stream.receive_some(65536):
                raw += piece
                if not first and FIRST_TOKEN.search(raw):
                    first = trio.current_time() - began
        assert answer_of(bytes(raw)).events()[-1:] == ["[DONE]"]
        self.side.first.append(first)
        self.side.total.append(trio.current_time() - began)

    async def _watch_engines(self) -> None:
        while True:
            states = [await trio.to_thread.run_sync(engine.state) for engine in self.engines]
            self.side.queued.append(sum(state["waiting"] for state in states))
            await trio.sleep(1)

    async def _until_idle(self) -> None:
        with trio.fail_after(20):
            for engine in self.engines:
                while await trio.to_thread.run_sync(busy, engine):  # noqa: ASYNC110 - a process sets no event for us
                    await trio.sleep(0.1)


def busy(engine: Engine) -> bool:
    state = engine.state()
    return bool(state["running"] or state["waiting"])


def asked(key: str, body: Any, close: bool = False) -> bytes:
    data = json.dumps(body).encode()
    connection = "connection: close\r\n" if close else ""
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {key}\r\n{connection}"
        f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


async def plain(stream: trio.SocketStream, key: str, body: Any) -> Any:
    """One request on a connection that stays."""
    await stream.send_all(asked(key, body))
    raw = bytearray()
    while b"\r\n\r\n" not in raw or not answer_of(bytes(raw)).whole:
        piece = await stream.receive_some(65536)
        assert piece, "the gateway closed a connection of the batch load"
        raw += piece
    return answer_of(bytes(raw))


@pytest.fixture
def engines(home: House) -> list[Engine]:
    raise_descriptor_limit()
    return home.engines(ENGINES, slots=SLOTS, prefill_seconds=0.25, decode_rate=20, step=0.05, blocks=20_000)


def admission_of(gateway: Gateway, mode: str) -> None:
    text = gateway.config.read_text()
    for known in ("off", "on", "shadow"):
        text = text.replace(f'[admission]\nmode = "{known}"\n', "")
    gateway.config.write_text(text + f'[admission]\nmode = "{mode}"\n')
    gateway.ctl("apply", str(gateway.config))


@pytest.mark.slow
async def test_interactive_requests_stay_fast_beside_a_batch_load_that_never_ends(
    home: House, engines: list[Engine], capsys: pytest.CaptureFixture[str]
) -> None:
    urls = {f"e{number}": engine.url for number, engine in enumerate(engines)}
    gateway = home.gateway(config_of(urls))
    load = Load(gateway, engines, gateway.make_key("people", band="platinum"), gateway.make_key("batch", band="bronze"))
    rows = []
    for _ in range(RUNS):
        sides = {}
        for name, batch, mode in (("idle", False, "on"), ("off", True, "off"), ("on", True, "on")):
            await trio.to_thread.run_sync(admission_of, gateway, mode)
            sides[name] = await load.measured(batch)
        rows.append(sides)
    with capsys.disabled():
        print(table(rows))
    for sides in rows:
        assert min(len(side.first) for side in sides.values()) >= ENOUGH
        assert min(sides["off"].queued) > 0, "the batch load was no load: the engines' queues ran empty"
    ratios = {
        name: {of: median(sides[name].p99(of) / sides["idle"].p99(of) for sides in rows) for of in ("first", "total")}
        for name in ("off", "on")
    }
    assert median(sides["idle"].p99("first") for sides in rows) >= 0.2
    assert ratios["on"]["first"] <= 1.5
    assert ratios["on"]["total"] <= 1.5
    assert ratios["off"]["first"] > 10
    assert median(sides["on"].bronze_a_second / sides["off"].bronze_a_second for sides in rows) >= 0.85


@pytest.mark.slow
async def test_shadow_names_the_culprit_and_holds_nobody(home: House, engines: list[Engine]) -> None:
    urls = {f"e{number}": engine.url for number, engine in enumerate(engines)}
    gateway = home.gateway(config_of(urls, more='[admission]\nmode = "shadow"\n'))
    load = Load(gateway, engines, gateway.make_key("people", band="platinum"), gateway.make_key("batch", band="bronze"))
    side = await load.measured(batch=True)
    report = await trio.to_thread.run_sync(gateway.ctl, "admission", "report", "--since", "1h")
    ended = [line for line in gateway.log() if line["event"] == "request"]

    assert min(side.queued) > 0, "the batch load was no load: the engines' queues ran empty"
    assert report["mode"] == "shadow"
    (pool,) = report["pools"]
    bands = {band["band"]: band for band in pool["bands"]}
    assert (pool["culprits"][0]["band"], pool["culprits"][0]["tenant"]) == ("bronze", "batch")
    assert bands["platinum"]["requests"] >= ENOUGH
    assert bands["platinum"]["first_token_behind_p99_s"] > 2, "it really was slow"
    assert bands["platinum"]["wait_p99_s"] < 0.5, "and would not have waited"
    assert bands["bronze"]["wait_p50_s"] > 1
    assert {line["wait_s"] for line in ended} == {0.0}


def table(rows: list[dict[str, Side]]) -> str:
    lines = ["", "| run | platinum | first token p99 | total p99 | bronze/s | waiting in engines, least |"]
    lines.append("| --- | --- | ---: | ---: | ---: | ---: |")
    for run, sides in enumerate(rows, 1):
        for name, side in sides.items():
            first, total = side.p99("first"), side.p99("total")
            bronze = f"{side.bronze_a_second:.1f}" if side.bronze_done else ""
            lines.append(f"| {run} | {name} | {first:.3f} s | {total:.3f} s | {bronze} | {min(side.queued)} |")
    return "\n".join(lines)
