"""A console's model that follows gateways of a test, and what a test waits for."""

import asyncio
from contextlib import asynccontextmanager, suppress

from console.feed import following
from console.feed.api import AdminApi
from console.feed.following import Following, Over
from console.model import Model
from tests.console.gateways import WITHIN_S


def hurry(monkeypatch):
    """Nobody waits a second in a test."""
    for name, seconds in {"SNAPSHOT_S": 0.01, "LIVE_S": 0.01, "PAUSE_S": 0.01, "PAUSE_MAX_S": 0.02}.items():
        monkeypatch.setattr(following, name, seconds)


class Console:
    def __init__(self, *gateways, token="secret"):
        self.model, self.news = Model(), asyncio.Event()
        self.pictures = []
        self.following = Following(
            AdminApi([one.url for one in gateways], token), self.model, self._changed, asyncio.get_running_loop().time
        )

    @property
    def picture(self):
        return self.model.picture

    def _changed(self):
        self.pictures.append(self.picture)
        self.news.set()

    async def until(self, so):
        async with asyncio.timeout(WITHIN_S):
            while not so(self.picture):
                self.news.clear()
                await self.news.wait()


@asynccontextmanager
async def following_them(*gateways, **more):
    console = Console(*gateways, **more)
    task = asyncio.create_task(console.following.run())
    try:
        yield console
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, Over):
            async with asyncio.timeout(WITHIN_S):
                await task


def run(story):
    asyncio.run(asyncio.wait_for(story, 2 * WITHIN_S))


def named(*names):
    return [{"name": name, "state": "ready"} for name in names]
