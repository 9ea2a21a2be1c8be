"""What an operator sees of a gateway at work: metrics, tasks, a profile, requests and why they went where."""

import re
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from attrs import frozen
from prometheus_client.parser import text_string_to_metric_families

from tests.journeys.running import Engine, Gateway, House, config_of, values, wait_until
from tests.journeys.talking import chat

ENGINE_KEY = "engine-secret-7f31"


@frozen
class Site:
    gateway: Gateway
    engines: list[Engine]
    key: str

    def ask(self, **more: object) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.key}"}
        asked = chat(**more)
        return httpx.post(f"{self.gateway.url}/v1/chat/completions", json=asked, headers=headers, trust_env=False)


@pytest.fixture(scope="module")
def site(shared_home: House) -> Site:
    engines = shared_home.engines(2, decode_rate=200, api_key=ENGINE_KEY)
    config = config_of({f"e{n}": engine.url for n, engine in enumerate(engines)})
    config = config.replace('engine = "sim"', f'engine = "sim"\napi_key = "{ENGINE_KEY}"')
    gateway = shared_home.gateway(config)
    return Site(gateway, engines, gateway.make_key())


def test_a_scrape_parses_and_counts_what_happened(site: Site):
    before = sum(values(site.gateway.metrics(), "llmgw_requests_total", outcome="ok", tenant="acme"))
    for n in range(4):
        site.ask(content=f"question {n}", max_tokens=5, stream=bool(n % 2)).raise_for_status()
    site.ask(model="no-such")
    answer = site.gateway.admin("GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    assert families["llmgw_requests"].type == "counter"
    assert families["llmgw_request_duration_seconds"].type == "histogram"
    samples = site.gateway.metrics()
    assert sum(values(samples, "llmgw_requests_total", outcome="ok", tenant="acme")) == before + 4
    assert values(samples, "llmgw_requests_total", outcome="model_not_found", status="404") == [1]
    assert sum(values(samples, "llmgw_tokens_total", kind="completion")) >= 20
    assert sum(values(samples, "llmgw_endpoint_attempts_total")) >= 4
    for name in ("time_to_first_token", "inter_token_gap", "request_duration", "cancellation_latency", "loop_lag"):
        assert values(samples, f"llmgw_{name}_seconds_count"), name
    text = re.sub(r"\d", "", answer.text)
    assert "no-such" not in text, "a name that a client made up became a label"


def test_names_that_clients_make_up_make_no_series(site: Site):
    site.ask(model="made-up-0")
    before = len(site.gateway.metrics())
    for n in range(1, 30):
        site.ask(model=f"made-up-{n}")
    assert len(site.gateway.metrics()) == before


def test_the_task_tree_names_a_request_under_way(site: Site):
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(site.ask, max_tokens=200)
        wait_until(lambda: any(engine.state()["running"] for engine in site.engines))
        tree = site.gateway.admin("GET", "/debug/tasks").raise_for_status().text
        asking.result(10).raise_for_status()
    assert "Door._connection" in tree
    assert "probe e1" in tree
    assert "Door._connection" not in site.gateway.admin("GET", "/debug/tasks").text


def test_a_profile_shows_where_time_goes_and_no_key(site: Site):
    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(site.ask, max_tokens=100, stream=True) for _ in range(4)]
        profile = site.gateway.admin("GET", "/debug/profile?seconds=0.5").raise_for_status().text
        for one in asking:
            one.result(10).raise_for_status()
    stacks = [line.rpartition(" ") for line in profile.splitlines()]
    assert sum(int(count) for _, _, count in stacks) > 20
    assert any("_run.py:run" in stack for stack, _, _ in stacks)
    for secret in (site.key, ENGINE_KEY, site.gateway.token):
        assert secret not in profile


def test_no_secret_is_anywhere_an_operator_looks(site: Site):
    site.ask(content="a very private question", max_tokens=3).raise_for_status()
    listed = ("config", "endpoints", "models", "pools", "queues", "status", "requests", "keys", "audit", "tokens")
    shown = [site.gateway.admin("GET", f"/admin/v1/{what}").raise_for_status().text for what in listed]
    shown += [site.gateway.admin("GET", path).text for path in ("/metrics", "/debug/tasks")]
    shown += site.gateway.process.lines
    for text in shown:
        for secret in (site.key, ENGINE_KEY, site.gateway.token, "a very private question"):
            assert secret not in text


def test_a_viewer_may_look_and_not_touch(site: Site):
    made = site.gateway.admin("POST", "/admin/v1/tokens", json={"name": "eyes", "role": "viewer"}).json()["token"]
    assert site.gateway.admin("GET", "/admin/v1/endpoints", token=made).status_code == 200
    for method, path, asked in (
        ("POST", "/admin/v1/keys", {"tenant": "acme"}),
        ("POST", "/admin/v1/apply", {"toml": ""}),
        ("DELETE", "/admin/v1/keys/key_x", None),
        ("POST", "/admin/v1/tokens", {"name": "more", "role": "admin"}),
        ("GET", "/debug/profile?seconds=0.1", None),
    ):
        refused = site.gateway.admin(method, path, token=made, json=asked)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "role"), path
    assert site.gateway.admin("GET", "/admin/v1/endpoints", token="nonsense").status_code == 401
    assert site.gateway.admin("GET", "/debug/tasks", token="").status_code == 401
    site.gateway.admin("DELETE", "/admin/v1/tokens/eyes").raise_for_status()
    wait_until(lambda: site.gateway.admin("GET", "/admin/v1/endpoints", token=made).status_code == 401, within_s=1)


def test_an_explanation_says_which_endpoint_answered_and_what_else_there_was(site: Site):
    id = site.ask(max_tokens=3).headers["x-request-id"]
    explained = site.gateway.ctl("explain", "request", id)
    (chosen,) = [one["name"] for one in explained["candidates"] if one["chosen"]]
    assert explained["verdict"].startswith(f"answered by {chosen} in ")
    assert {one["name"] for one in explained["candidates"]} == {"e0", "e1"}
    assert all(one["scores"] for one in explained["candidates"])
    assert f"answered by {chosen}" in site.gateway.ctl_says("explain", "request", id)
    assert "no request" in site.gateway.ctl_says("explain", "request", "req_none", code=4)


def test_failed_requests_are_listed_with_their_outcome(site: Site):
    site.engines[0].fault(status=400, count=1)
    site.engines[1].fault(status=400, count=1)
    id = site.ask().headers["x-request-id"]
    for engine in site.engines:
        engine.no_faults()
    listed = site.gateway.ctl("requests", "--failed")
    found = next(one for one in listed["requests"] if one["id"] == id)
    assert (found["outcome"], found["status"]) == ("engine_refused", 400)
    assert found["tenant"] == "acme"


def test_one_json_line_a_request_is_logged_with_its_times_and_no_more_of_the_key_than_its_beginning(site: Site):
    id = site.ask(max_tokens=3).headers["x-request-id"]
    site.gateway.process.said(id, within_s=5)
    (line,) = [one for one in site.gateway.log() if one.get("request_id") == id]
    assert line["outcome"] == "ok"
    assert line["endpoint"] in ("e0", "e1")
    assert site.key.startswith(line["key"].rstrip("…"))
    assert all(line[name] is not None for name in ("read_s", "wait_s", "dial_s", "ttft_s", "total_s"))


def test_it_answers_where_a_standby_sends_operators(home: House):
    """Whoever follows ``admin.advertise`` says its name; a page that rebinds its own name says another one."""
    config = config_of({"a": "http://127.0.0.1:1"})
    gateway = home.gateway_anywhere(
        config.replace(
            '[admin]\nlisten = "127.0.0.1:0"', '[admin]\nlisten = "127.0.0.1:0"\nadvertise = "http://gw-1:7442"'
        )
    )
    port = gateway.process.said("admin: ").rpartition(":")[2]
    said = {host: httpx.get(f"http://127.0.0.1:{port}/health", headers={"Host": host}, trust_env=False).status_code
            for host in ("gw-1:7442", "gw-1", "gw-2:7442")}  # fmt: skip

    assert said == {"gw-1:7442": 200, "gw-1": 200, "gw-2:7442": 421}
