"""A console on a cluster of values: what the management API would answer is written down, and no clock moves."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Any
from unittest.mock import MagicMock

from attrs import define, field
from textual import events
from textual.pilot import Pilot
from werkzeug.routing import MapAdapter

from console.app import Console
from console.feed.api import Refused
from console.model import LIVE, Model
from llmgw.admin.app import make_app
from llmgw.admin.services import AppSettings
from tests.console import answers

SICK_GPU = {**answers.GPU, "usable": False, "evidence": [answers.EVIDENCE]}
SICK_NODE = {
    **answers.NODE_2, "name": "node-3", "gpus": [{**SICK_GPU, "uuid": "GPU-node-3-0"}], "healthy": False,
    "nothing_lands_because": "no GPU is usable: 1 excluded", "heard_age_s": 1.2,
}  # fmt: skip
CORDONED = {
    **answers.NODE_2, "name": "node-10", "state": "cordoned", "nothing_lands_because": "cordoned",
    "target": {"target": "cordoned", "by": "bob", "at": answers.WALL - 300, "why": "new fans 新しい"},
}  # fmt: skip
STRANGE = {
    **answers.REPLICA, "name": "wide-模型-1", "model": "wide-模型", "state": "waiting", "serving": False,
    "in_pool": False, "why": "no node fits: 2 with [red]GPUs[/red] claimed, 1 cordoned\x1b[31m", "shards": [],
}  # fmt: skip
BLOCKED_MODEL = {
    **answers.MODEL, "name": "wide-模型", "usable": 0, "endpoints": 0, "in_flight": 0, "saturation": None,
    "replicas": {
        **answers.MODEL["replicas"], "desired": 1, "min": 1, "max": 1, "serving": 0, "live": 0,
        "states": {"waiting": 1}, "blocked": ["no node fits: 2 with GPUs claimed, 1 cordoned"],
    },
}  # fmt: skip
LOG = {
    "instance": "demo-model-3.g4.r0", "node": "node-1", "age_s": 3.0, "error": "",
    "text": "loading weights\nCUDA graphs captured\nlistening on http://127.0.0.1:21051\n",
}  # fmt: skip

SNAPSHOT: dict[str, Any] = {
    "seq": 33, "at": answers.WALL, "you": {"name": "ada", "role": "operator"}, "hold": "", "status": answers.STATUS,
    "leader": answers.LEADER, "models": [answers.MODEL, BLOCKED_MODEL], "drains": [answers.DRAIN],
    "nodes": [answers.NODE, answers.NODE_2, SICK_NODE, CORDONED],
    "replicas": [answers.REPLICA, answers.REPLICA_2, STRANGE],
}  # fmt: skip
LIVES: dict[str, dict[str, Any]] = {
    "pools": {"pools": [answers.POOL]},
    "queues": {"bands": answers.SEATS, "queues": [answers.WAITING_QUEUE, *answers.QUEUES[2:]]},
    "running": {"requests": [answers.RUNNING, answers.QUEUED]},
    "recent": {"requests": [answers.NOT_FOUND, answers.BROKE, answers.RECENT]},
    "latest": {"requests": [answers.RECENT, answers.NOT_FOUND]},
}
Answer = Mapping[str, Any] | Exception
Call = tuple[str, str, Any]


def explanation(verdict: str) -> dict[str, Any]:
    return {
        "subject": "it", "verdict": verdict, "because": [{"text": "it was seen", "age_s": 2.0}], "candidates": [],
        "would_change_it": [], "next_command": "llmgw ctl nodes", "sentence": "",
    }  # fmt: skip


@cache
def _routes() -> MapAdapter:
    """Those of the real management API; nothing answers there."""
    return make_app(MagicMock(), AppSettings("127.0.0.1")).url_map.bind("admin")


def is_served(method: str, path: str) -> None:
    """Raises werkzeug's NotFound or MethodNotAllowed: what the double answers, nobody else would."""
    _routes().match(f"/admin/v1{path}", method)


@define
class Api:
    """Answers by method and the beginning of a path, the longest first; what is asked besides is refused."""

    answers: dict[tuple[str, str], Answer] = field(factory=dict)
    asked: list[Call] = field(factory=list)

    async def ask(self, method: str, path: str, params: Any = None, body: Any = None) -> Mapping[str, Any]:
        self.asked.append((method, path, body if body is not None else dict(params or {})))
        is_served(method, path)
        fitting = [key for key in self.answers if key[0] == method and path.startswith(key[1])]
        if not fitting:
            raise Refused(f"nothing at {path}", "", "not_found", 404)
        answer = self.answers[max(fitting, key=lambda key: len(key[1]))]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def changes(self) -> list[Call]:
        return [call for call in self.asked if call[0] != "GET" and not (call[2] or {}).get("dry_run")]


def usual() -> Api:
    return Api({
        ("GET", "/explain/placement/"): answers.UNPLACED,
        ("GET", "/explain/"): explanation("it is as it should be"),
        ("GET", "/requests/"): explanation("chosen by load"),
        ("GET", "/replicas/"): LOG,
        ("PUT", "/nodes/"): answers.DRY_RUN,
        ("POST", "/leader/resign"): {"resigned": "0.1", "stays_out_s": 10},
        ("DELETE", "/requests/"): {"cancelled": answers.RUNNING["id"]},
    })  # fmt: skip


def model(**changes: Any) -> Model:
    """``changes``: to the snapshot."""
    made = Model()
    made.linked("http://127.0.0.1:7442")
    made.take_snapshot({**SNAPSHOT, **changes}, now=100.0)
    for event in answers.EVENTS:
        made.take_event(event)
    for name in LIVE:
        if name in LIVES:
            made.take_live(name, LIVES[name], now=100.0)
    return made


async def _idle() -> None:
    await asyncio.Event().wait()


@define
class Scene:
    app: Console
    pilot: Pilot[Any]
    api: Api

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.settle()

    async def settle(self) -> None:
        """Everything that was typed has come through, that was asked is answered and drawn."""
        await self.pilot.pause()
        while not self.app.at_rest:
            await self.pilot.pause()
        screen = self.app.screen
        if asking := [worker for worker in self.app.workers if worker.group in ("asked", "dry", "do")]:
            await self.app.workers.wait_for_complete(asking)
        await self.pilot.pause()
        if hasattr(screen, "redraw") and screen is self.app.screen:
            screen.redraw()
            await self.pilot.pause()

    async def say(self, keys: str) -> None:
        """A key, or a whole command line that begins with a colon."""
        if not keys.startswith(":"):
            await self.press(keys)
            return
        await self.type(keys)
        await self.press("enter")

    async def type(self, text: str) -> None:
        """As quickly as a paste: no key waits for the one before it to be done with."""
        await self.burst(*text)

    async def burst(self, *keys: str) -> None:
        """Keys that come in one piece: characters, or names of keys."""
        for key in keys:
            self.app.post_message(events.Key(NAMES.get(key, key), key if len(key) == 1 else None))
        await self.settle()

    def text(self) -> str:
        strips = self.app.screen._compositor.render_strips()
        return "\n".join("".join(part.text for part in strip).rstrip() for strip in strips)


NAMES = {
    " ": "space", "-": "minus", "/": "slash", "=": "equals_sign", ":": "colon", "_": "underscore", ".": "full_stop",
    "\n": "enter",
}  # fmt: skip


def played(
    story: Callable[[Scene], Awaitable[None]],
    size: tuple[int, int] = (80, 24),
    api: Api | None = None,
    made: Model | None = None,
    **options: Any,
) -> None:
    """Runs the console with this story of keys; what fails in it fails the test."""

    async def run() -> None:
        on = api or usual()
        app = Console(made or model(), on.ask, _idle, set(), clock=lambda: 200.0, rests_s=0, **options)
        async with app.run_test(size=size, notifications=True) as pilot:
            scene = Scene(app, pilot, on)
            await scene.settle()
            await story(scene)

    asyncio.run(run())
