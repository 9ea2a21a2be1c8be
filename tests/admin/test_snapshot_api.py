"""What a console asks first and again: the snapshot, what passes, who it is."""

import json

import pytest

from llmgw.control.node_views import nodes_json
from llmgw.core.drain import AtDeadline, Target
from llmgw.core.identity import Role
from llmgw.core.lease_facts import Addresses
from llmgw.core.outcome import Outcome
from tests.admin.desk import ask
from tests.populated import ANN, populated

GW1 = Addresses("gw-1", "http://gw-1:7440", "https://gw-1:7442", "gw-1:7443")


async def told(desk, path, role=Role.VIEWER):
    answer = await ask(desk.app(), "GET", f"/admin/v1{path}", desk.bearer(role) if role else None)
    return answer, json.loads(await answer.get_data(as_text=True))


# -- the snapshot --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["nodes", "replicas", "models", "drains"])
async def test_a_snapshot_says_what_each_route_says(desk, part, autojump_clock):
    await populated(desk.plane)
    await desk.plane.targets.aim(ANN, "node-1", Target.DRAINED, at_deadline=AtDeadline.KEEP)

    _, whole = await told(desk, "/snapshot")
    _, alone = await told(desk, f"/{part}")

    assert whole[part] == alone[part]
    assert whole[part], "there is something to compare"


async def test_a_snapshot_says_who_asks_and_how_the_leader_stands(desk):
    _, whole = await told(desk, "/snapshot", Role.OPERATOR)

    assert whole["you"] == {"name": "some-operator", "role": "operator"}
    assert (whole["status"], whole["leader"]) == ({"ready": True}, {"role": "leading", "term": "0.7"})
    assert (whole["at"], whole["hold"]) == (1_000_000.0, "")


async def test_what_is_told_after_a_snapshots_number_is_news(desk):
    last = [desk.plane.events.tell("node.back", "node-1", "node-1 is back").seq for _ in range(3)][-1]

    _, whole = await told(desk, "/snapshot")

    assert whole["seq"] == last


async def test_why_a_leader_doubts_itself_is_in_the_snapshot(desk, autojump_clock):
    await populated(desk.plane)
    desk.plane.cluster.store_away = "the store does not answer"

    _, whole = await told(desk, "/snapshot")

    assert "store" in whole["hold"]


async def test_a_standbys_snapshot_has_its_age_and_counts_no_further_than_it_has_read(desk):
    """It would go on counting where the leader before it began to; the leader's own numbers may be lower."""
    desk.standby_of = GW1
    heard = desk.plane.events.tell("node.back", "node-1", "node-1 is back").seq
    desk.plane.events.last = heard + 1000

    answer, whole = await told(desk, "/snapshot")

    assert (answer.headers["x-llmgw-leader"], answer.headers["x-llmgw-age"]) == ("https://gw-1:7442", "0.2")
    assert whole["seq"] == heard


@pytest.mark.parametrize("path", ["/snapshot", "/traffic", "/whoami"])
async def test_none_of_it_is_for_strangers(desk, path):
    answer, _ = await told(desk, path, None)

    assert answer.status_code == 401


@pytest.mark.parametrize("role", list(Role))
async def test_whoever_has_a_token_may_ask_whose_it_is(desk, role):
    _, said = await told(desk, "/whoami", role)

    assert said == {"name": f"some-{role}", "role": str(role)}


async def test_a_node_that_goes_while_they_are_told_one_by_one_is_left_out(desk):
    await populated(desk.plane)
    nodes = nodes_json(desk.plane.cluster)
    first = next(nodes)
    await desk.plane.joining.remove(ANN, "node-2", "it was sold")

    assert [first["name"], *(one["name"] for one in nodes)] == ["node-1"]


# -- what passes ---------------------------------------------------------------------------------------------


def ended(desk, outcome, status, tenant="t", model="llama", ttft_s=None, prompt=0, completion=0):
    desk.metrics.requests(tenant, model).ended(outcome.label, status, 1.0, ttft_s, prompt, completion, 0)


async def test_traffic_is_counted_by_model_over_all_tenants(desk):
    for tenant in ("a", "b"):
        ended(desk, Outcome.OK, 200, tenant, ttft_s=0.3, prompt=10, completion=4)
    ended(desk, Outcome.OK, 200, "a", "qwen", completion=1)

    _, said = await told(desk, "/traffic")

    assert [one["model"] for one in said["models"]] == ["llama", "qwen"]
    llama = said["models"][0]
    assert (llama["requests"], llama["prompt_tokens"], llama["completion_tokens"]) == (2, 20, 8)
    assert (sum(llama["ttft_counts"]), said["since"]) == (2, 999_000.0)
    assert len(llama["ttft_counts"]) == len(said["ttft_bounds_s"]) + 1
    assert llama["ttft_counts"][said["ttft_bounds_s"].index(0.5)] == 2


@pytest.mark.parametrize(
    ("outcome", "status", "failed", "refused"),
    [
        (Outcome.OK, 200, 0, 0),
        (Outcome.ENGINE_BROKE, 200, 1, 0),  # in the middle of a stream
        (Outcome.ENGINE_UNREACHABLE, 502, 1, 0),
        (Outcome.NO_ENDPOINT, 503, 1, 0),
        (Outcome.INTERNAL, 500, 1, 0),
        (Outcome.QUEUE_FULL, 503, 0, 1),
        (Outcome.WAITED_TOO_LONG, 504, 0, 1),
        (Outcome.RATE_LIMITED, 429, 0, 1),
        (Outcome.CLIENT_GONE, 499, 0, 0),
        (Outcome.CANCELLED, 503, 0, 0),  # by an operator
        (Outcome.MODEL_NOT_FOUND, 404, 0, 0),
        (Outcome.ENGINE_REFUSED, 400, 0, 0),
    ],
)
async def test_what_broke_is_told_apart_from_what_was_turned_away_and_from_clients_mistakes(
    desk, outcome, status, failed, refused
):
    ended(desk, outcome, status)

    _, said = await told(desk, "/traffic")

    [llama] = said["models"]
    assert (llama["requests"], llama["failed"], llama["refused"]) == (1, failed, refused)
