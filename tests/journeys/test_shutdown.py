"""How a gateway stops, and when it does not even start."""

import json
import signal
import socket
import sqlite3
from pathlib import Path

import httpx
import pytest
import trio

from tests.journeys.running import Gateway, House, config_of, wait_until
from tests.journeys.talking import DONE, Clients, chat, complete
from tests.sim.engine_talk import Answer

PAUSE_S, GRACE_S = 1.0, 2.0
A_LITTLE_S = 1.0  # what a busy machine may add


def client_ready(gateway: Gateway) -> int:
    return httpx.get(f"{gateway.url}/ready", trust_env=False).status_code


async def wait_refused(gateway: Gateway) -> None:
    with trio.fail_after(PAUSE_S + A_LITTLE_S):
        while True:
            try:
                await (await trio.open_tcp_stream(*gateway.address)).aclose()
            except OSError:
                return
            await trio.sleep(0.02)


def usage_rows(gateway: Gateway) -> list[tuple[str, str, int]]:
    db = sqlite3.connect(f"file:{gateway.data_dir / 'llmgw.db'}?mode=ro", uri=True)
    try:
        return db.execute("SELECT request_id, outcome, completion_tokens FROM usage ORDER BY at").fetchall()
    finally:
        db.close()


async def test_sigterm_lets_short_requests_finish_and_cuts_long_ones_at_the_grace(home: House):
    engine = home.engine(decode_rate=10)
    server = f"balancer_pause = {PAUSE_S}\nshutdown_grace = {GRACE_S}"
    gateway = home.gateway(config_of({"a": engine.url}, server=server))
    clients = Clients(gateway, gateway.make_key())
    answers: dict[str, Answer] = {}

    async def ask(name: str, tokens: int) -> None:
        answers[name] = await clients.ask(chat(name, stream=True, max_tokens=tokens))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, "short", 22)
        nursery.start_soon(ask, "long", 1000)
        await trio.to_thread.run_sync(wait_until, lambda: engine.state()["generation_tokens"] > 4)
        began = trio.current_time()
        gateway.process.signal(signal.SIGTERM)
        await trio.to_thread.run_sync(wait_until, lambda: client_ready(gateway) == 503, PAUSE_S)
        assert gateway.admin("GET", "/ready", token="").status_code == 503
        await ask("late", 3)  # the balancer has not noticed yet: still served
        assert trio.current_time() - began < PAUSE_S
        await wait_refused(gateway)
        assert trio.current_time() - began > PAUSE_S
        assert gateway.admin("GET", "/health", token="").status_code == 200
    took = trio.current_time() - began
    assert await trio.to_thread.run_sync(gateway.process.wait) == 0
    assert PAUSE_S + GRACE_S - 0.1 < took < PAUSE_S + GRACE_S + A_LITTLE_S
    assert complete(answers["short"], 22)
    assert complete(answers["late"], 3)
    assert not answers["long"].whole
    assert DONE.encode() not in answers["long"].body
    wait_until(lambda: engine.state()["running"] == 0)
    rows = {id: (outcome, tokens) for id, outcome, tokens in usage_rows(gateway)}
    assert len(rows) == 3
    assert rows[answers["short"].headers["x-request-id"]] == ("ok", 22)
    assert rows[answers["late"].headers["x-request-id"]] == ("ok", 3)
    outcome, tokens = rows[answers["long"].headers["x-request-id"]]
    assert outcome == "shutting_down"
    assert tokens >= len(answers["long"].events()) - 2


async def test_a_second_sigterm_ends_it_at_once_and_says_what_was_cut(home: House):
    engine = home.engine(decode_rate=10)
    gateway = home.gateway(config_of({"a": engine.url}, server="balancer_pause = 0\nshutdown_grace = 60"))
    clients = Clients(gateway, gateway.make_key())
    async with trio.open_nursery() as nursery:
        for name in ("one", "other"):
            nursery.start_soon(clients.ask, chat(name, stream=True, max_tokens=1000))
        await trio.to_thread.run_sync(wait_until, lambda: engine.state()["running"] == 2)
        gateway.process.signal(signal.SIGTERM)
        await trio.to_thread.run_sync(gateway.process.said, '"stopping"')
        gateway.process.signal(signal.SIGTERM)
        assert await trio.to_thread.run_sync(gateway.process.wait, 3) == 1
    last = json.loads(gateway.process.lines[-1])
    assert (last["event"], last["requests_cut"]) == ("ended at once: asked to stop a second time", 2)


async def test_it_ends_at_once_when_idle_clients_hold_connections(home: House):
    gateway = home.gateway(config_of({"a": home.engine().url}))
    async with await trio.open_tcp_stream(*gateway.address) as idle:
        await idle.send_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await idle.receive_some()).startswith(b"HTTP/1.1 200")
        gateway.process.signal(signal.SIGTERM)
        assert await trio.to_thread.run_sync(gateway.process.wait, 3) == 0
        assert await idle.receive_some() == b""


async def test_every_request_has_its_usage_row_after_the_stop(home: House):
    gateway = home.gateway(config_of({"a": home.engine(decode_rate=1000).url}))
    clients = Clients(gateway, gateway.make_key())
    answers = await clients.ask_all([chat(f"q{n}", stream=bool(n % 2), max_tokens=4) for n in range(100)])
    gateway.process.signal(signal.SIGTERM)
    assert gateway.process.wait() == 0
    asked = {answer.headers["x-request-id"] for answer in answers if answer}
    rows = usage_rows(gateway)
    assert len(asked) == len(rows) == 100
    assert {id for id, _, _ in rows} == asked
    assert {tokens for _, _, tokens in rows} == {4}
    text = "\n".join(gateway.process.lines)
    assert clients.key not in text
    assert "q42" not in text


def test_a_second_gateway_on_the_same_data_exits_3_and_the_first_serves_on(home: House):
    gateway = home.gateway(config_of({"a": home.engine().url}))
    second = home.running("server", "-c", str(gateway.config), "--data-dir", str(gateway.data_dir))
    assert second.wait() == 3
    assert str(gateway.pid) in "\n".join(second.lines)
    assert client_ready(gateway) == 200


@pytest.mark.parametrize(
    ("config", "said"), [("[server]\nlisten = 7\n", "server.listen"), ("[relays]\n", "relay"), ("x = ", "TOML")]
)
def test_a_bad_config_exits_2_and_says_where(home: House, config: str, said: str):
    process = home.running("server", "-c", str(home.write("bad.toml", config)), "--data-dir", str(home.folder / "d"))
    assert process.wait() == 2
    assert "bad.toml" in process.lines[0]
    assert said in process.lines[0]
    assert not (home.folder / "d").exists()


@pytest.mark.parametrize(("used", "free"), [("server", "admin"), ("admin", "server")])
def test_an_address_in_use_exits_1_and_is_named_with_its_setting(home: House, tmp_path: Path, used: str, free: str):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = f'[{used}]\nlisten = "127.0.0.1:{port}"\n[{free}]\nlisten = "127.0.0.1:0"\n'
        process = home.running("server", "-c", str(home.write("c.toml", config)), "--data-dir", str(tmp_path / "d"))
        assert process.wait() == 1
    assert f"{used}.listen = 127.0.0.1:{port}: Address already in use; " in process.lines[-1]


def test_a_key_is_honoured_and_refused_within_a_second_of_the_change(home: House):
    gateway = home.gateway(config_of({"a": home.engine().url}))
    made = gateway.ctl("keys", "create", "--tenant", "acme", "--new-tenant")
    with httpx.Client(trust_env=False, headers={"authorization": f"Bearer {made['key']}"}) as client:

        def status() -> int:
            return client.get(f"{gateway.url}/v1/models").status_code

        wait_until(lambda: status() == 200, within_s=1)
        gateway.ctl("keys", "revoke", made["record"]["id"])
        wait_until(lambda: status() == 401, within_s=1)
    assert "acme" in gateway.ctl_says("keys", "create", "--tenant", "acne", code=1)


def test_a_gateway_that_was_killed_starts_again_with_its_keys_and_its_rows(home: House):
    config = config_of({"a": home.engine(decode_rate=1000).url})
    killed = home.gateway(config)
    headers = {"authorization": f"Bearer {killed.make_key()}"}
    asked = {"headers": headers, "json": chat(max_tokens=4), "trust_env": False}
    assert httpx.post(f"{killed.url}/v1/chat/completions", **asked).status_code == 200
    wait_until(lambda: len(usage_rows(killed)) == 1, within_s=2)
    killed.process.signal(signal.SIGKILL)
    killed.process.wait()
    again = home.gateway(config)
    assert httpx.post(f"{again.url}/v1/chat/completions", **asked).status_code == 200
    wait_until(lambda: len(usage_rows(again)) == 2, within_s=2)


async def test_who_waits_when_the_grace_ends_is_answered_and_who_is_cut_is_counted(home: House):
    engine = home.engine(decode_rate=10, slots=1)
    config = config_of({"a": engine.url}, server="balancer_pause = 0\nshutdown_grace = 2")
    gateway = home.gateway(config.replace('engine = "sim"', 'engine = "sim"\ncapacity = 1'))
    clients, answers = Clients(gateway, gateway.make_key()), list[Answer]()

    async def ask() -> None:
        answers.append(await clients.ask(chat(max_tokens=1000)))

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(ask)
        await trio.to_thread.run_sync(wait_until, lambda: gateway.ctl("status")["waiting"] == 3)
        gateway.process.signal(signal.SIGTERM)
    assert await trio.to_thread.run_sync(gateway.process.wait, 10) == 0
    told = [answer for answer in answers if answer.status == 503]
    assert len(told) == 3
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in told)
    (line,) = [line for line in gateway.log() if line["event"] == "requests were cut off at the end of their grace"]
    assert line["count"] == 1
