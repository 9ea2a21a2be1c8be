"""What of a table is seen where a terminal has little room."""

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from console.shown import Column
from console.views import nodes, replicas, requests
from console.views.fitting import cut_in_the_middle, padded
from tests.console import answers
from tests.console.scenes import Scene, model, played


def test_at_80_cells_replicas_and_requests_can_be_told_apart():
    async def story(scene: Scene) -> None:
        await scene.say(":replicas")
        assert "demo-model-3 " in scene.text()
        assert "demo-model-4 " in scene.text()
        await scene.say(":requests")
        told = scene.app.screen.table
        assert [line.text.lstrip("! ").split()[0][-6:] for line in (told.render_line(1), told.render_line(2))] == [
            one["id"][-6:] for one in (answers.RUNNING, answers.QUEUED)
        ]

    played(story)


def test_the_last_column_is_whole_when_the_rows_first_outgrow_the_table():
    async def story(scene: Scene) -> None:
        await scene.say(":requests")
        table, running = scene.app.screen.table, [{**answers.RUNNING, "id": f"r-{n}"} for n in range(60)]
        assert not table.show_vertical_scrollbar
        scene.app.model.take_live("running", {"requests": running[:2]}, now=150.0)
        scene.app.screen.draw(scene.app.model.picture)
        before = table._widths
        scene.app.model.take_live("running", {"requests": running}, now=151.0)
        scene.app.screen.draw(scene.app.model.picture)
        assert table._widths == before
        await scene.pilot.pause()  # drawn once, and not again
        assert table.show_vertical_scrollbar
        drawn = [line for line in scene.text().splitlines() if "demo-model-4.g5" in line][:5]
        assert all(line.rstrip("▁▂▃▄▅▆▇█ ").endswith("55") for line in drawn)
        assert drawn

    played(story)


def test_rows_are_seen_before_the_pane_in_a_very_low_terminal():
    async def story(scene: Scene) -> None:
        await scene.say(":nodes")
        assert "node-1" in scene.text()
        assert not scene.app.screen.query_one("#detail").display

    played(story, size=(40, 10), made=model())


def test_the_pane_is_there_again_at_a_usual_height():
    async def story(scene: Scene) -> None:
        await scene.say(":nodes")
        assert scene.app.screen.query_one("#detail").display

    played(story, size=(80, 24))


def test_two_numbers_stand_two_cells_apart_and_a_click_still_finds_its_column():
    async def story(scene: Scene) -> None:
        await scene.say(":nodes")
        head = scene.app.screen.table.render_line(0).text
        assert "1  700 ms" in scene.text()
        await scene.pilot.click("#table", offset=(head.index("HEARD") + 1, 0))
        assert scene.app.screen.table.sight.sort == 5

    played(story)


def test_a_marked_row_still_shows_its_fault():
    async def story(scene: Scene) -> None:
        await scene.say(":nodes")
        await scene.press("f", "space")
        assert "\n●!node-" in scene.text()
        await scene.press("up", "space")
        assert "●" not in scene.text()
        assert "\n! node-" in scene.text()

    played(story)


def test_what_tells_rows_apart_is_marked_so():
    marked = [[column.title for column in one if column.identifies] for one in (nodes.NODES, replicas.REPLICAS)]
    assert marked == [["NODE"], ["REPLICA"]]
    assert all(one[0].middle for one in (requests.RUNNING, requests.RECENT))


def test_a_name_is_cut_in_its_middle():
    assert cut_in_the_middle("req_c5e2b03e97590042", 11) == "req_c…90042"
    assert cut_in_the_middle("short", 11) == "short"
    assert padded("demo-model-12", 9, middle=True) == "demo…l-12"


@given(st.text(alphabet="ab-界é1", max_size=40), st.integers(0, 30))
def test_what_is_cut_in_its_middle_fits(text: str, width: int):
    assert cell_len(cut_in_the_middle(text, width)) <= width
    assert cell_len(padded(text, width, middle=True)) == width


def test_gpus_of_a_node_that_can_be_used_do_not_read_as_used():
    assert Column("GPUS OK", right=True) in nodes.NODES
