"""Who may ask the admin API what: every route, every role; hosts, origins, content types."""

import re

import pytest

from llmgw.core.identity import Role
from llmgw.core.secret import Secret
from tests.admin.desk import ask
from tests.admin.talking import all_of, answer_on, connected, served

OPEN = {"/health", "/ready", "/metrics"}
NEEDS_ADMIN = {
    "/admin/v1/tokens",
    "/admin/v1/tokens/x",
    "/admin/v1/invitations",
    "/admin/v1/invitations/x",
    "/debug/tasks",
    "/debug/profile",
}


def every_route(app):
    """(method, path) of all there is, but for OPTIONS and HEAD."""
    for rule in app.url_map.iter_rules():
        if rule.endpoint == "static":
            continue
        for method in rule.methods - {"OPTIONS", "HEAD"}:
            yield method, re.sub(r"<[^>]+>", "x", rule.rule)


async def test_without_a_token_nothing_but_health_and_metrics_answers(desk):
    app = desk.app()
    answers = {(m, p): (await ask(app, m, p)).status_code for m, p in every_route(app)}

    assert {path for (_, path), status in answers.items() if status != 401} == OPEN
    assert len(answers) > 20


async def test_a_wrong_token_is_told_where_the_right_one_lies(desk):
    answer = await ask(desk.app(), "GET", "/admin/v1/status", {"Authorization": "Bearer nonsense"})

    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    error = (await answer.get_json())["error"]
    assert error["code"] == "token"
    assert "admin.token" in error["hint"]


@pytest.mark.parametrize("scheme", ["bearer", "BEARER", "Bearer "])
async def test_the_scheme_is_read_as_the_standard_says(desk, scheme):
    answer = await ask(desk.app(), "GET", "/admin/v1/status", {"Authorization": f"{scheme} {desk.shown[Role.VIEWER]}"})

    assert answer.status_code == 200


async def test_a_viewer_only_looks_and_an_operator_makes_no_tokens(desk):
    app = desk.app()
    for role in Role:
        for method, path in every_route(app):
            if path == "/debug/profile":
                continue
            refused = (await ask(app, method, path, desk.bearer(role))).status_code == 403
            needed = Role.ADMIN if path in NEEDS_ADMIN else Role.VIEWER if method == "GET" else Role.OPERATOR
            assert refused is not role.may(needed), f"{role} {method} {path}"


async def test_a_revoked_token_opens_nothing(desk):
    app = desk.app()
    viewer = desk.bearer(Role.VIEWER)
    assert (await ask(app, "GET", "/admin/v1/status", viewer)).status_code == 200

    gone = await ask(app, "DELETE", "/admin/v1/tokens/some-viewer", desk.bearer(Role.ADMIN))

    assert gone.status_code == 200
    assert (await ask(app, "GET", "/admin/v1/status", viewer)).status_code == 401


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:7442", "127.0.0.1:7442", "[::1]:7442", "gw.example:443"])
async def test_our_own_names_are_answered_for(desk, host):
    app = desk.app(allowed_hosts=frozenset({"GW.example"}))

    assert (await ask(app, "GET", "/health", {"Host": host})).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "evil:x", "10.1.2.3"]
)
async def test_other_names_are_not(desk, host):
    """A web page that made its own name point to our address can read nothing, not even health."""
    answer = await ask(desk.app(), "GET", "/health", {"Host": host})

    assert answer.status_code == 421
    assert (await answer.get_json())["error"]["code"] == "host"


async def test_the_address_a_connection_came_to_is_a_name_of_ours(desk):
    """Behind 0.0.0.0 an operator or Prometheus asks by address, which no web page can claim as its name."""
    async with served(desk.app(host="0.0.0.0")) as port, await connected(port) as stream:
        await stream.send_all(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n")
        assert (await answer_on(stream)).startswith(b"HTTP/1.1 200")
        await stream.send_all(b"GET /health HTTP/1.1\r\nHost: 127.0.0.2:1\r\nConnection: close\r\n\r\n")
        assert (await all_of(stream)).startswith(b"HTTP/1.1 421")


async def test_requests_of_web_pages_are_refused_unless_theirs_is_listed(desk):
    app = desk.app(allowed_origins=frozenset({"https://ops.example"}))
    token = desk.bearer(Role.VIEWER)

    other = await ask(app, "GET", "/admin/v1/status", {**token, "Origin": "https://evil.example"})
    null = await ask(app, "GET", "/admin/v1/status", {**token, "Origin": "null"})
    asking = await ask(app, "OPTIONS", "/admin/v1/keys", {"Origin": "https://evil.example"})
    listed = await ask(app, "GET", "/admin/v1/status", {**token, "Origin": "https://ops.example"})

    assert [one.status_code for one in (other, null, asking, listed)] == [403, 403, 403, 200]
    for answer in (other, null, asking, listed):
        assert "access-control" not in str(answer.headers).lower()


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""]
)
async def test_a_write_is_json_or_nothing(desk, kind):
    """What a web page can send without asking first."""
    token = desk.bearer(Role.ADMIN)
    answer = await ask(desk.app(), "POST", "/admin/v1/apply", {**token, "Content-Type": kind}, data=b'{"toml": "x"}')

    assert answer.status_code == 415
    assert (await answer.get_json())["error"]["hint"] == "Content-Type: application/json"


async def test_metrics_are_open_on_loopback_until_they_have_a_token(desk):
    token = Secret("scrape-me")
    statuses = {}
    for name, app in {
        "loopback": desk.app(),
        "loopback with token": desk.app(metrics_token=token),
        "outside": desk.app(host="0.0.0.0", allowed_hosts=frozenset({"localhost"})),
        "outside with token": desk.app(host="10.0.0.1", metrics_token=token),
    }.items():
        shown = ({}, {"Authorization": "Bearer scrape-me"}, {"Authorization": "Bearer other"}, desk.bearer(Role.VIEWER))
        statuses[name] = [(await ask(app, "GET", "/metrics", headers)).status_code for headers in shown]

    assert statuses == {
        "loopback": [200, 200, 200, 200],
        "loopback with token": [401, 200, 401, 200],
        "outside": [401, 401, 401, 200],
        "outside with token": [401, 200, 401, 200],
    }


async def test_the_metrics_token_opens_metrics_alone(desk):
    app = desk.app(metrics_token=Secret("scrape-me"))
    for method, path in every_route(app):
        if path not in OPEN:
            assert (await ask(app, method, path, {"Authorization": "Bearer scrape-me"})).status_code == 401


async def test_every_answer_has_an_id_of_its_own_and_is_kept_by_nobody(desk):
    app = desk.app()
    answers = [
        await ask(app, "GET", path, headers)
        for path, headers in (
            ("/health", {}),
            ("/nowhere", {}),
            ("/admin/v1/status", {}),
            ("/health", {"Host": "evil"}),
            ("/health", {"Origin": "http://evil"}),
            ("/admin/v1/status", desk.bearer(Role.VIEWER)),
        )
    ]

    assert [one.status_code for one in answers] == [200, 404, 401, 421, 403, 200]
    assert len({one.headers["X-Request-Id"] for one in answers}) == len(answers)
    assert {one.headers["Cache-Control"] for one in answers} == {"no-store"}
