"""What each route of the admin API says, asked as llmgw ctl asks."""

import json
import signal

import pytest
import trio
from attrs import evolve

from llmgw.admin import debugging
from llmgw.admin.applying import act_of
from llmgw.admin.debugging import sample
from llmgw.admin.services import Applied
from llmgw.admin.tasks import task_tree
from llmgw.core.identity import Role
from llmgw.store.errors import StoreUnavailable
from llmgw.telemetry.metrics import Metrics
from tests.admin.desk import ask


class Asking:
    def __init__(self, desk, role=Role.ADMIN, app=None):
        self.app, self.headers = app or desk.app(), desk.bearer(role)

    async def __call__(self, method, path, body=None, **query):
        data = {} if body is None else {"data": json.dumps(body).encode() if not isinstance(body, bytes) else body}
        answer = await ask(self.app, method, f"/admin/v1{path}", self.headers, query_string=query, **data)
        return answer.status_code, await answer.get_json()


@pytest.fixture
def admin(desk):
    return Asking(desk)


def code(answer):
    return answer[0], answer[1]["error"]["code"]


async def test_a_key_is_made_shown_once_listed_and_revoked(desk, admin):
    asked = {
        "tenant": "acme",
        "band": "silver",
        "models": ["llama"],
        "note": "for tests",
        "new_tenant": True,
        "why": "x",
    }

    status, made = await admin("POST", "/keys", asked)

    assert status == 201
    assert made["key"].startswith("sk-llmgw-")
    assert made["record"]["tenant"] == "acme"
    _, listed = await admin("GET", "/keys")
    assert listed == {"keys": [made["record"]]}
    assert made["key"] not in json.dumps(listed)
    assert [one["name"] for one in (await admin("GET", "/tenants"))[1]["tenants"]] == ["acme"]
    status, gone = await admin("DELETE", f"/keys/{made['record']['id']}", why="over")
    assert (status, gone["record"]["revoked_at"] is not None) == (200, True)
    acts = (await admin("GET", "/audit", limit=2))[1]["audit"]
    assert [(a["who"], a["what"], a["why"]) for a in acts] == [
        ("some-admin", "keys.revoke", "over"),
        ("some-admin", "keys.create", "x"),
    ]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"tenant": "acme", "band": "gold", "admin": True}, "unknown field 'admin'"),
        ({"tenant": "acme", "revoked_at": 0}, "unknown field 'revoked_at'"),
        ({"tenant": "acme", "new_tenant": "yes"}, "new_tenant must be true or false"),
        ({"tenant": "acme", "why": {}}, "why must be text"),
        ({"tenant": ["acme"]}, "tenant"),
        ({"tenant": "acme", "band": "diamond"}, "diamond"),
        ([], "must be a JSON object"),
        (b"{", "not JSON"),
        (b"", "not JSON"),
        (b'{"tenant": "\xff"}', "not JSON"),
        (b'{"note": ' + b"9" * 5_000 + b"}", "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"tenant": ' + b"[" * 2_000 + b"]" * 2_000 + b"}", "nested too deeply"),
        (b'{"tenant": "acme", "note": "", "tenant": "other"}', "'tenant' stands twice"),
        (b'{"tenant": {"a": 1, "b": 2, "\\u0061": 3}}', "'a' stands twice"),
        (b'{"note": "' + b"x" * 100_000 + b'", "why": "", "why": ""}', "'why' stands twice"),
    ],
)
async def test_a_body_that_is_wrong_is_told_why(admin, body, says):
    status, answer = await admin("POST", "/keys", body)

    assert status == 400
    assert says in answer["error"]["message"]


async def test_refusals_keep_their_codes(admin):
    await admin("POST", "/keys", {"tenant": "research", "new_tenant": True})

    assert code(await admin("POST", "/keys", {"tenant": "reserch"})) == (400, "unknown_tenant")
    assert code(await admin("POST", "/keys", {"tenant": "research", "models": ["lama"]})) == (400, "unknown_model")
    assert code(await admin("DELETE", "/keys/key_nobody")) == (404, "not_found")
    assert code(await admin("DELETE", "/tokens/nobody")) == (404, "not_found")
    assert code(await admin("DELETE", "/tokens/some-admin")) == (400, "last_admin")
    assert code(await admin("POST", "/tokens", {"name": "some-viewer", "role": "viewer"})) == (409, "duplicate")
    assert code(await admin("POST", "/tokens", {"name": "new", "role": "root"})) == (400, "field")


async def test_keys_come_from_elsewhere_all_or_none(admin):
    entries = [{"key": f"sk-elsewhere-{n}", "tenant": "acme"} for n in range(450)]

    bad = await admin("POST", "/keys/import", {"entries": [*entries, {"key": "sk-elsewhere-x", "tenant": ""}]})
    none = (await admin("GET", "/keys"))[1]["keys"]
    good = await admin("POST", "/keys/import", {"entries": entries})

    assert (bad[0], "entry 451" in bad[1]["error"]["message"], none) == (400, True, [])
    assert (good[0], len(good[1]["records"]), good[1]["new_tenants"]) == (201, 450, ["acme"])
    assert len((await admin("GET", "/keys"))[1]["keys"]) == 450
    assert (await admin("POST", "/keys/import", {"entries": "sk-x"}))[0] == 400


async def test_a_token_is_made_and_works_with_its_role(desk, admin):
    status, made = await admin("POST", "/tokens", {"name": "grafana", "role": "viewer"})

    assert status == 201
    asking = Asking(desk)
    asking.headers = {"Authorization": f"Bearer {made['token']}"}
    assert (await asking("GET", "/status"))[0] == 200
    assert made["token"] not in json.dumps((await admin("GET", "/tokens"))[1])
    assert (await admin("DELETE", "/tokens/grafana"))[0] == 200
    assert (await asking("GET", "/status"))[0] == 401


async def test_what_the_process_knows_is_passed_on(admin):
    assert await admin("GET", "/models") == (200, {"models": [{"name": "llama"}]})
    assert await admin("GET", "/endpoints") == (200, {"endpoints": [{"id": "a"}]})
    assert await admin("GET", "/status") == (200, {"ready": True})
    assert await admin("GET", "/config") == (200, {"admin": {"metrics_token": "***"}})
    assert (await admin("GET", "/requests/req-1"))[1] == {"request": {"id": "req-1"}}
    assert code(await admin("GET", "/requests/req-2")) == (404, "not_found")
    assert code(await admin("GET", "/requests/req-2/explanation")) == (404, "not_found")


async def test_an_explanation_is_whole(admin):
    _, explained = await admin("GET", "/requests/req-1/explanation")

    assert explained["because"] == [{"text": "it was free", "age_s": 2.0}]
    assert explained["candidates"] == [
        {"name": "a", "chosen": True, "reasons": [], "scores": {"load": 0.5}},
        {"name": "b", "chosen": False, "reasons": ["breaker: open"], "scores": {}},
    ]
    assert explained["would_change_it"] == ["b recovers"]
    assert explained["next_command"] == "llmgw ctl endpoints"
    assert explained["sentence"] == "request req-1: answered by a, because it was free (2.0 s ago)"


async def test_requests_are_asked_for_with_what_was_wanted(desk, admin):
    await admin("GET", "/requests", slow="1", failed="true", tenant="acme", model="llama", limit="7")
    await admin("GET", "/requests")

    assert desk.asked == [
        {"slow": True, "failed": True, "tenant": "acme", "model": "llama", "limit": 7},
        {"slow": False, "failed": False, "tenant": "", "model": "", "limit": 50},
    ]


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "x", "", "²", "1e3", "9" * 5000])
async def test_a_limit_is_a_small_whole_number(admin, limit):
    assert code(await admin("GET", "/requests", limit=limit)) == (400, "query")


@pytest.mark.parametrize("since", ["yesterday", "nan", "inf", ""])
async def test_since_is_a_moment(admin, since):
    assert code(await admin("GET", "/accounts", since=since)) == (400, "query")


async def test_accounts_are_read_from_the_store(admin):
    assert await admin("GET", "/accounts", since="1000") == (200, {"accounts": []})


async def test_a_config_that_is_applied_is_audited_with_its_changes(admin):
    assert await admin("POST", "/apply", {"toml": "m", "why": "growth"}) == (
        200,
        {"revision": 7, "changes": ["model m added"], "replaces": [], "may_stop": [], "stays": [], "warnings": []},
    )

    act = (await admin("GET", "/audit", limit=1))[1]["audit"][0]
    assert (act["who"], act["role"], act["what"], act["why"]) == ("some-admin", "admin", "config.apply", "growth")
    assert act["after"] == {"revision": 7, "changes": ["model m added"]}


async def test_a_config_that_is_refused_says_every_problem_to_the_operator_and_to_the_audit(admin):
    status, answer = await admin("POST", "/apply", {"toml": "", "file": "new.toml", "why": "growth"})

    assert status == 422
    assert answer["error"]["problems"] == ["new.toml:models: there are none"]
    [act] = (await admin("GET", "/audit", limit=1))[1]["audit"]
    assert (act["who"], act["what"], act["subject"], act["why"]) == ("some-admin", "config.apply", "refused", "growth")
    assert act["after"] == {"problems": ["new.toml:models: there are none"]}
    assert code(await admin("POST", "/apply", {})) == (400, "field")


async def test_a_config_that_changes_nothing_is_audited_as_that(admin):
    assert await admin("POST", "/apply", {"toml": "same"}) == (
        200,
        {"revision": 7, "changes": [], "replaces": [], "may_stop": [], "stays": [], "warnings": []},
    )

    assert (await admin("GET", "/audit", limit=1))[1]["audit"][0]["subject"] == "nothing changed"


def test_the_audit_keeps_the_first_of_very_many_problems():
    act = act_of(Applied(problems=tuple(f"p{n}" for n in range(1000))), 0.0, "joe", "admin", "config.apply")

    assert act.after["problems"][-2:] == ["p49", "and 950 more"]


async def test_a_store_that_is_away_is_said_so_and_what_was_applied_stands(desk):
    class Away:
        async def read(self, _question):
            raise StoreUnavailable("the disk is full")

        write = read

    asking = Asking(desk, app=desk.app(evolve(desk.services(), store=Away())))

    assert code(await asking("GET", "/audit")) == (503, "store_unavailable")
    assert (await asking("POST", "/apply", {"toml": "m"}))[0] == 200
    assert "unaudited: the disk is full" in desk.reported[0][0]


async def test_a_failure_is_reported_and_tells_no_secret(desk, admin):
    status, answer = await admin("POST", "/apply", {"toml": "boom"})

    assert (status, answer["error"]["code"]) == (500, "internal")
    assert "secret" not in json.dumps(answer)
    what, request_id, error = desk.reported[0]
    assert what == "the admin API failed at POST '/admin/v1/apply'"
    assert answer["error"]["hint"] == f"see the log: {request_id}"
    assert isinstance(error, RuntimeError)


async def test_quarts_own_answers_are_json_too(desk, admin):
    assert code(await admin("GET", "/nowhere")) == (404, "not_found")
    assert code(await admin("GET", "//keys")) == (404, "not_found")
    put = await ask(desk.app(), "PUT", "/admin/v1/keys", desk.bearer(Role.ADMIN))
    assert (put.status_code, put.headers["Allow"]) == (
        405,
        "DELETE, GET, HEAD, OPTIONS, POST",
    ) or put.status_code == 405
    assert (await put.get_json())["error"]["code"] == "method_not_allowed"
    assert code(await admin("POST", "/apply", b'"' + b"x" * 8_400_000 + b'"')) == (413, "request_entity_too_large")


@pytest.mark.parametrize("path", ["/nowhere", "/admin/v1/nowhere", "/v1/models"])
async def test_a_path_that_is_none_is_told_where_the_api_is(desk, path):
    answer = await ask(desk.app(), "GET", path, desk.bearer(Role.VIEWER))
    error = (await answer.get_json())["error"]

    assert (answer.status_code, error["code"]) == (404, "not_found")
    assert error["message"] == f"the admin API has no {path!r}"
    assert "/admin/v1/status" in error["hint"]


async def test_health_and_readiness(desk):
    app = desk.app()
    assert (await ask(app, "GET", "/health")).status_code == 200
    assert (await ask(app, "GET", "/ready")).status_code == 200

    desk.not_ready = "no endpoint is usable"
    answer = await ask(app, "GET", "/ready")

    assert answer.status_code == 503
    assert await answer.get_json() == {"status": "not ready", "reason": "no endpoint is usable"}
    assert (await ask(app, "GET", "/health")).status_code == 200


async def test_metrics_are_whole_and_the_loop_runs_while_they_are_made(desk):
    metrics = Metrics()
    for number in range(200):
        metrics.requests(f"tenant-{number}", "m").ended("ok", 200, 1, 0.1, 1, 1, 0)
    app = desk.app(evolve(desk.services(), metrics_text=metrics.pieces))
    turns = 0

    async def another_task():
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(another_task)
        turns = 0
        answer = await ask(app, "GET", "/metrics")
        nursery.cancel_scope.cancel()

    assert answer.content_type.startswith("text/plain; version=0.0.4")
    assert (await answer.get_data()).count(b"llmgw_requests_total{") == 200
    assert turns > 25


# -- looking inside ----------------------------------------------------------------------------------


async def waiting_for_nothing():
    with trio.move_on_after(1234), trio.CancelScope(shield=True) as scope:
        scope.shield = True
        await trio.sleep_forever()


async def test_the_task_tree_shows_who_waits_where_until_when(desk):
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(waiting_for_nothing, name="a waiter")
        await trio.testing.wait_all_tasks_blocked()
        answer = await ask(desk.app(), "GET", "/debug/tasks", desk.bearer(Role.ADMIN))
        text = await answer.get_data(as_text=True)
        nursery.cancel_scope.shield = False
        for task in nursery.child_tasks:
            task._cancel_status._scope.cancel()  # the shielded one

    line = next(line for line in text.splitlines() if "a waiter" in line)
    assert "test_admin_api.py:" in line
    assert "waiting_for_nothing" in line
    assert "shielded" in line
    assert "deadline in 123" in line
    assert line.endswith("(3 alike)")


async def test_the_task_tree_tells_why_a_scope_was_cancelled():
    lines = []

    async def leaving():
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                lines.extend(await task_tree())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(leaving)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel(reason="the reason of this test")

    assert any("cancelled: the reason of this test" in line for line in lines)


async def test_a_large_tree_is_cut(monkeypatch):
    monkeypatch.setattr("llmgw.admin.tasks.LINES_MAX", 5)
    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(trio.sleep_forever, name=f"task {number}")
        lines = await task_tree()
        nursery.cancel_scope.cancel()

    assert len(lines) <= 6
    assert lines[-1] == "… and more"


async def busy_with_a_very_secret_key():
    secret_value = "sk-llmgw-never-shown"
    while True:
        sum(len(secret_value) for _ in range(2000))
        await trio.lowlevel.checkpoint()


async def test_a_profile_names_functions_and_lines_and_no_values(desk):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(busy_with_a_very_secret_key)
        answer = await ask(desk.app(), "GET", "/debug/profile?seconds=0.1", desk.bearer(Role.ADMIN))
        text = await answer.get_data(as_text=True)
        nursery.cancel_scope.cancel()

    assert answer.status_code == 200
    assert "test_admin_api.py:busy_with_a_very_secret_key:" in text
    assert "sk-llmgw" not in text
    assert all(line.rpartition(" ")[2].isdigit() for line in text.splitlines())


async def test_one_profile_at_a_time(desk):
    app, answers = desk.app(), []

    async def profile():
        answer = await ask(app, "GET", "/debug/profile?seconds=0.1", desk.bearer(Role.ADMIN))
        answers.append(answer.status_code)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(profile)
        nursery.start_soon(profile)

    assert sorted(answers) == [200, 409]


@pytest.mark.parametrize("seconds", ["0", "-1", "61", "nan", "inf", "x"])
async def test_a_profile_takes_no_longer_than_allowed(desk, seconds):
    answer = await ask(desk.app(), "GET", f"/debug/profile?seconds={seconds}", desk.bearer(Role.ADMIN))

    assert answer.status_code == 400


async def test_a_profile_of_ever_new_stacks_is_bounded(monkeypatch):
    monkeypatch.setattr(debugging, "STACKS_MAX", 1)
    monkeypatch.setattr(debugging, "INTERVAL_S", 0.001)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(busy_with_a_very_secret_key)
        stacks = await sample(0.1)
        nursery.cancel_scope.cancel()

    assert set(stacks) - {"(others)"}
    assert len(stacks) == 2


async def test_a_profile_sees_most_of_what_a_busy_loop_does_and_leaves_nothing_behind():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(busy_with_a_very_secret_key)
        stacks = await sample(0.2)
        nursery.cancel_scope.cancel()

    assert sum(stacks.values()) > 10
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_IGN
