"""ctl against the real admin app, store, keys and tokens: the two sides say the same words."""

import json
import re
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result

from llmgw.admin.app import make_app
from llmgw.admin.serve import admin_socket, serve_admin
from llmgw.admin.services import AdminServices, Applied, AppSettings, LeaderServices
from llmgw.cli import main
from llmgw.control.keys import Keys
from llmgw.control.tokens import Tokens
from llmgw.core.explain import Considered, Explanation, Fact
from llmgw.core.identity import Declined, Operator
from llmgw.gateway.record import Record
from llmgw.gateway.shadow import Tally
from llmgw.gateway.views import as_json
from llmgw.store.opening import opened
from llmgw.store.place import Place
from llmgw.store.sqlite import SqliteStore
from tests.clusters import plane

RECORD = Record("req-1", 1.0, "chat", "ok", 200, 1.25, "acme", asked="llama", model="llama", endpoint="a")
RUNNING = {"id": "req-9", "tenant": "acme", "model": "llama", "phase": "streaming", "endpoint": "a", "age_s": 3.5}
EXPLAINED = Explanation("request req-1", "answered", (Fact("it waited", 2.0),), (Considered("a", True),))
POOL = {
    "model": "meta/llama",
    "mode": "on",
    "saturation": 0.955,
    "why": "",
    "waiting": 3,
    "usable": 1,
    "bands": [
        {"band": "platinum", "ceiling": 2.0, "floor": 0.0, "ttl_s": 30.0, "waiting": 0, "at_once": True},
        {"band": "gold", "ceiling": 0.9, "floor": 0.05, "ttl_s": 60.0, "waiting": 3, "at_once": False},
    ],
    "endpoints": [
        {
            "id": "a", "usable": True, "why": "", "saturation": 0.955, "decides": "load",
            "parts": {"load": 0.955, "queue": 0.2, "kv": 0.1}, "in_flight": 30, "granted": 1, "max_in_flight": None,
            "others": 2, "may_run": 32, "capacity": 32, "capacity_how": "given in the config", "running": 30,
            "waiting": 0, "kv": 0.08, "sample_age_s": 0.2, "sample_why": "", "busy_for_s": None,
        }
    ],
}  # fmt: skip
TENANT = {
    "tenant": "acme", "waiting": 3, "oldest_s": 7.5, "bytes": 300,
    "served": 4, "wait_mean_s": 2.0, "wait_longest_s": 5.5, "refused": {"too_late": 2},
}  # fmt: skip
QUEUE = {**TENANT, "model": "meta/llama", "band": "gold", "tenants": [TENANT]}


def shadows() -> dict[tuple[str, str], Tally]:
    """Platinum that stood behind a tenant's bronze, and the bronze."""
    people, batch = Tally(requests=3), Tally(requests=50)
    for _ in range(3):
        people.waits.observe(0.0)
        people.behind.observe(12.0)
    people.alone.observe(0.2)
    people.blamed["bronze/night"] = 36  # type: ignore[assignment]
    batch.waits.observe(40.0)
    batch.would["504"] = 7
    return {("platinum", "people"): people, ("bronze", "night"): batch}


LED = {
    "leads": True,
    "acts": True,
    "store_away_s": 0.0,
    "leader": {
        "who": "gw-1",
        "addresses": {"name": "gw-1", "client": "http://gw-1:7440", "admin": "http://gw-1:7442", "agents": "gw-1:7443"},
        "here": True,
        "state": "leading",
        "term": "1.7",
        "since_s": 61.0,
        "margin_s": 7.4,
        "renewals": 30,
        "ready": True,
    },
    "alone": False,
    "standbys": [
        {"name": "gw-2", "addresses": {}, "heard_s": 1.0, "silent": False},
        {"name": "gw-3", "addresses": {}, "heard_s": 75.0, "silent": True},
    ],
}


class Gateway:
    """An admin listener over a real store, in a thread of its own."""

    def __init__(self, data_dir: Path) -> None:
        self.place = Place(data_dir, data_dir / "llmgw.db")
        self.ready = threading.Event()
        self.keys: Keys
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        trio.run(self.serve)

    async def serve(self) -> None:
        self.token, self.stop = trio.lowlevel.current_trio_token(), trio.Event()
        async with opened(self.place) as store, trio.open_nursery() as nursery:
            sock = admin_socket("127.0.0.1:0")
            store.advertise(f"http://127.0.0.1:{sock.getsockname()[1]}")
            services = await self.services(store)
            nursery.start_soon(partial(serve_admin, make_app(services, AppSettings("127.0.0.1")), sock))
            self.ready.set()
            await self.stop.wait()
            nursery.cancel_scope.cancel()

    async def services(self, store: SqliteStore) -> AdminServices:
        self.keys, tokens = await Keys.load(store), await Tokens.load(store)
        await tokens.first_start(self.place.admin_token)

        async def apply(text: str, by: Operator, file: str, why: str, dry: bool) -> Applied:
            return Applied(2, ("model m added",)) if "m" in text else Applied(problems=("it has no model",))

        return AdminServices(
            keys=self.keys,
            tokens=tokens,
            store=store,
            metrics_text=lambda: (b"",),
            ready=lambda model: None,
            model_names=lambda: frozenset({"llama", "qwen"}),
            models=lambda: [{"name": "llama", "aliases": ["gpt-4o"], "fallback": [{"model": "qwen", "on": ["5xx"]}]}],
            traffic=lambda: (0.0, iter(())),
            endpoints=lambda: [
                {"id": "a", "model": "llama", "state": "usable", "adapters": []},
                {"id": "b", "model": "qwen", "state": "usable", "adapters": ["sql"]},
            ],
            pools=lambda model: iter([POOL]) if model in ("", "meta/llama") else None,
            queues=lambda model: iter([[QUEUE]]) if model in ("", "meta/llama") else None,
            seats=lambda: [{"band": "gold", "waiting": 3, "seats_max": 10, "bytes": 300, "bytes_max": 1000}],
            shadow=lambda: ("shadow", [("meta/llama", *who, tally.as_json()) for who, tally in shadows().items()]),
            requests=lambda wanted: [as_json(RECORD)] if not wanted["failed"] else [],
            request=lambda id: as_json(RECORD) if id == "req-1" else None,
            running=lambda model, endpoint, limit: [RUNNING] if model in ("", RUNNING["model"]) else [],
            cancel=lambda id, by, why: id == RUNNING["id"],
            explain_request=lambda id: EXPLAINED if id == "req-1" else None,
            explain_queue=lambda model: EXPLAINED if model == "meta/llama" else None,
            status=lambda: {"version": "0.1.0", "ready": True},
            config=dict,
            apply=apply,
            now=time.time,
            cluster=(await plane(store)).services(),
            leadership=LeaderServices(lambda: None, self.refresh, lambda: LED, lambda: EXPLAINED, self.resign),
        )

    async def refresh(self) -> float:
        return 0.0

    async def resign(self, by: Operator, why: str) -> dict[str, Any] | Declined:
        if not why:
            return Declined("alone", "nobody else could lead: the store is SQLite", "two need one PostgreSQL")
        return {"resigned": "1.7", "stays_out_s": 10.0, "stand_by": [] if why == "alone" else ["gw-2"]}


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    for name in ("LLMGW_ADMIN_URL", "LLMGW_ADMIN_TOKEN", "LLMGW_CONFIG", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    gateway = Gateway(tmp_path / "data")
    gateway.thread.start()
    assert gateway.ready.wait(10)
    yield gateway
    gateway.token.run_sync_soon(gateway.stop.set)
    gateway.thread.join(10)


def ctl(gateway: Gateway, *words: str, stdin: str | None = None) -> Result:
    words = ("ctl", "--data-dir", str(gateway.place.data_dir), *words)
    return CliRunner().invoke(main, words, env={"LLMGW_DEBUG": "1"}, input=stdin)


def test_a_key_made_and_revoked_by_ctl_counts_in_the_gateway_at_once(gateway):
    made = ctl(gateway, "keys", "create", "--tenant", "acme", "--new-tenant", "--model", "llama", "--why", "trial")
    assert made.exit_code == 0, made.stderr
    key = made.stdout.strip()
    assert gateway.keys.ring.find(key, time.time())

    assert "acme" in ctl(gateway, "keys", "list").stdout
    assert "acme" in ctl(gateway, "tenants").stdout
    revoked = ctl(gateway, "keys", "revoke", key, "--why", "over")
    assert revoked.exit_code == 0, revoked.stderr
    assert gateway.keys.ring.find(key, time.time()) is None
    acts = json.loads(ctl(gateway, "audit", "-o", "json").stdout)["audit"]
    assert [(a["what"], a["why"]) for a in acts[:2]] == [("keys.revoke", "over"), ("keys.create", "trial")]


def test_refusals_come_through_with_their_hints(gateway):
    ctl(gateway, "keys", "create", "--tenant", "research", "--new-tenant")

    tenant = ctl(gateway, "keys", "create", "--tenant", "reserch")
    model = ctl(gateway, "keys", "create", "--tenant", "research", "--model", "lama")
    nobody = ctl(gateway, "keys", "revoke", "key_nobody")

    assert (tenant.exit_code, "did you mean 'research'?" in tenant.stderr) == (1, True)
    assert (model.exit_code, "did you mean 'llama'?" in model.stderr) == (1, True)
    assert nobody.exit_code == 4


def test_keys_are_brought_along_through_the_gateway(gateway):
    line = '{"key": "sk-from-elsewhere", "tenant": "acme", "band": "silver"}'

    done = ctl(gateway, "keys", "import", "-", stdin=line)
    again = ctl(gateway, "keys", "import", "-", stdin=line)

    assert done.stdout == "1 key imported; new tenants: acme\n"
    assert gateway.keys.ring.find("sk-from-elsewhere", time.time())
    assert (again.exit_code, "is here already" in again.stderr) == (1, True)


def test_a_token_does_what_its_role_may(gateway):
    token = ctl(gateway, "tokens", "create", "grafana", "--role", "viewer").stdout.strip()

    assert ctl(gateway, "--token", token, "keys", "list").exit_code == 0
    refused = ctl(gateway, "--token", token, "keys", "create", "--tenant", "acme", "--new-tenant")
    assert (refused.exit_code, "grafana is viewer" in refused.stderr) == (1, True)
    assert ctl(gateway, "tokens", "revoke", "grafana").exit_code == 0
    assert ctl(gateway, "--token", token, "keys", "list").exit_code == 1
    assert "first-start" in ctl(gateway, "tokens", "list").stdout


def test_what_is_known_is_shown(gateway):
    assert "qwen" in ctl(gateway, "models").stdout
    assert "usable" in ctl(gateway, "endpoints").stdout
    assert "req-1" in ctl(gateway, "requests").stdout
    assert "req-1" not in ctl(gateway, "requests", "--failed").stdout
    assert "0.1.0" in ctl(gateway, "status").stdout
    explained = ctl(gateway, "explain", "request", "req-1", "--record")
    assert "it waited (2.0 s ago)" in explained.stdout
    assert "total_s" in explained.stdout
    assert ctl(gateway, "explain", "request", "req-2").exit_code == 4


@pytest.mark.parametrize(("model", "ids"), [("llama", "a"), ("gpt-4o", "a"), ("sql", "b"), ("qwen", "b")])
def test_endpoints_are_those_of_the_model_by_any_of_its_names(gateway, model, ids):
    found = json.loads(ctl(gateway, "endpoints", "--model", model, "-o", "json").stdout)["endpoints"]

    assert [e["id"] for e in found] == [ids]


def test_endpoints_of_a_model_that_is_none_are_not_found_and_the_nearest_is_named(gateway):
    asked = ctl(gateway, "endpoints", "--model", "lama")

    assert (asked.exit_code, asked.stdout) == (4, "")
    assert "no model 'lama' is configured; did you mean 'llama'?" in asked.stderr


def test_that_no_request_matches_is_said_beside_the_empty_table(gateway):
    none, some = ctl(gateway, "requests", "--failed"), ctl(gateway, "requests")
    program = ctl(gateway, "requests", "--failed", "-o", "json")

    assert (none.exit_code, none.stderr) == (0, "none of the requests that are remembered match\n")
    assert (some.exit_code, some.stderr) == (0, "")
    assert (json.loads(program.stdout), program.stderr) == ({"requests": []}, "")


def test_the_report_of_the_shadow_names_the_culprit(gateway):
    said = ctl(gateway, "admission", "report", "--since", "1h")
    assert said.exit_code == 0, said.stderr
    assert (
        "platinum waited behind bronze of tenant night: its first token took up to 15 s (p99) then, and 0.2 s"
        in said.stdout
    )
    assert "others waited 36 s behind bronze of tenant night" in said.stdout
    (pool,) = json.loads(ctl(gateway, "admission", "report", "-o", "json").stdout)["pools"]
    assert [band["band"] for band in pool["bands"]] == ["platinum", "bronze"]
    assert pool["bands"][1]["would_504"] == 7

    assert ctl(gateway, "admission", "report", "--since", "soon").exit_code == 2
    assert ctl(gateway, "admission", "report", "nope").exit_code == 4


def test_a_config_is_applied_or_refused(gateway, tmp_path):
    (tmp_path / "good.toml").write_text("m")
    (tmp_path / "bad.toml").write_text("")

    good, bad = ctl(gateway, "apply", str(tmp_path / "good.toml")), ctl(gateway, "apply", str(tmp_path / "bad.toml"))

    assert good.stdout == "revision 2: 1 change\n  - model m added\n"
    assert bad.exit_code == 2
    assert bad.stderr.endswith("it has no model\n")


def test_a_wrong_token_is_told_where_the_right_one_lies(gateway):
    asked = ctl(gateway, "--token", "nonsense", "status")

    assert asked.exit_code == 1
    assert "admin.token" in asked.stderr


def test_requests_that_run_are_listed_and_one_is_ended(gateway: Gateway):
    listed = ctl(gateway, "requests", "--running", "-o", "json")
    assert json.loads(listed.stdout)["requests"] == [RUNNING]
    assert "streaming" in ctl(gateway, "requests", "--running").stdout
    assert ctl(gateway, "cancel", "req-9", "-m", "runs wild").stdout == "req-9 is ended\n"
    gone = ctl(gateway, "cancel", "req-8")
    assert (gone.exit_code, "no request 'req-8' runs" in gone.stderr) == (4, True)
    assert ctl(gateway, "requests", "--running", "--slow").exit_code == 2
    acts = json.loads(ctl(gateway, "audit", "-o", "json").stdout)["audit"]
    assert (acts[0]["what"], acts[0]["subject"], acts[0]["why"]) == ("requests.cancel", "req-9", "runs wild")


def test_who_leads_is_shown_and_may_be_asked_to_hand_over(gateway: Gateway):
    shown = ctl(gateway, "leader")
    assert shown.exit_code == 0, shown.output
    for words in ("gw-1 (asked here)", "1.7", "7.4 s", "30", "http://gw-1:7442", "gw-1:7443"):
        assert words in shown.stdout
    assert json.loads(ctl(gateway, "leader", "-o", "json").stdout)["leader"]["term"] == "1.7"
    assert "answered" in ctl(gateway, "explain", "leader").stdout

    alone = ctl(gateway, "leader", "resign")
    assert (alone.exit_code, "two need one PostgreSQL" in alone.output) == (1, True)
    handed = ctl(gateway, "leader", "resign", "-m", "upgrade")
    assert handed.exit_code == 0
    out = "that control plane stays out until another one has led, at most 10 s"
    assert f"term 1.7 is given back; {out}" in handed.stdout
    assert "warning" not in handed.stderr
    assert "nobody else was seen to stand by" in ctl(gateway, "leader", "resign", "-m", "alone").stderr


def test_it_is_told_who_stands_by(gateway: Gateway, monkeypatch: pytest.MonkeyPatch):
    assert re.search(r"stands by +gw-2, gw-3 \(not heard for 75.0 s\)", ctl(gateway, "leader").stdout)
    for told, says in (([], "nobody"), (None, "not known: the store was not read lately")):
        monkeypatch.setitem(LED, "standbys", told)
        assert re.search(rf"stands by +{says}", ctl(gateway, "leader").stdout)
    monkeypatch.setitem(LED, "alone", True)
    assert re.search(r"stands by +nobody could \(SQLite\)", ctl(gateway, "leader").stdout)


def test_without_a_leader_the_exit_code_says_so(gateway: Gateway, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(LED["leader"], "ready", False)  # type: ignore[call-overload]
    assert "leading, without an engine that serves" in ctl(gateway, "leader").stdout
    for state in ("run out", "released"):  # with the lease the leader's word about its engines is gone
        monkeypatch.setitem(LED["leader"], "state", state)  # type: ignore[call-overload]
        nobody = ctl(gateway, "leader")
        assert (nobody.exit_code, "engine" in nobody.stdout) == (75, False)
    monkeypatch.setitem(LED, "leader", None)
    nobody = ctl(gateway, "leader")
    assert (nobody.exit_code, "llmgw ctl explain leader" in nobody.output) == (75, True)
