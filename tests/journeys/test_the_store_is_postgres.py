"""A gateway whose store is PostgreSQL: moved there from SQLite, and serving while the database is away."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from attrs import define, field

from tests.journeys.running import Gateway, House, clean_environment, config_of, values, wait_until
from tests.journeys.talking import chat
from tests.postgres_server import PASSWORD, Server, running

AWAY_S = 6.0


@pytest.fixture
def server() -> Iterator[Server]:
    try:
        with running(durable=True) as made:
            yield made
    except LookupError as error:
        pytest.skip(str(error))


def store_config(home: House, server: Server, database: str) -> str:
    secret = home.write("store.url", server.url(database, password=PASSWORD) + "\n")
    secret.chmod(0o600)
    return f'[store]\nurl = "@{secret}"\n'


def ask(gateway: Gateway, key: str, **more: object) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    url = f"{gateway.url}/v1/chat/completions"
    return httpx.post(url, json=chat(max_tokens=3, **more), headers=headers, trust_env=False, timeout=20)


def llmgw(*arguments: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "llmgw", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, env=clean_environment())
    assert ran.returncode == code, ran.stderr + ran.stdout
    return ran.stdout if code == 0 else ran.stderr


def end(gateway: Gateway) -> None:
    gateway.process.signal(signal.SIGTERM)
    assert gateway.process.wait() == 0


@pytest.mark.slow
def test_a_move_from_sqlite_keeps_every_key(home: House, server: Server):
    engine = home.engine(decode_rate=500)
    database = server.fresh()
    small, in_postgres = config_of({"e": engine.url}), store_config(home, server, database)
    old = home.gateway(small)
    key, revoked = old.make_key(), old.make_key(tenant="acme")
    ids = {entry["shown"]: entry["id"] for entry in old.ctl("keys", "list")["keys"]}
    assert ask(old, key).status_code == 200
    gone = next(id for shown, id in ids.items() if revoked.startswith(shown.split("…")[0]))
    old.ctl("keys", "revoke", gone)
    before = old.ctl("status")

    url = f"@{home.folder / 'store.url'}"
    assert "in use by process" in llmgw("store", "migrate", "--from", str(old.data_dir), "--to", url, code=3)
    end(old)
    llmgw("store", "migrate", "--from", str(old.data_dir), "--to", url)
    new = home.gateway(in_postgres + small)

    assert ask(new, key).status_code == 200
    assert ask(new, revoked).status_code == 401
    after = new.ctl("status")
    assert after["cluster_id"] == before["cluster_id"]
    assert term(after) > term(before)
    assert PASSWORD not in "".join(new.process.lines)
    another = new.make_key()
    assert ask(new, another).status_code == 200
    wait_until(lambda: server.sql("select count(*) from usage", database) == [(3,)])
    end(new)
    # While nothing runs, ctl works on the store itself.
    shown = llmgw("ctl", "--config", str(new.config), "keys", "list", "-o", "json")
    assert len(json.loads(shown)["keys"]) == 2
    assert server.sql("select n, epoch from leader_epoch", database) == [term(after)]


def term(status: dict[str, Any]) -> tuple[int, ...]:
    return tuple(map(int, status["term"].split(".")))


@define
class Traffic:
    """One request after another, in a few places, until told to end."""

    gateway: Gateway
    key: str
    codes: list[int] = field(factory=list)
    failed: list[str] = field(factory=list)
    _over: threading.Event = field(factory=threading.Event)

    def run(self) -> None:
        with httpx.Client(trust_env=False, timeout=20) as client:
            while not self._over.is_set():
                try:
                    answer = client.post(
                        f"{self.gateway.url}/v1/chat/completions",
                        json=chat(max_tokens=3),
                        headers={"authorization": f"Bearer {self.key}"},
                    )
                except httpx.HTTPError as error:
                    self.failed.append(repr(error))
                else:
                    self.codes.append(answer.status_code)

    def end(self, threads: list[threading.Thread]) -> None:
        self._over.set()
        for thread in threads:
            thread.join(30)


@pytest.mark.slow
@pytest.mark.parametrize("away_s", [AWAY_S, 60.0])
def test_while_the_database_is_away_no_request_fails_and_no_row_is_lost(home: House, server: Server, away_s: float):
    engine = home.engine(decode_rate=500)
    database = server.fresh()
    limits = "usage_queue_max = 1000\nusage_batch_max = 50\n"
    gateway = home.gateway(store_config(home, server, database) + limits + config_of({"e": engine.url}))
    traffic = Traffic(gateway, gateway.make_key())
    threads = [threading.Thread(target=traffic.run) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(traffic.codes) > 50)

    server.restart()
    time.sleep(1)
    server.stop("immediate")
    time.sleep(away_s)
    refused = gateway.admin("POST", "/admin/v1/keys", json={"tenant": "acme"})
    before = len(traffic.codes)
    wait_until(lambda: len(traffic.codes) > before + 20)
    server.start()
    wait_until(lambda: gateway.admin("POST", "/admin/v1/keys", json={"tenant": "acme"}).status_code == 201)
    traffic.end(threads)

    assert refused.status_code == 503, refused.text
    assert "away" in refused.text
    assert (set(traffic.codes), traffic.failed) == ({200}, [])
    assert values(gateway.metrics(), "llmgw_usage_rows_dropped_total") == [0]
    ask_rows = "select count(*), count(distinct request_id) from usage"
    wait_until(
        lambda: server.sql(ask_rows, database) == [(len(traffic.codes),) * 2],
        why=lambda: (server.sql(ask_rows, database), len(traffic.codes)),
    )
    assert not (gateway.data_dir / "usage.spool").exists()
    end(gateway)


def test_a_start_without_a_database_says_what_is_wrong_and_ends(home: House, tmp_path: Path):
    config = home.write("gw.toml", '[store]\nurl = "postgresql://u:hunter2@127.0.0.1:1/d"\n' + config_of({}))

    process = home.running("server", "-c", str(config), "--data-dir", str(tmp_path / "d"))

    assert process.wait() == 1
    assert "***@127.0.0.1:1/d is away" in "\n".join(process.lines)
    assert "hunter2" not in "\n".join(process.lines)
