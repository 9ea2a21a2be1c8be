"""What the cluster's routes of the admin API say, and to whom."""

import json

import pytest
import trio
from attrs import evolve
from msgspec.structs import replace

from llmgw.admin.services import Applied
from llmgw.core.identity import Role
from llmgw.core.replicas import Phase
from llmgw.wire.agent_frames import Logs
from tests.admin.desk import ask
from tests.populated import LOG, MODEL, WANT, populated, reports

VIEWER, OPERATOR, ADMIN = Role.VIEWER, Role.OPERATOR, Role.ADMIN


@pytest.fixture
async def full(desk):
    await populated(desk.plane)
    return desk


async def say(desk, method, path, body=None, role=ADMIN, app=None, **query):
    data = {} if body is None else {"data": json.dumps(body).encode() if not isinstance(body, bytes) else body}
    headers = desk.bearer(role) if role else None
    more = {"query_string": query} if query else {}
    answer = await ask(app or desk.app(), method, f"/admin/v1{path}", headers, **data, **more)
    return answer.status_code, await answer.get_json()


def code(answer):
    return answer[0], answer[1]["error"]["code"]


# -- who may -------------------------------------------------------------------------------------------------

READS = [
    "/nodes",
    "/nodes/node-1",
    "/replicas",
    "/replicas/org-llama-1/logs",
    "/decisions",
    "/history",
    "/events",
    "/explain/placement/org-llama-1",
    "/drains",
    "/explain/drain/node-1",
    "/explain/node/node-1",
    "/explain/gpu/node-1/0",
]
WRITES = [
    ("POST", "/nodes/node-1/lost", {"why": "x"}, OPERATOR),
    ("DELETE", "/nodes/node-2", None, OPERATOR),
    ("POST", "/nodes/node-1/gpus/0/clear", {"why": "x"}, OPERATOR),
    ("POST", f"/restart/{MODEL}", {"why": "x"}, OPERATOR),
    ("PUT", "/nodes/node-1/target", {"target": "drained"}, OPERATOR),
    ("PUT", "/endpoints/org/llama/0/target", {"target": "drained"}, OPERATOR),
    ("POST", "/replicas/org-llama-1/move", {}, OPERATOR),
    ("POST", "/replicas/org-llama-1/purge", {}, OPERATOR),
    ("PUT", f"/models/{MODEL}/scale", {"replicas": 1}, OPERATOR),
    ("POST", "/rollback", {"revision": 1}, OPERATOR),
    ("GET", "/invitations", None, ADMIN),
    ("POST", "/invitations", {}, ADMIN),
    ("DELETE", "/invitations/x", None, ADMIN),
]
REASONS = [
    *(one[:3] for one in WRITES if one[0] != "GET"),
    ("POST", "/keys", {"tenant": "t", "new_tenant": True}),
    ("POST", "/keys/import", {"entries": []}),
    ("DELETE", "/keys/key_1", None),
    ("POST", "/tokens", {"name": "n", "role": "viewer"}),
    ("DELETE", "/tokens/n", None),
    ("POST", "/apply", {"toml": ""}),
    ("DELETE", "/requests/req_1", None),
]
BELOW = {OPERATOR: VIEWER, ADMIN: OPERATOR}


@pytest.mark.parametrize("path", READS)
async def test_a_viewer_may_read_and_nobody_without_a_token(full, path):
    assert (await say(full, "GET", path, role=VIEWER))[0] == 200
    assert code(await say(full, "GET", path, role=None)) == (401, "token")


@pytest.mark.parametrize(("method", "path", "body", "needs"), WRITES)
async def test_acts_need_their_role(full, method, path, body, needs):
    assert code(await say(full, method, path, body, role=BELOW[needs])) == (403, "role")
    assert (await say(full, method, path, body, role=needs))[0] not in (401, 403)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/nodes/node-1/target", {"target": "drained"}),
        ("PUT", "/endpoints/org/llama/0/target", {"target": "drained"}),
        ("POST", "/replicas/org-llama-1/move", {}),
    ],
)
async def test_dry_runs_are_reads(full, method, path, body):
    before = dict(full.plane.joining.nodes)
    assert (await say(full, method, path, body | {"dry_run": True}, role=VIEWER))[0] not in (401, 403)
    assert code(await say(full, method, path, body | {"dry_run": True}, role=None)) == (401, "token")
    twice = f'{{"dry_run": false, {json.dumps(body)[1:-1]}{", " if body else ""}"dry_run": true}}'.encode()
    assert code(await say(full, method, path, twice, role=VIEWER)) == (400, "json")
    for no in (body | {"dry_run": False}, body | {"dry_run": 1}, body, [], b"{", b"[" * 10**5):
        assert code(await say(full, method, path, no, role=VIEWER)) == (403, "role")
    assert full.plane.joining.nodes == before


@pytest.mark.parametrize(("method", "path", "body"), REASONS)
async def test_a_reason_is_short_wherever_one_is_given(full, method, path, body):
    name = "reason" if path.endswith(("/target", "/move", "/purge")) else "why"
    long = {name: "x" * 501}
    answer = await say(full, method, path, body | long) if body is not None else await say(full, method, path, **long)

    assert code(answer) == (400, "field")
    assert answer[1]["error"]["message"] == f"{name} has 501 characters, and may have 500"


async def test_the_longest_reason_that_may_be_given_is_kept_whole(full):
    assert (await say(full, "PUT", "/nodes/node-1/target", {"target": "cordoned", "reason": "ü" * 500}))[0] == 200
    assert full.plane.joining.nodes["node-1"].target_why == "ü" * 500


@pytest.mark.parametrize(
    ("method", "path", "body", "hint"),
    [
        ("GET", "/nodes/node-9", None, "did you mean 'node-"),
        ("DELETE", "/nodes/node-9", None, "did you mean 'node-"),
        ("POST", "/nodes/node-9/lost", {"why": "x"}, "did you mean 'node-"),
        ("GET", "/replicas?model=org/lama", None, "did you mean 'org/llama'?"),
        ("GET", "/replicas/org-llama-9/logs", None, "did you mean 'org-llama-"),
        ("GET", "/replicas/org-llama-1/logs?shard=1", None, "it has 0"),
        ("POST", "/restart/org/lama", {"why": "x"}, "did you mean 'org/llama'?"),
        ("PUT", "/models/org/lama/scale", {"replicas": 1}, "did you mean 'org/llama'?"),
        ("POST", "/rollback", {"revision": 99}, "llmgw ctl history"),
        ("GET", "/explain/placement/org/lama", None, "did you mean 'org/llama'?"),
        ("GET", "/explain/node/node-9", None, "node-1, node-2"),
        ("PUT", "/nodes/node-9/target", {"target": "cordoned"}, "did you mean 'node-"),
        ("GET", "/nodes/node-9/drain", None, "did you mean 'node-"),
        ("GET", "/nodes/node-1/drain", None, "llmgw ctl drain node-1"),
        ("GET", "/explain/drain/node-9", None, "did you mean 'node-"),
        ("POST", "/replicas/org-llama-9/move", {}, "did you mean 'org-llama-"),
        ("POST", "/replicas/org-llama-1/move", {"to": ["node-9"]}, "did you mean 'node-"),
        ("POST", "/replicas/org-llama-9/purge", {}, "did you mean 'org-llama-"),
        ("GET", "/explain/gpu/node-9/0", None, "node-1, node-2"),
        ("GET", "/explain/gpu/node-1/7", None, "0 (GPU-a0), 1 (GPU-a1)"),
        ("GET", "/explain/gpu/node-1/GPU-a", None, "0 (GPU-a0), 1 (GPU-a1)"),
        ("DELETE", "/invitations/nope", None, "there are"),
    ],
)
async def test_what_is_not_there_is_404_and_a_hint(full, method, path, body, hint):
    status, answer = await say(full, method, path, body)

    assert (status, answer["error"]["code"]) == (404, "not_found")
    assert hint in answer["error"]["hint"]


@pytest.mark.parametrize(
    ("method", "path", "body", "says"),
    [
        ("POST", "/invitations", {"valid_s": "1h"}, "valid_s must be a number"),
        ("POST", "/invitations", {"valid_s": True}, "valid_s must be a number"),
        ("POST", "/invitations", {"valid_s": 0}, "up to a year"),
        ("POST", "/invitations", {"valid_s": 1e12}, "up to a year"),
        ("POST", "/invitations", {"uses_max": -1}, "up to a year"),
        ("POST", "/invitations", {"uses_max": 1.5}, "uses_max must be a whole number"),
        ("POST", "/invitations", {"uses": 1}, "unknown field 'uses'"),
        ("POST", "/invitations", {"why": 1}, "why must be text"),
        ("POST", "/nodes/node-1/lost", {"because": "x"}, "unknown field 'because'"),
        ("POST", "/nodes/node-1/lost", [], "must be a JSON object"),
        ("POST", f"/restart/{MODEL}", {"why": None}, "why must be text"),
        ("PUT", "/nodes/node-1/target", {}, "target is missing"),
        ("PUT", "/nodes/node-1/target", {"target": "gone"}, "target must be one of schedulable, cordoned, drained"),
        ("PUT", "/nodes/node-1/target", {"target": ["cordoned"]}, "target must be one of"),
        ("PUT", "/nodes/node-1/target", {"target": "drained", "grace": "1h"}, "grace must be a number of seconds"),
        ("PUT", "/nodes/node-1/target", {"target": "drained", "grace": 0}, "grace must be a number of seconds"),
        ("PUT", "/nodes/node-1/target", {"target": "drained", "grace": 1e300}, "grace must be a number of seconds"),
        ("PUT", "/nodes/node-1/target", {"target": "drained", "at_deadline": "kill"}, "at_deadline must be one of"),
        ("PUT", "/nodes/node-1/target", {"target": "cordoned", "grace": 5}, "grace and at_deadline are of drains"),
        ("PUT", "/nodes/node-1/target", {"target": "drained", "dry_run": 1}, "dry_run must be true or false"),
        ("PUT", "/nodes/node-1/target", {"target": "cordoned", "dry_run": True}, "dry_run is of drains, and cordoned"),
        ("PUT", "/endpoints/a/target", {"target": "schedulable", "dry_run": True}, "and schedulable is none"),
        ("PUT", "/nodes/node-1/target", {"target": "drained", "why": "x"}, "unknown field 'why'"),
        ("POST", "/replicas/org-llama-1/move", {"to": "node-2"}, "to must be a list of at most 64 nodes"),
        ("POST", "/replicas/org-llama-1/move", {"to": [1]}, "to must be a list of at most 64 nodes"),
        ("POST", "/replicas/org-llama-1/move", {"cancel": 1}, "cancel must be true or false"),
        ("POST", "/replicas/org-llama-1/move", {"cancel": True, "to": ["node-2"]}, "cancel takes back a move"),
        ("POST", "/rollback", {}, "revision must be a number"),
        ("POST", "/rollback", {"revision": True}, "revision must be a number"),
        ("POST", "/rollback", {"revision": "1"}, "revision must be a number"),
        ("PUT", f"/models/{MODEL}/scale", {}, "replicas must be a whole number"),
        ("PUT", f"/models/{MODEL}/scale", {"replicas": False}, "replicas must be a whole number"),
        ("PUT", f"/models/{MODEL}/scale", {"replicas": 1.0}, "replicas must be a whole number"),
        ("PUT", f"/models/{MODEL}/scale", {"replicas": -1}, "no number of replicas"),
        ("PUT", f"/models/{MODEL}/scale", {"replicas": 10**6}, "no number of replicas"),
        ("GET", "/replicas/org-llama-1/logs?bytes=0", None, "bytes must be a whole number from 1"),
        ("GET", "/replicas/org-llama-1/logs?bytes=99999999", None, "bytes must be a whole number from 1"),
        ("GET", "/replicas/org-llama-1/logs?shard=-1", None, "shard must be a whole number from 0"),
        ("GET", "/decisions?limit=0", None, "limit must be a whole number"),
        ("GET", "/history?limit=many", None, "limit must be a whole number"),
        ("GET", f"/explain/placement/{MODEL}?what_if=gpus", None, "supposes nothing"),
        ("GET", f"/explain/placement/{MODEL}?what_if=gpus=x", None, "makes no sense"),
        ("GET", f"/explain/placement/{MODEL}?what_if=without node-9", None, "there is no node 'node-9'"),
    ],
)
async def test_what_makes_no_sense_is_400_and_says_what_would(full, method, path, body, says):
    status, answer = await say(full, method, path, body)

    assert status == 400
    assert says in answer["error"]["message"]


# -- nodes ---------------------------------------------------------------------------------------------------


async def test_a_node_is_told_with_its_gpus_in_three_numbers_and_what_speaks_against_them(full):
    _, answer = await say(full, "GET", "/nodes/node-1")

    node = answer["node"]
    first, second = node["gpus"]
    assert [first[f"{what}_mib"] for what in ("claimed", "ours", "foreign", "free", "total")] == [
        8192, 7168, 2048, 14336, 24576,
    ]  # fmt: skip
    assert first["claims"] == [{"instance": node["shards"][0], "mib": 8192, "exclusive": True}]
    assert (second["usable"], [e["clears"] for e in second["evidence"]]) == (False, ["a reboot of the node"])
    assert node["gpu_memory"] == {"total_mib": 49152, "claimed_mib": 8192, "ours_mib": 7168, "foreign_mib": 2048}
    assert node["orphans"] == [{"id": "old.g1.r0", "pids": [4, 5], "why": "no record of it"}]
    assert (node["state"], node["healthy"], node["labels"]) == ("ready", False, {"rack": "a"})


async def test_only_what_is_wrong_is_listed_when_that_is_asked(full):
    both = (await say(full, "GET", "/nodes"))[1]["nodes"]
    ill = (await say(full, "GET", "/nodes", unhealthy="true"))[1]["nodes"]

    assert ([n["name"] for n in both], [n["name"] for n in ill]) == (["node-1", "node-2"], ["node-1"])
    assert both[1]["nothing_lands_because"] == "full: 1 of 1 GPUs claimed"


async def test_a_node_whose_driver_says_nothing_is_not_healthy(full):
    node = full.plane.cluster.registry.nodes["node-2"]
    host = replace(node.report.host, driver="it has not answered for 9 s")
    node.report = replace(node.report, host=host)

    ill = (await say(full, "GET", "/nodes", unhealthy="1"))[1]["nodes"]

    assert [(n["name"], n["driver"]) for n in ill][1:] == [("node-2", "it has not answered for 9 s")]


async def test_a_removed_node_is_gone_and_the_act_is_audited(full):
    status, answer = await say(full, "DELETE", "/nodes/node-2", role=OPERATOR, why="sold")

    assert (status, answer["node"]["name"]) == (200, "node-2")
    assert "credential" not in answer["node"]
    assert [n["name"] for n in (await say(full, "GET", "/nodes"))[1]["nodes"]] == ["node-1"]
    [act] = (await say(full, "GET", "/audit", limit=1))[1]["audit"]
    assert (act["who"], act["what"], act["subject"], act["why"]) == ("some-operator", "nodes.remove", "node-2", "sold")


async def test_a_node_that_is_given_up_is_lost_at_once_and_that_is_an_event(full):
    assert (await say(full, "POST", "/nodes/node-2/lost", {"why": "fire"}))[0] == 200

    assert (await say(full, "GET", "/nodes/node-2"))[1]["node"]["state"] == "lost"
    events = (await say(full, "GET", "/events", kind="node.lost"))[1]["events"]
    assert [e["sentence"] for e in events] == ["node-2 was given up by some-admin: fire"]
    assert full.plane.cluster.changed.is_set()


async def test_an_invitation_is_shown_once_listed_by_its_id_and_revoked(full):
    status, made = await say(full, "POST", "/invitations", {"valid_s": 60, "uses_max": 2, "why": "rack b"})

    assert (status, made["server"]) == (201, "10.0.0.1:7443")
    assert made["token"].startswith(f"llmgw-join-{made['record']['id']}-")
    listed = (await say(full, "GET", "/invitations"))[1]["invitations"]
    assert made["record"] in listed
    assert made["token"].split("-")[3] not in json.dumps(listed), "its secret"
    status, gone = await say(full, "DELETE", f"/invitations/{made['record']['id']}")
    assert (status, gone["record"]["revoked_at"] is not None) == (200, True)


async def test_without_a_ca_nobody_is_invited(full):
    full.plane.joining._ca = lambda: ""

    assert code(await say(full, "POST", "/invitations", {})) == (409, "no_ca")


# -- replicas ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "names"),
    [("", ["org-llama-1", "org-llama-2"]), (MODEL, ["org-llama-1", "org-llama-2"]), ("org-llama-2", ["org-llama-2"])],
)
async def test_replicas_are_of_all_of_a_model_or_one_by_its_name(full, model, names):
    found = (await say(full, "GET", "/replicas", model=model))[1]["replicas"]

    assert [one["name"] for one in found] == names
    [shard] = found[-1]["shards"]
    assert (found[-1]["state"], shard["state"], shard["ports"]) == ("ready", "ready", {"http": 20002})


async def test_a_model_that_has_no_replica_yet_is_there(desk):
    desk.plane.desired.take([WANT])

    assert await say(desk, "GET", "/replicas", model=MODEL) == (200, {"replicas": []})


async def test_the_node_s_silence_leaves_the_tail_that_was_kept_and_its_age(full):
    name = next(row.name for row in full.plane.cluster.rows.values() if row.shards[0].node == "node-1")

    _, told = await say(full, "GET", f"/replicas/{name}/logs")

    assert (told["text"], told["node"]) == (LOG, "node-1")
    assert told["age_s"] >= 2
    assert "has no link" in told["error"]


async def test_a_log_is_asked_of_its_node_as_long_as_it_was_asked_for(full):
    asked = []

    class Link:
        linked_at = 0.0

        def ask(self, question):
            asked.append(question)
            node.answered(Logs(question.ask, "fresh\n", 250))

    node = full.plane.cluster.registry.nodes["node-2"]
    node.link = Link()
    name = next(row.name for row in full.plane.cluster.rows.values() if row.shards[0].node == "node-2")

    _, told = await say(full, "GET", f"/replicas/{name}/logs", bytes=17)

    assert told == {"instance": asked[0].instance, "node": "node-2", "text": "fresh\n", "age_s": 0.2, "error": ""}
    assert asked[0].bytes == 17


async def test_a_restart_asks_for_replacements_and_waits_for_none(full):
    status, answer = await say(full, "POST", f"/restart/{MODEL}", {"why": "stuck"}, role=OPERATOR)

    assert (status, answer) == (202, {"replicas": ["org-llama-1", "org-llama-2"]})
    rows = full.plane.cluster.rows.values()
    assert {row.leave_why for row in rows} == {"restart asked by some-operator: stuck"}
    assert {row.phase for row in rows} == {Phase.WANTED}, "a replacement comes first"


async def test_a_model_is_scaled_and_set_back(full):
    path = f"/models/{MODEL}/scale"

    up = await say(full, "PUT", path, {"replicas": 3, "why": "a demo"})
    back = await say(full, "PUT", path, {"replicas": None})

    assert up == (200, {"model": MODEL, "replicas": 3, "scaled": 3, "min": 2, "max": 2})
    assert (back[1]["replicas"], back[1]["scaled"]) == (2, None)
    told = (await say(full, "GET", "/events", kind="model.scaled"))[1]["events"]
    assert [one["sentence"] for one in told] == [
        f"{MODEL} is scaled to 3 by some-admin",
        f"{MODEL} has 2 again, as is written, says some-admin",
    ]


async def test_nobody_scales_over_the_written_max(full):
    full.plane.desired.take([evolve(WANT, most=4)])

    assert code(await say(full, "PUT", f"/models/{MODEL}/scale", {"replicas": 5})) == (409, "over_max")


# -- revisions, decisions, explanations ----------------------------------------------------------------------


async def test_history_names_models_and_not_what_was_written_of_them(full):
    await full.plane.desired.record([{"name": "m", "endpoints": [{"api_key": "sk-secret"}]}], "ann", "trial", "f.toml")

    _, answer = await say(full, "GET", "/history", limit=1)

    [latest] = answer["revisions"]
    assert (latest["revision"], latest["models"], latest["why"]) == (2, ["m"], "trial")
    assert "sk-secret" not in json.dumps(answer)


async def test_a_rollback_is_audited_whether_it_came_off_or_not(full):
    status, answer = await say(full, "POST", "/rollback", {"revision": 1, "why": "worse"}, role=OPERATOR)
    assert (status, answer["revision"], answer["changes"]) == (200, 2, ["models of revision 1"])

    services = full.services()
    refusing = evolve(services, cluster=evolve(services.cluster, roll_back=_refuse))
    assert code(await say(full, "POST", "/rollback", {"revision": 1}, app=full.app(refusing))) == (422, "config")

    acts = (await say(full, "GET", "/audit", limit=2))[1]["audit"]
    assert [(a["what"], a["subject"], a["why"]) for a in acts] == [
        ("config.rollback", "refused", ""),
        ("config.rollback", "revision 2", "worse"),
    ]


async def _refuse(to, by, why):
    return Applied(problems=("models: too old to be read",))


async def test_decisions_are_the_latest_first_of_a_replica_or_a_model(full):
    every = (await say(full, "GET", "/decisions"))[1]["decisions"]
    of_one = (await say(full, "GET", "/decisions", subject="org-llama-1"))[1]["decisions"]
    of_model = (await say(full, "GET", "/decisions", subject=MODEL, limit=1))[1]["decisions"]

    assert [one["id"] for one in every] == sorted((one["id"] for one in every), reverse=True)
    assert {one["subject"] for one in of_one} == {"org-llama-1"}
    assert [one["id"] for one in of_model] == [every[0]["id"]]


async def test_a_placement_is_told_as_it_was_decided(full):
    _, told = await say(full, "GET", "/explain/placement/org-llama-1")

    assert told["verdict"].startswith("goes to node-")
    assert told["because"][-1]["text"] == "decided"
    assert told["decided_at"]


async def test_a_supposed_world_is_asked_anew_with_every_card_and_numbers(full):
    _, told = await say(full, "GET", f"/explain/placement/{MODEL}", what_if="gpu_memory=23GiB, without node-2")

    reasons = {one["name"]: one["reasons"] for one in told["candidates"]}
    assert told["verdict"].startswith("no node fits")
    assert list(reasons) == ["node-1", "node-1 GPU 0 (H200, GPU-a0)", "node-1 GPU 1 (H200, GPU-a1)"]
    assert "needs 23.0 GiB, free 14.0 (claimed 8.0, foreign 2.0)" in reasons["node-1 GPU 0 (H200, GPU-a0)"]


@pytest.mark.parametrize("which", ["1", "GPU-a1"])
async def test_a_gpu_is_explained_by_index_or_uuid(full, which):
    _, told = await say(full, "GET", f"/explain/gpu/node-1/{which}")

    assert told["verdict"] == "excluded: nothing new lands here"
    assert told["would_change_it"] == ["a reboot of the node"]


async def test_a_gpu_of_a_node_that_was_not_heard_yet_is_not_said_to_be_missing(full):
    full.plane.registry.nodes.clear()
    status, told = await say(full, "GET", "/explain/gpu/node-1/0")
    assert (status, told["error"]["code"]) == (409, "refused")
    assert told["error"]["message"] == "node-1 has not reported since this control plane began to lead"


async def test_a_silent_node_is_unreachable_and_its_replica_unknown(full, autojump_clock):
    await trio.sleep(6)
    reports(full.plane, "node-1")

    assert (await say(full, "GET", "/nodes/node-2"))[1]["node"]["state"] == "unreachable"
    states = {one["state"] for one in (await say(full, "GET", "/replicas"))[1]["replicas"]}
    assert states == {"ready", "unknown"}
    _, told = await say(full, "GET", "/explain/node/node-2")
    assert "llmgw ctl nodes lost node-2" in " ".join(told["would_change_it"])
