"""What the admin API says of pools and queues, and to whom."""

import pytest
import trio
from attrs import evolve

from llmgw.core.identity import Role
from tests.admin.desk import ask


async def get(desk, path, role=Role.VIEWER, app=None):
    answer = await ask(app or desk.app(), "GET", f"/admin/v1{path}", desk.bearer(role) if role else None)
    return answer.status_code, await answer.get_json()


async def test_pools_and_queues_are_listed_for_a_viewer(desk):
    assert await get(desk, "/pools") == (200, {"pools": [{"model": "llama"}]})
    queues = {"bands": [{"band": "gold", "waiting": 3}], "queues": [{"model": "llama", "band": "gold"}]}
    assert await get(desk, "/queues") == (200, queues)
    assert await get(desk, "/queues?model=llama") == (200, queues)


@pytest.mark.parametrize("path", ["/pools?model=lama", "/queues?model=lama", "/explain/queue/lama"])
async def test_a_model_nobody_answers_to_is_404_and_the_nearest_is_named(desk, path):
    status, answer = await get(desk, path)

    assert (status, answer["error"]["code"]) == (404, "not_found")
    assert answer["error"]["hint"] == "did you mean 'llama'?"


@pytest.mark.parametrize("path", ["/pools", "/queues", "/explain/queue/llama"])
async def test_nobody_sees_them_without_a_token(desk, path):
    status, answer = await get(desk, path, role=None)

    assert (status, answer["error"]["code"]) == (401, "token")


@pytest.mark.parametrize("model", ["llama", "meta/llama", "meta%2Fllama"])
async def test_a_queue_is_explained_with_its_sentence_whatever_the_model_is_called(desk, model):
    status, said = await get(desk, f"/explain/queue/{model}")

    assert (status, said["verdict"]) == (200, "answered by a")
    assert said["sentence"].startswith("request req-1: answered by a, because")


async def test_many_tenants_do_not_hold_the_loop(desk):
    """Between two pools others run."""
    seen: list[int] = []
    ran = 0

    def queues(model):
        for _ in range(5):
            seen.append(ran)
            yield [{"model": "m"}]

    async def others():
        nonlocal ran
        while True:
            ran += 1
            await trio.lowlevel.checkpoint()

    app = desk.app(evolve(desk.services(), queues=queues))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        status, answer = await get(desk, "/queues", app=app)
        nursery.cancel_scope.cancel()

    assert (status, len(answer["queues"])) == (200, 5)
    assert seen[-1] >= seen[0] + 3
