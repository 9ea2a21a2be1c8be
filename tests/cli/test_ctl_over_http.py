"""ctl through the admin API: a small real server that says what it was asked."""

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from llmgw.cli import main
from llmgw.cli.ctl.contexts import Contexts
from llmgw.core.identity import digest

KEY = {
    "id": "key_1",
    "shown": "sk-llmgw-abc…",
    "tenant": "acme",
    "band": "gold",
    "models": [],
    "created_at": 1.0,
    "expires_at": None,
    "revoked_at": None,
    "note": "[bold]\x1b[31mred",
}
REQUEST = {
    "id": "req-1",
    "at": 1.0,
    "tenant": "acme",
    "asked": "gpt-4o",
    "model": "llama",
    "endpoint": "a",
    "outcome": "ok",
    "status": 200,
    "wait_s": 0.0,
    "ttft_s": None,
    "total_s": 1.25,
    "prompt_tokens": 3,
    "completion_tokens": 4,
    "tries": [{"endpoint": "a", "outcome": "ok", "why": "", "seconds": 1.2}],
}
EXPLANATION = {
    "subject": "request req-1",
    "verdict": "answered by a in 1.250 s",
    "because": [{"text": "b was unhealthy", "age_s": 2.04}, {"text": "it waited", "age_s": None}],
    "candidates": [
        {"name": "a", "chosen": True, "reasons": [], "scores": {"load": 0.75}},
        {"name": "b", "chosen": False, "reasons": ["unhealthy", "breaker open"], "scores": {}},
    ],
    "would_change_it": ["a healthy b"],
    "next_command": "llmgw ctl endpoints",
    "sentence": "request req-1: answered",
}
ENDPOINT = {"id": "a", "model": "llama", "state": "unusable", "why": "probe failed", "saturation": 0.5, "kv": None}
ANSWERS: dict[tuple[str, str], tuple[int, Any]] = {
    ("GET", "/keys"): (200, {"keys": [KEY]}),
    ("POST", "/keys"): (201, {"key": "sk-llmgw-secret", "record": KEY}),
    ("POST", "/keys/import"): (201, {"imported": 1, "new_tenants": ["acme"]}),
    ("DELETE", "/keys/key_1"): (200, {"record": KEY}),
    ("GET", "/tenants"): (200, {"tenants": [{"name": "acme", "created_at": 1.0}]}),
    ("GET", "/tokens"): (200, {"tokens": [{"name": "joe", "role": "admin", "created_at": 1.0, "created_by": "me"}]}),
    ("POST", "/tokens"): (201, {"token": "llmgw-adm-secret", "record": {"name": "joe"}}),
    ("DELETE", "/tokens/a%2Fb"): (204, None),
    ("GET", "/models"): (200, {"models": [{"name": "llama", "aliases": ["gpt-4o"], "endpoints": 2, "usable": 1}]}),
    ("GET", "/endpoints"): (200, {"endpoints": [ENDPOINT]}),
    ("GET", "/requests"): (200, {"requests": [REQUEST]}),
    ("GET", "/requests/req-1"): (200, {"request": REQUEST}),
    ("GET", "/requests/req-1/explanation"): (200, EXPLANATION),
    ("GET", "/status"): (200, {"version": "0.1.0", "ready": True, "in_flight": 3}),
    ("GET", "/audit"): (200, {"audit": [{"at": 1.0, "who": "joe", "what": "keys.create", "subject": "key_1"}]}),
    ("POST", "/apply"): (200, {"revision": 4, "changes": ["endpoint b added"]}),
}


class Admin(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answerer)
        self.answers = dict(ANSWERS)
        self.asked: list[tuple[str, str, Any]] = []
        self.plain: bytes | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answerer(BaseHTTPRequestHandler):
    server: Admin

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        path, _, query = self.path.removeprefix("/admin/v1").partition("?")
        self.server.asked.append((self.command, path + (f"?{query}" if query else ""), json.loads(body or "null")))
        if self.headers["authorization"] != "Bearer right":
            status, value = 401, {"error": {"message": "who are you?", "code": "unauthenticated", "hint": ""}}
        else:
            missing = (404, {"error": {"message": "no such thing", "code": "not_found", "hint": ""}})
            status, value = self.server.answers.get((self.command, path), missing)
        text = self.server.plain if self.server.plain is not None else json.dumps(value).encode()
        self.send_response(status)
        if status != 204:
            self.send_header("content-length", str(len(text)))
        self.end_headers()
        if status != 204:
            self.wfile.write(text)

    do_GET = do_POST = do_DELETE = answer

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: what was asked is in ``asked``."""


@pytest.fixture
def admin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Admin]:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("LLMGW_CONFIG", raising=False)
    server = Admin()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def ctl(admin: Admin, *words: str, token: str = "right", stdin: str | None = None) -> Result:
    env = {"LLMGW_ADMIN_URL": admin.url, "LLMGW_ADMIN_TOKEN": token, "LLMGW_DEBUG": "1"}
    return CliRunner().invoke(main, ["ctl", *words], env=env, input=stdin)


@pytest.mark.parametrize(
    ("words", "shows"),
    [
        ("keys list", ["key_1", "sk-llmgw-abc…", "acme", "every", "live", "[bold] [31mred"]),
        ("tenants", ["acme"]),
        ("tokens list", ["joe", "admin", "me"]),
        ("models", ["llama", "gpt-4o"]),
        ("endpoints", ["unusable", "probe failed", "50%"]),
        ("requests", ["req-1", "gpt-4o → llama", "1.250 s"]),
        ("status", ["version", "0.1.0", "ready", "yes"]),
        ("audit", ["joe", "keys.create"]),
    ],
)
def test_each_list_is_a_table_for_people_and_json_for_programs(admin, words, shows):
    shown = ctl(admin, *words.split())
    assert shown.exit_code == 0, shown.stderr
    for text in shows:
        assert text in shown.stdout
    assert "\x1b" not in shown.stdout

    at_the_command = ctl(admin, *words.split(), "-o", "json")
    at_the_group = ctl(admin, "-o", "json", *words.split())
    assert json.loads(at_the_command.stdout) == json.loads(at_the_group.stdout)
    assert json.loads(at_the_command.stdout) == ANSWERS["GET", "/" + words.split()[0]][1]


def test_tenants_are_listed_with_and_without_the_word(admin):
    plain, said, wrong = ctl(admin, "tenants"), ctl(admin, "tenants", "list"), ctl(admin, "tenants", "lst")

    assert (said.exit_code, said.stdout) == (0, plain.stdout)
    assert "acme" in said.stdout
    assert json.loads(ctl(admin, "tenants", "list", "-o", "json").stdout)["tenants"]
    assert wrong.exit_code == 2


def test_a_key_is_asked_for_in_the_api_s_words(admin):
    made = ctl(admin, "keys", "create", "--tenant", "acme", "--model", "m", "--model", "n", "--expires", "2030-01-31")

    assert made.stdout == "sk-llmgw-secret\n"
    body = {
        "tenant": "acme",
        "band": "gold",
        "models": ["m", "n"],
        "expires_at": 1896048000.0,
        "note": "",
        "new_tenant": False,
    }
    assert admin.asked == [("POST", "/keys", body)]


def test_a_whole_key_never_stands_in_a_url(admin):
    ctl(admin, "keys", "revoke", "sk-a-whole-key-from-elsewhere")
    ctl(admin, "keys", "revoke", "key_1")

    hashed = "sha256%3A" + digest("sk-a-whole-key-from-elsewhere").hex()
    assert [path for _, path, _ in admin.asked] == [f"/keys/{hashed}", "/keys/key_1"]


def test_names_are_quoted(admin):
    assert ctl(admin, "tokens", "revoke", "a/b").stdout == "a/b revoked\n"


def test_an_import_goes_in_one_piece(admin):
    entries = [{"key": "sk-brought-along", "tenant": "a"}, {"key": "sk-brought-2", "tenant": "a", "band": "silver"}]
    lines = "\n".join(json.dumps(entry) for entry in entries)

    done = ctl(admin, "keys", "import", "-", stdin=lines)

    assert done.exit_code == 0, done.stderr
    [(method, path, body)] = admin.asked
    assert (method, path) == ("POST", "/keys/import")
    assert [(e["key"], e["band"]) for e in body["entries"]] == [
        ("sk-brought-along", "gold"),
        ("sk-brought-2", "silver"),
    ]


def test_requests_are_filtered_by_the_gateway(admin):
    ctl(admin, "requests", "--slow", "--failed", "--tenant", "a&b", "--model", "m", "--limit", "7")

    assert admin.asked[0][1] == "/requests?slow=true&failed=true&tenant=a%26b&model=m&limit=7"


def test_an_explanation_is_told_in_full(admin):
    told = ctl(admin, "explain", "request", "req-1")

    assert told.stdout == (
        "request req-1: answered by a in 1.250 s\n"
        "  - b was unhealthy (2.0 s ago)\n"
        "  - it waited\n"
        "\n"
        "CANDIDATE  LOAD   WHY\n"
        "* a        0.750  chosen\n"
        "  b        -      unhealthy; breaker open\n"
        "\n"
        "what would change it:\n"
        "  - a healthy b\n"
        "\n"
        "next: llmgw ctl endpoints\n"
    )
    assert json.loads(ctl(admin, "explain", "request", "req-1", "-o", "json").stdout) == EXPLANATION
    assert "completion_tokens" in ctl(admin, "explain", "request", "req-1", "--record").stdout


def test_a_request_nobody_remembers_is_4(admin):
    asked = ctl(admin, "explain", "request", "req-9")

    assert (asked.exit_code, asked.stderr) == (4, "llmgw: no such thing\n")


def test_watching_prints_each_request_once_until_the_gateway_is_gone(admin):
    """The third answer is not one: a way for the test to end."""
    second = {**REQUEST, "id": "req-2"}
    answers = iter([{"requests": [REQUEST]}, {"requests": [second, REQUEST]}])

    class Script(dict[tuple[str, str], tuple[int, Any]]):
        def get(self, key: Any, default: Any = None) -> Any:
            return (200, next(answers, {}))

    admin.answers = Script()

    watched = ctl(admin, "requests", "--watch", "--every", "0.05", "-o", "json")

    assert [json.loads(line)["id"] for line in watched.stdout.splitlines()] == ["req-1", "req-2"]
    assert watched.exit_code == 6


def test_a_config_is_applied_as_it_is_written(admin, tmp_path):
    (tmp_path / "llmgw.toml").write_text("[[models]]\nname = 'é'\n")

    applied = ctl(admin, "apply", str(tmp_path / "llmgw.toml"))

    assert applied.stdout == "revision 4: 1 change\n  - endpoint b added\n"
    assert admin.asked[0][2] == {"toml": "[[models]]\nname = 'é'\n", "file": str(tmp_path / "llmgw.toml")}


def test_a_config_that_changes_nothing_says_so(admin, tmp_path):
    admin.answers["POST", "/apply"] = (200, {"revision": 3, "changes": []})
    (tmp_path / "llmgw.toml").write_text("")

    assert ctl(admin, "apply", str(tmp_path / "llmgw.toml")).stdout == "revision 3: nothing changed\n"


def test_a_config_with_problems_is_2_and_names_each(admin, tmp_path):
    error = {"message": "nothing was applied", "code": "invalid_config", "hint": "correct it"}
    admin.answers["POST", "/apply"] = (422, {"error": error, "problems": ["models[0].url: missing", "x: unknown"]})
    (tmp_path / "llmgw.toml").write_text("")

    applied = ctl(admin, "apply", str(tmp_path / "llmgw.toml"))

    assert applied.exit_code == 2
    assert applied.stderr.splitlines() == [
        "llmgw: nothing was applied; correct it",
        "models[0].url: missing",
        "x: unknown",
    ]


@pytest.mark.parametrize(
    ("status", "code", "exit"),
    [
        (409, "unknown_tenant", 1),
        (404, "unknown_tenant", 1),
        (422, "duplicate", 1),
        (400, "invalid", 2),
        (409, "already_running", 3),
        (404, "not_found", 4),
        (409, "blocked", 5),
        (403, "forbidden", 1),
        (500, "internal", 1),
        (503, "store_unavailable", 1),
    ],
)
def test_refusals_have_exit_codes(admin, status, code, exit):
    admin.answers["GET", "/keys"] = (status, {"error": {"message": "no", "code": code, "hint": "do that"}})

    asked = ctl(admin, "keys", "list")

    assert (asked.exit_code, asked.stdout, asked.stderr) == (exit, "", "llmgw: no; do that\n")


def test_a_wrong_token_is_1_and_says_where_tokens_come_from(admin):
    asked = ctl(admin, "status", token="wrong")

    assert asked.exit_code == 1
    assert asked.stderr.startswith("llmgw: who are you?; give a token")
    assert "wrong" not in asked.stderr


def test_an_empty_token_is_2_and_never_becomes_the_one_of_this_machine(admin, tmp_path):
    (tmp_path / "empty").write_text("\n")

    for token in ("", "  ", f"@{tmp_path / 'empty'}"):
        asked = ctl(admin, "--token", token, "status")
        assert (asked.exit_code, asked.stdout) == (2, "")
        assert "the token is empty; give one with --token" in asked.stderr or "holds no token" in asked.stderr
    here = CliRunner().invoke(main, ["ctl", "--data-dir", str(tmp_path / "data"), "--token", "", "status"])
    assert (here.exit_code, "the token is empty" in here.stderr) == (2, True)
    assert admin.asked == []


@pytest.mark.parametrize("token", ["llmgw-adm-é", "llmgw\u2013adm", "a\nb"])
def test_a_token_that_no_header_carries_is_2_and_is_not_repeated(admin, token):
    asked = ctl(admin, "--token", token, "status")

    assert (asked.exit_code, admin.asked) == (2, [])
    assert "the token has characters that no token has" in asked.stderr
    assert token not in asked.stderr


def test_nobody_there_is_6_with_what_to_do(admin):
    asked = CliRunner().invoke(main, ["ctl", "--url", "http://127.0.0.1:9", "status"])

    assert asked.exit_code == 6
    assert "is not reachable" in asked.stderr
    assert "llmgw server" in asked.stderr
    assert asked.stderr.count("\n") == 1


def test_https_where_http_is_spoken_is_told_so(admin):
    asked = ctl(admin, "--url", admin.url.replace("http:", "https:"), "status")

    assert asked.exit_code == 6
    assert f"it speaks http, not https; use {admin.url}" in asked.stderr
    assert "--ca" not in asked.stderr


def test_http_where_https_is_spoken_is_told_so(admin):
    """A TLS listener hangs up over a plain request."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def hang_up() -> None:
            with listener.accept()[0] as client:
                client.recv(65536)

        server = threading.Thread(target=hang_up)
        server.start()
        asked = ctl(admin, "--url", url, "status")
        server.join()

    assert asked.exit_code == 6
    assert f"if it speaks https, use {url.replace('http:', 'https:')}" in asked.stderr


@pytest.mark.parametrize("plain", [b"<html>hello</html>", b"", b'"text'])
def test_somebody_else_there_is_6(admin, plain):
    admin.plain = plain

    asked = ctl(admin, "status")

    assert asked.exit_code == 6
    assert f"{admin.url} is not an llmgw admin listener" in asked.stderr
    assert "admin.listen" in asked.stderr


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (404, {"error": {"message": "no such path", "type": "invalid_request_error", "param": None, "code": "no"}}),
        (401, {"error": "Unauthorized"}),
        (404, {"detail": "Not Found"}),
        (405, {"error": {"message": "POST only"}}),
        (200, ["ok"]),
    ],
)
def test_a_clients_listener_or_an_engine_is_told_from_an_admin_s_and_is_6(admin, status, said):
    admin.answers["GET", "/status"] = (status, said)

    asked = ctl(admin, "status")

    assert asked.exit_code == 6
    assert f"{admin.url} is not an llmgw admin listener: it answers {status}" in asked.stderr


@pytest.mark.parametrize("words", [["explain", "request"], ["keys", "revoke"], ["tokens", "revoke"]])
@pytest.mark.parametrize("empty", ["", " "])
def test_an_empty_name_is_bad_usage_and_nothing_is_asked(admin, words, empty):
    asked = ctl(admin, *words, empty)

    assert (asked.exit_code, admin.asked) == (2, [])
    assert "it is empty" in asked.stderr


@pytest.mark.parametrize("url", ["gpu-1:7442", "ftp://gpu-1", "http://", "http://[::1"])
def test_a_url_that_is_none_is_2(admin, url):
    asked = CliRunner().invoke(main, ["ctl", "--url", url, "status"], env={"LLMGW_DEBUG": "1"})

    assert asked.exit_code == 2, (asked.stderr, asked.exception)


def test_contexts_are_remembered_used_and_forgotten(admin, tmp_path):
    def run(*words: str) -> Result:
        return CliRunner().invoke(main, ["ctl", *words], env={"LLMGW_DEBUG": "1"}, input="")

    (tmp_path / "token").write_text("right\n")
    assert run("context", "add", "prod", "--url", admin.url, "--token", f"@{tmp_path / 'token'}").exit_code == 0
    assert run("context", "add", "lab", "--url", "http://127.0.0.1:9", "--token", "x").exit_code == 0
    file = tmp_path / ".config" / "llmgw" / "contexts.toml"
    assert file.stat().st_mode & 0o777 == 0o600
    assert "right" not in run("context", "list").stdout

    assert run("status").exit_code == 0  # the first is in use
    assert run("--context", "lab", "status").exit_code == 6
    assert run("context", "use", "lab").exit_code == 0
    assert run("status").exit_code == 6
    assert json.loads(run("context", "list", "-o", "json").stdout)["current"] == "lab"
    assert run("context", "remove", "lab").exit_code == 0
    assert run("context", "use", "lab").exit_code == 4
    assert run("--context", "lab", "status").exit_code == 4

    file.chmod(0o644)
    readable = run("--context", "prod", "status")
    assert (readable.exit_code, "chmod 600" in readable.stderr) == (2, True)


def test_a_contexts_bundle_is_found_from_any_folder(admin, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = ["ctl", "context", "add", "lab", "--url", admin.url, "--token", "x", "--ca", "ca.pem"]
    assert CliRunner().invoke(main, said).exit_code == 0
    assert Contexts.read().find("lab").ca == str(tmp_path / "ca.pem")


def test_each_command_about_contexts_answers_in_json_when_asked_to(admin):
    def told(*words: str) -> object:
        run = CliRunner().invoke(main, ["ctl", "context", *words, "-o", "json"], env={"LLMGW_DEBUG": "1"}, input="")
        return json.loads(run.stdout)

    assert told("add", "lab", "--url", admin.url, "--token", "right") == {"context": "lab", "current": "lab"}
    assert told("list") == {"contexts": [{"name": "lab", "url": admin.url, "token": True}], "current": "lab"}
    assert told("use", "lab") == {"context": "lab", "current": "lab"}
    assert told("remove", "lab") == {"context": "lab", "current": None}


def test_a_context_on_the_command_line_beats_the_environment(admin, tmp_path):
    CliRunner().invoke(main, ["ctl", "context", "add", "lab", "--url", "http://127.0.0.1:9", "--token", "mine"])

    asked = ctl(admin, "--context", "lab", "status")

    assert "http://127.0.0.1:9" in asked.stderr
    assert admin.asked == []
