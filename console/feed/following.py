"""Keeps a model like the cluster: a snapshot, the event feed from there on, live measurements, and again after a loss.

One link at a time: where any part of it fails, all of it ends, and the next begins with a snapshot.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any, NoReturn

from attrs import define, field

from console.feed.api import AdminApi, Answer, Away, Refused
from console.model import EVENTS_MAX, Model
from llmgw.wire.event_feed import FeedReader, NotEvents, Told

# Between two: where one is wanted, and where nothing happens. Ages are as old as the latest; only the control plane
# knows whether one has gone on, as a node that was heard again has a new one.
SNAPSHOT_S, SNAPSHOT_MOST_S = 1.0, 3.0
LIVE_S, LIVE_WITHIN_S = 1.0, 4.0
REMEMBERED = 500  # events for the log, at first
RUNNING, RECENT = 500, 100  # requests
PAUSE_S, PAUSE_MAX_S = 0.2, 5.0
STEADY_S = 5.0  # a link that has held so long was a good one
MISSED = "missed"
STILL_THERE_S = 2.0  # for one that did not answer something else
UNKNOWN_TOKEN, NOT_THERE = (401, 403), 404
MISSHAPEN = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)  # an answer, to who reads it
ALWAYS = {"pools": "/pools", "queues": "/queues", "traffic": "/traffic"}

Json = Mapping[str, Any]


class Over(Exception):
    """Nothing more can be shown; for the operator."""


class _Anew(Exception):
    """Another link is wanted, though somebody answers."""


@define(eq=False)
class Following:
    """``run`` it. ``watching``: what is asked for too, of "running", "recent", "latest". ``changed``: the model has."""

    api: AdminApi
    model: Model
    changed: Callable[[], None]
    clock: Callable[[], float] = time.monotonic
    watching: set[str] = field(factory=set, init=False)
    _at: int = field(default=0, init=False)  # number of the latest event
    _cluster: str = field(default="", init=False)
    _taken_at: float = field(default=0.0, init=False)

    async def run(self) -> NoReturn:
        """Raises Over."""
        pause_s = PAUSE_S
        self.model.asks(", ".join(self.api.addresses.order), self.clock())
        self.changed()
        try:
            while True:
                began = self.clock()
                try:
                    why = await self._one_link()
                except Refused as refusal:
                    why = _unless_final(refusal, self.model.picture.known)
                except Away as away:
                    why = away.why
                if why:
                    self.model.lost(why, self.clock())
                    self.changed()
                pause_s = PAUSE_S if self.clock() - began >= STEADY_S else pause_s
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
                pause_s = min(PAUSE_MAX_S, pause_s * 2)
        finally:
            await self.api.close()

    async def _one_link(self) -> str:
        """Why it has ended; empty: somebody else answers. Raises Refused, Away, Over."""
        first = await self._snapshot()
        if first.age_s is None:
            await self._remember(first)
        failed: BaseExceptionGroup[Exception] | None = None
        try:
            await asyncio.create_task(self._parts(first))
        except* (Away, Refused, Over, _Anew) as group:
            failed = group
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise asyncio.CancelledError  # where a part has failed in the same moment, its failure came instead
        [reason, *_] = sorted(_leaves(failed), key=lambda one: not isinstance(one, Over))
        if isinstance(reason, _Anew):
            return ""
        raise reason

    async def _parts(self, first: Answer) -> None:
        """In a task of its own: a group marks the one that it is in as cancelled, as who ends that one does."""
        async with asyncio.TaskGroup() as parts:
            parts.create_task(self._snapshots(first))
            parts.create_task(self._measure(first))
            if first.age_s is None:  # a standby has no feed
                parts.create_task(self._listen())

    # -- the snapshot ------------------------------------------------------------------------------------

    async def _snapshot(self) -> Answer:
        answer = await self.api.answer("GET", "/snapshot")
        said, now = answer.value, self.clock()
        _understood(self._is_ours, answer)
        counts = _understood(self.model.take_snapshot, said, now, answer.age_s)
        if not counts and answer.age_s is None:
            raise Away(f"{answer.url} leads, and is behind what was seen before")
        if counts:
            self.model.heard(now)
        self._taken_at = now
        _understood(self._learn, said)
        if not counts:
            self.model.lost(f"who leads does not answer, and {answer.url} stands by", now)
        elif self.model.picture.link.url != answer.url or self.model.picture.link.down_since is not None:
            self.model.linked(answer.url)
        self.changed()
        return answer

    async def _snapshots(self, first: Answer) -> NoReturn:
        """As often as they are wanted. Where a leader has come or gone, the link is another one."""
        while True:
            await asyncio.sleep(SNAPSHOT_S)
            if self.model.outdated or self.clock() - self._taken_at >= SNAPSHOT_MOST_S or first.age_s is not None:
                answer = await self._snapshot()
                if (answer.age_s is None) != (first.age_s is None):
                    raise _Anew

    def _is_ours(self, answer: Answer) -> None:
        id = str(answer.value["status"].get("cluster_id", ""))
        self._cluster = self._cluster or id
        if id == self._cluster:
            return
        why = f"{answer.url} is cluster {id}, and what was shown is cluster {self._cluster}"
        if not self.api.addresses.is_strange(answer.url):
            raise Over(f"{why}; one console shows one cluster")
        self.api.addresses.forget(answer.url)
        raise Away(why)

    def _learn(self, said: Json) -> None:
        """Where else to ask, should this one end: whoever leads, and those that stand by."""
        leader = said["leader"]
        for one in (leader.get("leader"), *(leader.get("standbys") or ())):
            admin = ((one or {}).get("addresses") or {}).get("admin")
            if admin:
                self.api.addresses.learn(str(admin))

    # -- events ------------------------------------------------------------------------------------------

    async def _remember(self, first: Answer) -> None:
        """What the log shows of before, and where the feed goes on."""
        since = self._at if 0 < self._at <= first.value["seq"] else None
        asked = {"limit": REMEMBERED} if since is None else {"since": since, "limit": EVENTS_MAX}
        said = await self.api.ask("GET", "/events", asked)
        self.model.heard(self.clock())
        _understood(self._take_events, said)
        self.changed()

    def _take_events(self, said: Json) -> None:
        for event in said["events"]:
            self.model.take_event(event)
        if said["missed"]:
            self.model.take_missed(int(said["missed"]))
        self._at = int(said["last"])

    async def _listen(self) -> NoReturn:
        """A burst is taken as a whole before anybody is told."""
        headers = {"accept": "text/event-stream", "last-event-id": str(self._at)}
        reader = FeedReader()
        async with self.api.stream("/events", {"follow": "true"}, headers) as chunks:
            async for chunk in chunks:
                self.model.heard(self.clock())
                try:
                    for told in reader.of(chunk):
                        _understood(self._take, told)
                except NotEvents as error:
                    raise Away(f"the event feed says what nobody understands: {error}") from error
                self.changed()
                await asyncio.sleep(0)  # where the next is there already, a key may be too
        raise Away("the gateway ended the event feed")

    def _take(self, told: Told) -> None:
        if told.kind == MISSED and not told.id:
            self.model.take_missed(int(told.data["missed"]))
        elif told.data is not None:
            self.model.take_event(told.data)
        if told.id:
            self._at = int(told.id)

    # -- what is measured --------------------------------------------------------------------------------

    async def _measure(self, first: Answer) -> NoReturn:
        """Where another address has come to answer, feed and snapshot must be of one again."""
        while self.api.addresses.order[0] == first.url:
            ask = partial(self._asked, first.url)
            for name, path in ALWAYS.items():
                await self._live(first.url, name, ask(path))
            if "running" in self.watching:
                await self._live(first.url, "running", ask("/requests/running", limit=RUNNING))
            if "recent" in self.watching:
                await self._live(first.url, "recent", self._slow_and_failed(ask))
            if "latest" in self.watching:
                await self._live(first.url, "latest", ask("/requests", limit=RECENT))
            self.changed()
            await asyncio.sleep(LIVE_S)
        raise _Anew

    async def _live(self, url: str, name: str, asking: Awaitable[Json]) -> None:
        """One that this gateway does not know, or can't answer now, is left as it was: the link is another matter."""
        try:
            said = await asking
            self.model.take_live(name, said, self.clock())
        except Refused as refusal:
            if refusal.status in UNKNOWN_TOKEN:
                raise
            if refusal.status != NOT_THERE:
                self.model.not_measured(name, str(refusal), self.clock())
        except Away as away:
            await self.api.ask_at(url, "/whoami", None, STILL_THERE_S)
            self.model.not_measured(name, away.why, self.clock())
        except MISSHAPEN:
            self.model.not_measured(name, "it answers in a form that is not known here", self.clock())
        self.model.heard(self.clock())

    async def _asked(self, url: str, path: str, **params: Any) -> Json:
        return await self.api.ask_at(url, path, params or None, LIVE_WITHIN_S)

    async def _slow_and_failed(self, ask: Callable[..., Awaitable[Json]]) -> Json:
        slow, failed = await ask("/requests", slow="1", limit=RECENT), await ask("/requests", failed="1", limit=RECENT)
        return {"requests": _newest_first(slow, failed)}


def _newest_first(*answers: Json) -> list[Json]:
    each = {one["id"]: one for answer in answers for one in answer["requests"]}
    return sorted(each.values(), key=lambda one: -float(one["at"]))


def _understood(take: Callable[..., Any], *said: Any) -> Any:
    """An answer of another shape is another program's, or of a version that this console does not know. Raises Over."""
    try:
        return take(*said)
    except MISSHAPEN as error:
        why = f"the gateway answers in a form that this console does not know ({type(error).__name__}: {error})"
        raise Over(f"{why}; use the console of its version") from error


def _unless_final(refusal: Refused, worked: bool) -> str:
    """Why there is no link. ``worked``: there was one before. Raises Over where waiting does not help."""
    if refusal.status == 401 and worked:
        why = "the token worked until now and is not taken any more: it was revoked or replaced"
        raise Over(f"{why} ({refusal}); `llmgw ctl tokens list` shows which are valid") from refusal
    if refusal.status in UNKNOWN_TOKEN:
        raise Over(f"{refusal}" + (f"; {refusal.hint}" if refusal.hint else "")) from refusal
    if refusal.status == 404:
        raise Over(f"{refusal}; the gateway is older than this console") from refusal
    return str(refusal)


def _leaves(group: BaseExceptionGroup[Exception] | None) -> Iterator[Exception]:
    for one in group.exceptions if group is not None else ():
        if isinstance(one, BaseExceptionGroup):
            yield from _leaves(one)
        else:
            yield one
