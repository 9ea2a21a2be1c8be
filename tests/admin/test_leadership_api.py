"""What a standby answers, and who may make the leader resign."""

import pytest

from llmgw.control.desired import Desired
from llmgw.core.identity import Role
from llmgw.core.lease_facts import Addresses
from llmgw.store.leader import NotLeading
from tests.admin.desk import Desk, ask

GW1 = Addresses("gw-1", "http://gw-1:7440", "https://gw-1:7442", "gw-1:7443")
NOBODY = Addresses()
WRITES = [
    ("PUT", "/models/llama/scale"), ("PUT", "/nodes/node-1/target"), ("PUT", "/endpoints/a/target"), ("POST", "/apply"),
    ("POST", "/restart/llama"), ("POST", "/replicas/llama-1/move"), ("POST", "/replicas/llama-1/purge"),
    ("DELETE", "/nodes/node-1"), ("POST", "/nodes/node-1/lost"), ("POST", "/invitations"), ("POST", "/rollback"),
    ("POST", "/leader/resign"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), WRITES)
async def test_what_the_leader_decides_is_refused_with_who_leads(desk: Desk, method: str, path: str) -> None:
    desk.standby_of = GW1
    answer = await ask(desk.app(), method, f"/admin/v1{path}", desk.bearer(Role.ADMIN), json={})
    error = (await answer.get_json())["error"]
    assert (answer.status_code, error["code"], error["leader"]) == (421, "not_leading", "https://gw-1:7442")
    assert "gw-1 leads" in error["message"]


async def test_while_nobody_leads_it_says_so(desk: Desk) -> None:
    desk.standby_of = NOBODY
    answer = await ask(desk.app(), "PUT", "/admin/v1/models/llama/scale", desk.bearer(Role.ADMIN), json={})
    error = (await answer.get_json())["error"]
    assert (answer.status_code, error["leader"]) == (421, "")
    assert "nobody leads" in error["message"]


@pytest.mark.parametrize("path", ["/models", "/nodes", "/replicas", "/drains", "/history", "/decisions"])
async def test_what_a_standby_reads_from_the_store_has_its_age(desk: Desk, path: str) -> None:
    desk.standby_of = GW1
    answer = await ask(desk.app(), "GET", f"/admin/v1{path}", desk.bearer(Role.VIEWER))
    assert answer.status_code == 200
    assert (answer.headers["x-llmgw-leader"], answer.headers["x-llmgw-age"]) == ("https://gw-1:7442", "0.2")


async def test_only_the_leader_knows_of_gpus_and_a_standby_says_who_that_is(desk: Desk) -> None:
    desk.standby_of = GW1
    answer = await ask(desk.app(), "GET", "/admin/v1/explain/gpu/node-1/0", desk.bearer(Role.VIEWER))
    error = (await answer.get_json())["error"]
    assert (answer.status_code, error["code"], error["leader"]) == (421, "not_leading", "https://gw-1:7442")


async def test_the_event_feed_of_a_standby_would_be_silent_so_it_is_refused(desk: Desk) -> None:
    desk.standby_of = GW1
    answer = await ask(desk.app(), "GET", "/admin/v1/events", desk.bearer(Role.VIEWER))
    assert answer.status_code == 421


@pytest.mark.parametrize("path", ["/requests", "/endpoints", "/pools", "/status", "/keys", "/leader"])
async def test_what_each_knows_of_itself_is_answered_by_itself(desk: Desk, path: str) -> None:
    desk.standby_of = GW1
    answer = await ask(desk.app(), "GET", f"/admin/v1{path}", desk.bearer(Role.VIEWER))
    assert answer.status_code == 200
    assert "x-llmgw-leader" not in answer.headers


async def test_the_leader_says_nothing_of_another(desk: Desk) -> None:
    answer = await ask(desk.app(), "GET", "/admin/v1/nodes", desk.bearer(Role.VIEWER))
    assert answer.status_code == 200
    assert "x-llmgw-leader" not in answer.headers


async def test_who_leads_is_not_told_to_strangers(desk: Desk) -> None:
    desk.standby_of = GW1
    for method, path in (("GET", "/nodes"), ("PUT", "/models/llama/scale"), ("GET", "/leader")):
        answer = await ask(desk.app(), method, f"/admin/v1{path}", json={} if method == "PUT" else None)
        assert answer.status_code == 401
        assert "gw-1" not in await answer.get_data(as_text=True)


async def test_an_operator_makes_the_leader_resign_and_a_viewer_does_not(desk: Desk) -> None:
    app, path = desk.app(), "/admin/v1/leader/resign"
    assert (await ask(app, "POST", path, desk.bearer(Role.VIEWER), json={})).status_code == 403
    answer = await ask(app, "POST", path, desk.bearer(Role.OPERATOR), json={"why": "upgrade"})
    assert answer.status_code == 202
    assert desk.resigned == [("some-operator", "upgrade")]


async def test_a_leader_that_may_not_resign_says_why(desk: Desk) -> None:
    answer = await ask(desk.app(), "POST", "/admin/v1/leader/resign", desk.bearer(Role.OPERATOR), json={"why": "alone"})
    assert answer.status_code == 409
    assert "nobody else could lead" in (await answer.get_json())["error"]["message"]


async def test_leadership_is_explained(desk: Desk) -> None:
    answer = await ask(desk.app(), "GET", "/admin/v1/explain/leader", desk.bearer(Role.VIEWER))
    assert (await answer.get_json())["verdict"] == "answered by a"


async def test_a_leader_that_is_fenced_in_the_middle_of_an_act_says_who_leads_now(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: object, **__: object) -> None:
        desk.standby_of = GW1
        raise NotLeading("term 1.3 is not the store's any more")

    monkeypatch.setattr(Desired, "scale", refused)
    answer = await ask(desk.app(), "PUT", "/admin/v1/models/llama/scale", desk.bearer(Role.ADMIN), json={"replicas": 2})
    error = (await answer.get_json())["error"]
    assert (answer.status_code, error["code"], error["leader"]) == (421, "not_leading", "https://gw-1:7442")
