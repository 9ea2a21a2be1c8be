"""What keys do: where they lead, what they send, and what they never send without a yes."""

import asyncio

import pytest
from attrs import define, field
from textual.widgets import Button, Input

from console.acts import VERBS, Act
from console.feed.api import Away, Refused
from console.screens.dialog import Dialog
from console.shown import Place
from tests.console import answers
from tests.console.scenes import SNAPSHOT, Api, Scene, model, played, usual

VIEWER = {"name": "vic", "role": "viewer"}


@define
class Hung(Api):
    """Takes changes and answers none."""

    said: asyncio.Event = field(kw_only=True)

    async def ask(self, method, path, params=None, body=None):
        if method == "GET":
            return await super().ask(method, path, params, body)
        self.said.set()
        return await asyncio.get_running_loop().create_future()


def here(scene: Scene) -> Place:
    return scene.app.way[-1]


def test_enter_leads_from_nodes_to_requests_and_escape_all_the_way_back():
    async def story(scene: Scene) -> None:
        await scene.say(":nodes")
        way = []
        for _ in range(4):
            await scene.press("enter")
            way.append(here(scene))
        assert way == [
            Place("node", "node-1"), Place("gpu", "node-1/GPU-node-1-0"), Place("replica", "demo-model-3"),
            Place("requests", "demo-model-3"),
        ]  # fmt: skip
        for _ in range(6):
            await scene.press("escape")
        assert here(scene) == Place("overview")

    played(story)


def test_a_place_on_the_way_is_gone_back_to_and_not_stacked_again():
    async def story(scene: Scene) -> None:
        for line in (":nodes", ":models", ":nodes"):
            await scene.say(line)
        assert list(scene.app.way) == [Place("overview"), Place("nodes")]

    played(story)


def test_what_is_wrong_leads_to_where_it_is():
    async def story(scene: Scene) -> None:
        lines = scene.app.screen.query_one("Lines")
        while lines.place != Place("gpu", "node-3/GPU-node-3-0"):
            await scene.press("down")
        await scene.press("enter")
        assert here(scene) == Place("gpu", "node-3/GPU-node-3-0")
        assert "fallen off the bus" in scene.text()
        assert "clears: a reboot of the node" in scene.text()

    played(story)


# -- acts --------------------------------------------------------------------------------------------------


def test_a_drain_shows_what_it_would_do_and_is_sent_after_a_yes_alone():
    async def story(scene: Scene) -> None:
        await scene.say(":nodes")
        await scene.press("D")
        assert "demo-model-3 → node-2" in scene.text()
        await scene.type("new fans")
        await scene.press("enter")
        await scene.type("10min")
        assert scene.api.changes() == []
        scene.app.screen.query_one("#yes", Button).press()
        await scene.settle()
        body = {"target": "drained", "reason": "new fans", "grace": 600.0}
        assert scene.api.changes() == [("PUT", "/nodes/node-1/target", body)]

    api = usual()
    api.answers["PUT", "/nodes/"] = {**answers.DRY_RUN, "said": "node-1 is draining", "confirmed": True}
    played(story, size=(100, 30), api=api)


def test_no_and_escape_send_nothing():
    async def story(scene: Scene) -> None:
        await scene.say(":nodes")
        await scene.press("c")
        assert isinstance(scene.app.screen, Dialog)
        scene.app.screen.query_one("#no", Button).press()
        await scene.settle()
        await scene.press("c", "escape")
        assert not isinstance(scene.app.screen, Dialog)
        assert scene.api.changes() == []

    played(story)


def test_marked_nodes_are_done_one_after_another_and_one_that_is_refused_keeps_none_from_it():
    async def story(scene: Scene) -> None:
        await scene.say(":nodes")
        await scene.press("space", "space", "c")
        assert "Cordon node-1, node-2" in scene.text()
        scene.app.screen.query_one("#yes", Button).press()
        await scene.settle()
        assert [path for _, path, _ in scene.api.changes()] == ["/nodes/node-1/target", "/nodes/node-2/target"]
        assert "node-1: it is being removed" in scene.text()
        assert "wait for it" in scene.text()
        assert "node-2 is cordoned" in scene.text()

    api = usual()
    api.answers["PUT", "/nodes/node-1"] = Refused("it is being removed", "wait for it", "refused", 409)
    api.answers["PUT", "/nodes/node-2"] = {"said": "node-2 is cordoned", "confirmed": True}
    played(story, size=(100, 30), api=api)


def test_nobody_is_asked_after_an_address_that_is_away():
    async def story(scene: Scene) -> None:
        await scene.say(":nodes")
        await scene.press("space", "space", "c")
        scene.app.screen.query_one("#yes", Button).press()
        await scene.settle()
        assert [path for _, path, _ in scene.api.changes()] == ["/nodes/node-1/target"]

    api = usual()
    api.answers["PUT", "/nodes/"] = Away("nobody answers")
    played(story, api=api)


def test_a_request_is_cancelled_after_a_confirmation():
    async def story(scene: Scene) -> None:
        await scene.say(":requests")
        await scene.press("x")
        assert answers.RUNNING["id"] in scene.text()
        assert scene.api.changes() == []
        scene.app.screen.query_one("#yes", Button).press()
        await scene.settle()
        assert scene.api.changes() == [("DELETE", f"/requests/{answers.RUNNING['id']}", {"why": ""})]

    played(story, size=(100, 30))


def test_a_field_that_can_not_be_sent_is_named_and_nothing_is_sent():
    async def story(scene: Scene) -> None:
        await scene.say(":drain node-1")
        scene.app.screen.query_one("#grace", Input).value = "soon"
        scene.app.screen.query_one("#yes", Button).press()
        await scene.settle()
        assert "grace is 'soon'" in scene.text()
        assert scene.api.changes() == []

    played(story)


@pytest.mark.parametrize(("you", "read_only"), [(VIEWER, False), (SNAPSHOT["you"], True)])
def test_a_viewer_is_offered_no_act_by_key_hint_or_command(you, read_only):
    async def story(scene: Scene) -> None:
        await scene.say(":nodes")
        await scene.press("c", "u", "D")
        assert "cordon" not in scene.text().splitlines()[-1]
        await scene.say(":drain node-1")
        assert not isinstance(scene.app.screen, Dialog)
        assert ("this console is read-only" if read_only else "it is for operators") in scene.text()
        assert scene.api.changes() == []

    played(story, size=(120, 30), made=model(you=you), read_only=read_only)


# -- tables ------------------------------------------------------------------------------------------------


def test_a_filter_is_taken_away_by_escape_before_the_place_is_left():
    async def story(scene: Scene) -> None:
        await scene.say(":nodes")
        await scene.press("slash")
        await scene.type("node-3")
        await scene.press("enter")
        assert [row.key for row in scene.app.screen.table.rows] == ["node-3"]
        await scene.press("escape")
        assert len(scene.app.screen.table.rows) == 4
        assert here(scene) == Place("nodes")

    played(story)


def test_faults_only_shows_the_sick_node_and_marks_stay_with_their_rows():
    async def story(scene: Scene) -> None:
        await scene.say(":nodes")
        await scene.press("down", "down", "space", "f")
        assert [row.key for row in scene.app.screen.table.rows] == ["node-3"]
        assert scene.app.screen.table.marks == {"node-3"}

    played(story)


def test_the_order_is_turned_and_another_column_sorts():
    async def story(scene: Scene) -> None:
        await scene.say(":nodes")
        await scene.press("!")
        assert [row.key for row in scene.app.screen.table.rows] == ["node-10", "node-3", "node-2", "node-1"]
        await scene.press("greater_than_sign")
        assert scene.app.screen.table.sight.sort == 1

    played(story)


def test_the_cursor_stays_with_its_row_when_the_picture_changes():
    async def story(scene: Scene) -> None:
        await scene.say(":nodes")
        await scene.press("down")
        gone = {**SNAPSHOT, "seq": 40, "nodes": [one for one in SNAPSHOT["nodes"] if one["name"] != "node-1"]}
        scene.app.model.take_snapshot(gone, now=150.0)
        await scene.settle()
        assert scene.app.screen.table.key == "node-2"

    played(story)


def test_the_mouse_opens_a_row_that_is_clicked_again_and_sorts_by_a_title():
    async def story(scene: Scene) -> None:
        await scene.say(":nodes")
        await scene.pilot.click("#table", offset=(12, 0))
        assert scene.app.screen.table.sight.sort == 1
        await scene.pilot.click("#table", offset=(4, 2))
        await scene.pilot.click("#table", offset=(4, 2))
        await scene.settle()
        assert here(scene).kind == "node"

    played(story)


def test_tab_completes_a_command():
    async def story(scene: Scene) -> None:
        await scene.press("colon")
        await scene.type("drain node-1")
        await scene.press("tab", "tab")
        assert scene.app.screen.query_one("#command", Input).value == ":drain node-10"

    played(story)


def test_keys_right_behind_a_command_are_for_the_place_that_it_leads_to():
    async def story(scene: Scene) -> None:
        await scene.type(":nodes\nf")
        await scene.settle()
        assert here(scene) == Place("nodes")
        assert scene.app.screen.table.sight.faults_only

    played(story)


# -- events ------------------------------------------------------------------------------------------------


def test_events_stand_still_while_they_are_held_and_lead_to_their_subject():
    async def story(scene: Scene) -> None:
        await scene.say(":events")
        await scene.press("space")
        scene.app.model.take_event({**answers.EVENTS[0], "seq": 40, "sentence": "news"})
        await scene.settle()
        assert "news" not in scene.text()
        assert "1 more since" in scene.text()
        await scene.press("space")
        assert "news" in scene.text()
        await scene.press("up", "enter")
        assert here(scene) == Place("gpu", "node-1/GPU-node-1-0")

    played(story)


def test_events_are_filtered_by_what_they_say():
    async def story(scene: Scene) -> None:
        await scene.say(":events")
        await scene.press("slash")
        await scene.type("xid")
        await scene.press("enter")
        assert [row.key for row in scene.app.screen.table.rows] == ["33"]

    played(story)


# -- what may come -----------------------------------------------------------------------------------------


def test_names_with_markup_and_control_characters_are_shown_and_harmless():
    async def story(scene: Scene) -> None:
        await scene.say(":replicas")
        assert "[red]GPUs[/red]" in scene.text()
        assert "\x1b" not in scene.text()

    played(story, size=(160, 48))


def test_a_link_that_is_down_is_told_with_since_when():
    async def story(scene: Scene) -> None:
        scene.app.model.lost("connection refused", now=190.0)
        await scene.settle()
        assert "stale: no answer for 10 s, trying again: connection refused" in scene.text()
        scene.app.model.linked("http://127.0.0.1:7443")
        await scene.settle()
        assert "stale" not in scene.text()

    played(story)


def test_a_leader_that_doubts_itself_is_told_on_every_screen():
    async def story(scene: Scene) -> None:
        assert "DOUBTS ITSELF" in scene.text()
        await scene.say(":nodes")
        assert "doubts itself and stops nothing: 3 of 4 nodes are silent" in scene.text()

    played(story, made=model(hold="3 of 4 nodes are silent"))


def test_what_if_is_asked_with_what_was_typed():
    async def story(scene: Scene) -> None:
        await scene.say(":placement demo-model")
        await scene.press("w")
        await scene.type("gpus=2")
        await scene.press("enter")
        asked = [params for _, path, params in scene.api.asked if path == "/explain/placement/demo-model"]
        assert asked == [{}, {"what_if": "gpus=2"}]
        assert "what if gpus=2" in scene.text()

    played(story)


def test_a_reason_that_is_longer_than_the_screen_is_folded_and_not_cut():
    long = "xid 119: its system processor does not answer; clears: a reset of the GPU, a reboot, or an operator"
    node, gpu = answers.UNPLACED["candidates"][:2]

    async def story(scene: Scene) -> None:
        await scene.say(":placement demo-model")
        assert long in " ".join(scene.text().replace("│", "").replace("├", "").replace("└", "").split())
        assert all(not line.endswith("▍") for line in scene.text().splitlines())

    api = usual()
    api.answers["GET", "/explain/placement/"] = {**answers.UNPLACED, "candidates": [node, {**gpu, "reasons": [long]}]}
    played(story, api=api)


def test_what_is_not_there_is_said_and_no_failure():
    async def story(scene: Scene) -> None:
        for line in (":node nowhere", ":replica nobody", ":placement nothing", ":requests nobody"):
            await scene.say(line)
        assert "no request runs" in scene.text()

    api = usual()
    api.answers["GET", "/explain/placement/"] = Refused("no model is called that", "llmgw ctl models", "not_found", 404)
    played(story, api=api)


@pytest.mark.parametrize("options", [{"theme": "high-contrast"}, {}])
def test_it_is_told_without_colours_too(options, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")

    async def story(scene: Scene) -> None:
        await scene.say(":nodes")
        sick = next(line for line in scene.text().splitlines() if "node-3" in line)
        assert sick.startswith("!")

    played(story, **options)


@pytest.mark.parametrize("size", [(20, 6), (40, 10), (300, 100)])
def test_any_size_can_be_drawn(size):
    async def story(scene: Scene) -> None:
        for line in (":nodes", ":queues", ":events", ":leader", ":placement demo-model", ":drain node-1"):
            await scene.say(line)
        await scene.pilot.resize_terminal(80, 24)
        await scene.settle()

    played(story, size=size)


def test_a_failure_of_the_console_is_one_line_and_shows_no_value_of_what_it_knew(monkeypatch):
    monkeypatch.delenv("LLMGW_DEBUG", raising=False)
    apps = []

    async def story(scene: Scene) -> None:
        apps.append(scene.app)
        scene.app.screen.draw = lambda picture: 1 / 0
        scene.app.model.linked("http://127.0.0.1:7443")
        while scene.app.is_running:
            await scene.pilot.pause(0.01)

    with pytest.raises(ZeroDivisionError):  # as a test is told of it
        played(story)
    assert apps[0].return_value.startswith("the console failed: ZeroDivisionError: division by zero; LLMGW_DEBUG=1")


def test_a_button_shows_a_name_as_it_is_and_closes_once_all_is_done():
    async def story(scene: Scene) -> None:
        scene.app.act(Act(VERBS["cordon"], (r"node-[b]x\[y",)))
        await scene.settle()
        assert r"Yes, cordon node-[b]x\[y" in scene.text()
        scene.app.screen.query_one("#yes", Button).press()
        await scene.settle()
        assert str(scene.app.screen.query_one("#no", Button).label) == "Close"

    played(story, size=(120, 30))


def test_while_a_change_is_not_answered_that_is_said_and_what_stops_waiting_says_what_is_not_known():
    async def story(scene: Scene) -> None:
        await scene.say(":nodes")
        await scene.press("c")
        scene.app.screen.query_one("#yes", Button).press()
        await asked.wait()
        await scene.pilot.pause()
        assert "asked for node-1, no answer yet" in scene.text()
        await scene.pilot.press("enter")  # one more than was meant
        assert isinstance(scene.app.screen, Dialog)
        await scene.pilot.press("escape")
        await scene.pilot.pause()
        assert not isinstance(scene.app.screen, Dialog)
        assert "Cordon was asked for node-1 and not answered" in " ".join(scene.text().split())

    asked = asyncio.Event()
    played(story, size=(160, 40), api=Hung(usual().answers, said=asked))


def test_marks_are_gone_once_the_act_they_were_for_is_answered():
    async def story(scene: Scene) -> None:
        await scene.say(":nodes")
        await scene.press("space")
        assert "1 marked: acts are about these" in scene.text()
        await scene.press("c")
        scene.app.screen.query_one("#yes", Button).press()
        await scene.settle()
        await scene.press("escape")
        assert scene.app.screen.table.marks == set()

    played(story)


def test_a_scale_tells_how_many_there_are_and_what_nothing_at_all_means():
    async def story(scene: Scene) -> None:
        await scene.say(":scale demo-model")
        assert "2 serve, 2 wanted (as the config says)" in scene.text()
        await scene.type("0")
        assert "0 ends every replica" in scene.text()

    played(story)


def test_a_drain_tells_the_grace_that_it_has_unless_another_is_given():
    async def story(scene: Scene) -> None:
        await scene.say(":drain node-1")
        assert "drain.grace is 45min" in scene.text()

    api = usual()
    api.answers["GET", "/config"] = {"drain": {"grace": "45min"}}
    played(story, size=(100, 30), api=api)


def test_taking_all_of_a_line_away_leaves_an_empty_line_and_another_key_ends_it():
    async def story(scene: Scene) -> None:
        await scene.type(":nodes")
        await scene.press("ctrl+u")
        line = scene.app.screen.query_one("#command", Input)
        assert (line.display, line.value) == (True, ":")
        await scene.press("backspace")
        assert not line.display

    played(story)


def test_a_filter_over_events_that_are_held_leaves_them_held():
    async def story(scene: Scene) -> None:
        await scene.say(":events")
        await scene.press("space")
        scene.app.model.take_event({**answers.EVENTS[0], "seq": 40, "sentence": "xid news"})
        await scene.press("slash")
        await scene.type("xid")
        await scene.press("enter")
        assert [row.key for row in scene.app.screen.table.rows] == ["33"]
        assert "held still, 1 more since" in scene.text()

    played(story)


def test_a_dialog_begins_with_the_first_field_that_is_empty():
    async def story(scene: Scene) -> None:
        await scene.say(":scale demo-model 3")
        assert scene.app.focused.id == "why"
        await scene.press("escape")
        await scene.say(":scale demo-model")
        assert scene.app.focused.id == "replicas"

    played(story)
