"""Keys that come in one piece, as over a slow link, do what they would do one by one."""

from collections.abc import Sequence

import pytest
from textual import events
from textual.widget import Widget
from textual.widgets import Button, Input

from console.acts import Act
from console.screens.dialog import Dialog
from tests.console import answers
from tests.console.scenes import Scene, played


def the_dialog(scene: Scene) -> Act:
    dialogs = [screen for screen in scene.app.screen_stack if isinstance(screen, Dialog)]
    assert len(dialogs) == 1, "none, or one over another"
    return dialogs[0].act


@pytest.mark.parametrize(
    ("keys", "subjects"),
    [
        (("D",), ["node-1"]),
        (("j", "c"), ["node-2"]),
        (("j", "j", "k", "D"), ["node-2"]),
        (("down", "D"), ["node-2"]),
        (("G", "c"), ["node-10"]),
        (("G", "g", "D"), ["node-1"]),
        (("space", "j", "space", "c"), ["node-1", "node-3"]),
    ],
)
def test_an_act_is_for_the_row_where_the_keys_before_it_led(keys: Sequence[str], subjects: Sequence[str]) -> None:
    async def story(scene: Scene) -> None:
        await scene.say(":nodes")
        await scene.press("g")
        await scene.burst(*keys)
        assert sorted(the_dialog(scene).subjects) == sorted(subjects)

    played(story)


def test_what_is_typed_behind_an_act_is_for_its_dialog() -> None:
    async def story(scene: Scene) -> None:
        await scene.say(":nodes")
        await scene.burst("c", *"quiet bug fumes due: D")
        assert the_dialog(scene).verb.name == "cordon"
        assert scene.app.screen.query_one("#why", Input).value == "quiet bug fumes due: D"
        assert scene.api.changes() == []
        await scene.press("escape")
        assert len(scene.app.screen_stack) == 3

    played(story)


def test_a_tab_leads_on_before_what_comes_behind_it() -> None:
    async def story(scene: Scene) -> None:
        await scene.say(":nodes")
        await scene.burst("D", *"abc", "tab", *"5min")
        values = scene.app.screen.values  # type: ignore[attr-defined]
        assert (values["why"], values["grace"]) == ("abc", "5min")

    played(story)


def test_a_place_is_there_before_the_keys_behind_its_line() -> None:
    async def story(scene: Scene) -> None:
        await scene.burst(*":nodes", "enter", "g", "j", "D")
        assert the_dialog(scene).subjects == ("node-2",)

    played(story)


def test_a_paste_comes_behind_the_key_before_it() -> None:
    async def story(scene: Scene) -> None:
        await scene.say(":nodes")
        scene.app.post_message(events.Key("c", "c"))
        scene.app.post_message(events.Paste("from elsewhere"))
        await scene.settle()
        assert scene.app.screen.query_one("#why", Input).value == "from elsewhere"

    played(story)


def test_a_key_whose_way_is_lost_holds_the_others_up_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.widgets.in_turn.LOST_S", 0.0)

    async def story(scene: Scene) -> None:
        await scene.say(":nodes")
        focused = scene.app.focused
        assert focused is not None
        monkeypatch.setattr(Widget, "post_message", lambda self, message: True)  # and it never comes
        await scene.app.on_event(events.Key("g", "g"))
        await scene.app.on_event(events.Key("D", "D"))
        monkeypatch.undo()
        assert not scene.app.at_rest
        await scene.app.give_up_what_is_lost()
        await scene.settle()
        assert the_dialog(scene).verb.name == "drain"

    played(story)


@pytest.mark.parametrize("over_it", [":cordon node-1", "question_mark"])
def test_the_place_behind_a_dialog_does_not_grow_old(over_it: str) -> None:
    async def story(scene: Scene) -> None:
        await scene.say(over_it)
        assert "stale" not in scene.text()
        scene.app.model.lost("refused", 190.0)
        scene.app._draw()
        await scene.pilot.pause()
        assert "stale: no answer for 10 s" in scene.text()

    played(story, size=(120, 40))


def test_lines_that_are_pasted_into_a_field_are_all_taken() -> None:
    async def story(scene: Scene) -> None:
        await scene.say(":cordon node-1")
        scene.app.post_message(events.Paste("fans are loud\nsince noon\n"))
        await scene.settle()
        assert scene.app.screen.query_one("#why", Input).value == "fans are loud since noon"

    played(story)


def test_a_dry_run_is_asked_again_while_somebody_decides() -> None:
    async def story(scene: Scene) -> None:
        await scene.say(":drain node-1")
        assert "node-2" in scene.text()
        scene.api.answers["PUT", "/nodes/"] = {**answers.DRY_RUN, "refused": "it has become full there"}
        dialog = scene.app.screen
        assert isinstance(dialog, Dialog)
        dialog._try_again()
        await scene.settle()
        assert "it has become full there" in scene.text()
        assert scene.app.screen.query_one("#yes", Button).variant == "error"

    played(story)


def test_the_keys_of_the_help_move_it() -> None:
    async def story(scene: Scene) -> None:
        await scene.say(":nodes")
        await scene.press("question_mark")
        assert "Acts, each" in scene.text()
        await scene.press("G")
        assert "Acts, each" not in scene.text()
        await scene.press("g")
        assert "Acts, each" in scene.text()

    played(story)


def click(scene: Scene, x: int, y: int) -> None:
    for kind in (events.MouseDown, events.MouseUp):
        scene.app.post_message(kind(None, x, y, 0, 0, 1, False, False, False, x, y))


def row_of(scene: Scene, name: str) -> int:
    return next(y for y, line in enumerate(scene.text().splitlines()) if f" {name} " in line)


@pytest.mark.parametrize(("steps", "subject"), [(("c", "click", "D"), "node-1"), (("click", "c"), "node-2")])
def test_clicks_and_keys_mean_what_they_mean_one_by_one(steps: Sequence[str], subject: str) -> None:
    async def story(scene: Scene) -> None:
        await scene.say(":nodes")
        second = row_of(scene, "node-2")
        await scene.press("g")
        for step in steps:
            if step == "click":
                click(scene, 5, second)
            else:
                scene.app.post_message(events.Key(step, step))
        await scene.settle()
        assert the_dialog(scene).subjects == (subject,)

    played(story)


def test_enter_leads_to_the_next_field_before_what_comes_behind_it() -> None:
    async def story(scene: Scene) -> None:
        await scene.say(":nodes")
        await scene.burst("D", "x", "enter", *"5min", "enter")
        values = scene.app.screen.values  # type: ignore[attr-defined]
        assert (values["why"], values["grace"]) == ("x", "5min")

    played(story)


def test_what_a_click_leads_to_is_there_before_the_keys_behind_it() -> None:
    async def story(scene: Scene) -> None:
        await scene.press("g")
        y = next(y for y, line in enumerate(scene.text().splitlines()) if line.startswith("nodes "))
        click(scene, 10, y)
        scene.app.post_message(events.Key("g", "g"))
        scene.app.post_message(events.Key("c", "c"))
        await scene.settle()
        assert the_dialog(scene).subjects == ("node-1",)

    played(story)
