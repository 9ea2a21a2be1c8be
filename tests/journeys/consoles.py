"""An operator at a console of a real cluster: keys are pressed, the screen is read, and what comes is waited for.

The console runs in a loop of its own; what is done to the cluster meanwhile is done in threads beside it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from attrs import define, field
from textual.events import Key
from textual.pilot import Pilot

from console.app import Console
from console.feed.api import AdminApi, Answer, Refused
from console.feed.following import Following
from console.model import Model, Picture
from console.screens.listing import ListingScreen
from console.shown import Place
from console.widgets.lines import Lines
from tests.journeys.clustering import LONG_S, Cluster

WIDE = (160, 48)
BETWEEN_S = 0.05  # two looks
TABS_MAX = 10
# What is measured, and differs from one look to the next; a span of time besides.
MEASURED = frozenset({"in_flight", "saturation", "memory_mib", "free_mib", "utilisation", "power_w", "seen_at"})
Json = Mapping[str, Any]


class Heard(AdminApi):
    """Remembers what it was refused, by HTTP's status."""

    def __init__(self, urls: Sequence[str], token: str) -> None:
        super().__init__(urls, token)
        self.refusals: list[int] = []

    async def answer(self, *asked: Any, **more: Any) -> Answer:
        try:
            return await super().answer(*asked, **more)
        except Refused as refusal:
            self.refusals.append(refusal.status)
            raise


@define(eq=False)
class Seat:
    """Before a console's screen and keys."""

    app: Console
    api: Heard
    _pilot: Pilot[Any] = field(init=False)

    # -- keys --------------------------------------------------------------------------------------------

    async def press(self, *keys: str) -> None:
        await self._pilot.press(*keys)

    async def type(self, text: str) -> None:
        """Faster than anything is drawn."""
        for char in text:
            self.app.post_message(Key(char, char))
        await self._pilot.pause()

    async def say(self, command: str) -> None:
        await self.press("colon")
        await self.type(command.removeprefix(":"))
        await self.press("enter")

    async def follow(self, place: Place) -> None:
        """With the cursor to the line that leads there, the last ones first, and Enter."""
        lines = self.app.screen.query_one(Lines)
        await self.press("end")
        while lines.place != place:
            before = lines.cursor
            await self.press("up")
            assert lines.cursor != before, f"nothing leads to {place}:\n{self.screen()}"
        await self.press("enter")
        assert self.here == place

    async def yes(self) -> None:
        """Tab leads to the button, and Enter is its yes."""
        for _ in range(TABS_MAX):
            if self.app.focused is not None and self.app.focused.id == "yes":
                break
            await self.press("tab")
        await self.press("enter")

    # -- what is seen --------------------------------------------------------------------------------------

    @property
    def here(self) -> Place:
        return self.app.way[-1]

    @property
    def picture(self) -> Picture:
        return self.app.model.picture

    def rows(self) -> list[str]:
        """Of the table in sight, by key."""
        assert isinstance(self.app.screen, ListingScreen)
        return [row.key for row in self.app.screen.table.rows]

    def screen(self) -> str:
        strips = self.app.screen._compositor.render_strips()
        return "\n".join("".join(part.text for part in strip).rstrip() for strip in strips)

    def reads(self, *words: str) -> bool:
        """Whether all of that is on the screen, wherever its lines are folded."""
        text = " ".join(self.screen().split())
        return all(" ".join(one.split()) in text for one in words)

    # -- waiting -------------------------------------------------------------------------------------------

    async def until(self, condition: Callable[[], object], within_s: float = LONG_S) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, f"not within {within_s:g} s:\n{self.screen()}"
            await self._pilot.pause(BETWEEN_S)

    async def until_read(self, *words: str, within_s: float = LONG_S) -> None:
        deadline = time.monotonic() + within_s
        while not self.reads(*words):
            missing = [one for one in words if not self.reads(one)]
            assert time.monotonic() < deadline, f"{missing} not within {within_s:g} s:\n{self.screen()}"
            await self._pilot.pause(BETWEEN_S)

    async def until_true(self, cluster: Cluster, within_s: float = LONG_S) -> None:
        """What is shown is what a fresh console would show, but for what is measured."""
        deadline = time.monotonic() + within_s
        while differing := _differing(self.picture, await asyncio.to_thread(fresh, cluster)):
            assert time.monotonic() < deadline, "\n".join(differing)
            await self._pilot.pause(BETWEEN_S)


Story = Callable[[Seat], Awaitable[None]]


def at_console(story: Story, urls: Sequence[str], token: str, size: tuple[int, int] = WIDE) -> None:
    """Opens it as ``llmgw console`` does; what fails in the story fails the test."""

    async def sit() -> None:
        api, model = Heard(urls, token), Model()
        following = Following(api, model, lambda: None)
        seat = Seat(Console(model, api.ask, following.run, following.watching), api)
        async with seat.app.run_test(size=size, notifications=True) as seat._pilot:
            await seat.until(lambda: seat.picture.known)
            await story(seat)

    asyncio.run(sit())


# -- the same thing twice ---------------------------------------------------------------------------------


def fresh(cluster: Cluster) -> Picture:
    """Of a console that has just been opened."""
    model = Model()
    model.take_snapshot(cluster.get("/snapshot"), time.monotonic())
    for event in cluster.events():
        model.take_event(event)
    return model.picture


def _differing(one: Picture, other: Picture) -> list[str]:
    """Of events it may remember more: a control plane that is killed takes with it what it had not written yet."""
    left, right = _facts(one), _facts(other)
    for gone in [path for path in left.keys() - right.keys() if path.startswith("events/")]:
        del left[gone]
    nothing = object()
    paths = sorted(path for path in left.keys() | right.keys() if left.get(path, nothing) != right.get(path, nothing))
    return [f"{path}: {left.get(path, 'nothing')} is shown, {right.get(path, 'nothing')} is true" for path in paths]


def _facts(picture: Picture) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("nodes", "replicas", "models", "drains"):
        _collect(name, getattr(picture, name), found)
    return found | {f"events/{one['seq']}": one["sentence"] for one in picture.events}


def _collect(path: str, value: Any, found: dict[str, Any]) -> None:
    """Each leaf by its path; of what is empty the path alone."""
    parts = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else None
    if parts is None:
        found[path] = value
        return
    found[path] = type(value).__name__
    for key, below in parts:
        if not (key in MEASURED or str(key).endswith("_s")):
            _collect(f"{path}/{key}", below, found)
