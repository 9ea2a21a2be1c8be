"""How each screen looks, at the smallest and at a usual size: drawn as text, and compared with what was agreed on.

``REDRAW=1 pytest tests/console/test_screens.py`` draws them anew; the difference is for people to read.
"""

import os
import time
from pathlib import Path

import pytest
from rich.cells import cell_len

from tests.console.scenes import Scene, played

DRAWN = Path(__file__).parent / "screens"
SIZES = [(80, 24), (160, 48)]
SCREENS = {
    "overview": (),
    "nodes": (":nodes",),
    "node": (":node node-3",),
    "gpu": (":node node-1", "enter"),
    "models": (":models", "down"),
    "replicas": (":replicas",),
    "replica": (":replica demo-model-3",),
    "placement": (":placement demo-model",),
    "queues": (":queues",),
    "requests": (":requests",),
    "recent": (":requests", "r"),
    "latest": (":requests", "r", "r"),
    "events": (":events",),
    "drains": (":drains",),
    "leader": (":leader",),
    "help": (":nodes", "question_mark"),
    "dialog": (":drain node-1",),
    "filter": (":nodes", "slash", "n", "o", "d", "e", "minus", "3"),
}


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_looks_as_agreed(name, size):
    agreed = DRAWN / f"{name}-{size[0]}x{size[1]}.txt"

    async def story(scene: Scene) -> None:
        for keys in SCREENS[name]:
            await scene.say(keys)
        drawn = scene.text() + "\n"
        assert all(cell_len(line) <= size[0] for line in drawn.splitlines())
        if os.environ.get("REDRAW"):
            agreed.parent.mkdir(exist_ok=True)
            agreed.write_text(drawn, encoding="utf-8")
        assert drawn == agreed.read_text(encoding="utf-8")

    played(story, size)


def test_no_screen_is_left_that_nobody_draws():
    expected = {f"{name}-{width}x{height}.txt" for name in SCREENS for width, height in SIZES}
    assert {file.name for file in DRAWN.iterdir()} == expected
