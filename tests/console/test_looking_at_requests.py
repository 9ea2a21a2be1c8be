"""How the requests are gone through: those that run, those that went wrong, all that have ended, and one of them."""

from console.shown import Place
from console.views.requests import detail
from tests.console import answers
from tests.console.scenes import Scene, model, played

OLD = {**answers.RECENT, "id": "req_a", "at": answers.WALL - 100}
NEW = {**answers.RECENT, "id": "req_b", "at": answers.WALL - 1}


def ended():
    made = model()
    made.take_live("latest", {"requests": [OLD, NEW]}, now=100.0)
    return made


def test_one_key_goes_through_running_failed_and_all_and_only_what_is_seen_is_asked_for():
    async def story(scene: Scene) -> None:
        await scene.say(":requests demo-model")
        seen = []
        for _ in range(4):
            seen.append((str(scene.app.way[-1]), set(scene.app._measured)))
            await scene.press("r")
        assert seen == [
            ("requests demo-model", {"running"}),
            ("recent demo-model", {"recent"}),
            ("latest demo-model", {"latest"}),
            ("requests demo-model", {"running"}),
        ]

    played(story)


def test_the_newest_stands_on_top_and_enter_explains_it():
    async def story(scene: Scene) -> None:
        await scene.say(":requests")
        await scene.press("r", "r")
        assert [row.key for row in scene.app.screen.table.rows] == ["req_b", "req_a"]
        await scene.press("enter")
        assert scene.app.way[-1] == Place("request", scene.app.way[-1].subject)
        assert ("GET", f"/requests/{scene.app.way[-1].subject}/explanation", {}) in scene.api.asked
        assert "chosen by load" in scene.text()

    played(story, made=ended())


def test_a_request_by_its_id_is_explained_though_no_table_has_it():
    async def story(scene: Scene) -> None:
        await scene.say(":requests req_gone")
        assert scene.app.way[-1] == Place("request", "req_gone")
        assert "chosen by load" in scene.text()

    played(story)


def test_one_that_has_ended_is_not_shown_as_running_any_more():
    running = {**answers.RUNNING, "id": answers.RECENT["id"]}
    made = model()
    made.take_live("running", {"requests": [running]}, now=100.0)
    (told,) = detail(made.picture, "", running["id"], {})
    assert "ok after 78 ms" in str(told)
