"""A node asks to be drained, because its machine shuts down, and tells how far that has got.

Beside the agent, with its credential and on connections of its own; nothing in the data directory is written. A
shutdown waits for it, so nothing here waits for ever.
"""

import re
from collections.abc import Callable, Iterator
from enum import Enum

import msgspec
import trio
from attrs import define, field, frozen

from agent.dialing import Answer, Dial, NoLink, ask
from agent.membership import Joined, NotIn, TurnedAway, denied, trusted_ca
from agent.places import Places
from agent.proc import Table
from llmgw.core.agent_settings import AgentSettings
from llmgw.wire.agent_frames import Malformed
from llmgw.wire.agent_joining import DRAIN, DrainAsked, DrainTold, encode, read

REACH_S = 30.0  # without a control plane that leads and answers
BEYOND_S = 120.0  # the grace: engines end in their own grace, and memory comes back
LOOK_S = 1.0
AGAIN_S = 30.0  # what has not changed is said again
PAUSE_S = 0.5
ELSEWHERE = frozenset({421, 503})  # somebody else may know better, or the same one later
_NUMBER = re.compile(r"(?<![\w.-])\d+(\.\d+)?(?![\w.-])")


class End(Enum):
    DRAINED = "drained"
    ASKED = "asked"
    BLOCKED = "blocked"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"


@frozen
class Ended:
    how: End
    said: str


class Unreachable(Exception):
    """Its text says what was the matter last."""


def membership_in(places: Places) -> Joined | None:
    """Which cluster this node belongs to; None: to none. Raises ValueError, OSError."""
    file = places.data / "node.json"
    try:
        return msgspec.json.decode(file.read_bytes(), type=Joined)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} can't be read: {error}") from None


@define(eq=False)
class Draining:
    """``run`` once. ``patience_s``: so long it waits while all that is left has nowhere to go."""

    settings: AgentSettings
    places: Places
    joined: Joined
    asked: DrainAsked
    dial: Dial
    say: Callable[[str], None]
    patience_s: float = 60.0
    waits: bool = True
    _server: str = field(default="", init=False)  # who answered last
    _told: DrainTold = field(factory=DrainTold, init=False)
    _said: tuple[str, ...] = field(default=(), init=False)
    _said_at: float = field(default=0.0, init=False)
    _stuck_since: float | None = field(default=None, init=False)

    async def run(self) -> Ended:
        with trio.move_on_after(self.asked.grace_s + BEYOND_S):
            try:
                return await self._follow()
            except Unreachable as error:
                return Ended(End.UNREACHABLE, f"no control plane answers: {error}")
            except (NotIn, OSError) as error:
                return Ended(End.REFUSED, str(error))
        return Ended(End.BLOCKED, f"{self.joined.node} is not drained, and its time is over: {self._left()}")

    async def _follow(self) -> Ended:
        name, told = self.joined.node, await self._ask("PUT")
        self.say(f"{self._server}: {name} is to be {told.target}, says {told.by}")
        if not self.waits:
            return Ended(End.ASKED, f"{name} drains; nobody waits for it here")
        while (end := self._end(told)) is None:
            self._show(told)
            await trio.sleep(LOOK_S)
            told = await self._ask("GET")
        return end

    def _end(self, told: DrainTold) -> Ended | None:
        self._told, name = told, self.joined.node
        if told.state == "drained":
            return Ended(End.DRAINED, told.said or f"{name} is drained")
        if not told.state:
            return Ended(End.REFUSED, f"{name} is to be {told.target} now, says {told.by}")
        if told.state == "blocked" and told.left_s is None:
            return Ended(End.BLOCKED, told.said)
        if not told.heard and not _engines(self.places):
            return Ended(End.DRAINED, f"no engine runs on {name}; its agent does not run either, so nobody else knows")
        return self._stuck(told)

    def _stuck(self, told: DrainTold) -> Ended | None:
        now = trio.current_time()
        if told.state != "blocked":
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = now
        elif now - self._stuck_since >= self.patience_s:
            return Ended(End.BLOCKED, f"what is left on {self.joined.node} has nowhere to go: {self._left()}")
        return None

    def _left(self) -> str:
        return "; ".join(self._told.waits_on or self._told.left) or "nothing was told of it"

    def _show(self, told: DrainTold) -> None:
        """Only what is new: ages and numbers of requests change all the time."""
        now = trio.current_time()
        shape = tuple(_NUMBER.sub("#", text) for text in told.waits_on)
        if shape == self._said and now - self._said_at < AGAIN_S:
            return
        self._said, self._said_at = shape, now
        left = "its end" if told.left_s is None else f"{max(0.0, told.left_s):.0f} s left"
        for text in told.waits_on or ("its agent has yet to say that nothing is left",):
            self.say(f"{told.state}, {left}: {text}")

    # -- asking -----------------------------------------------------------------------------------------

    async def _ask(self, method: str) -> DrainTold:
        """Whoever leads. Raises Unreachable, NotIn for a refusal, OSError."""
        head = {":method": method, ":path": DRAIN, "authorization": f"Bearer {self.joined.credential}"}
        body = encode(self.asked) if method == "PUT" else None
        ca, why = trusted_ca(self.settings, self.places), ""
        with trio.move_on_after(REACH_S):
            servers = self._servers()
            while True:
                server = next(servers)
                try:
                    answer = await ask(await self.dial(server, ca), server, head, body)
                    return self._heard(answer, server)
                except TurnedAway as error:
                    why = f"{server}: {error}"
                    if error.leader:
                        servers = self._servers(error.leader)
                except NoLink as error:
                    why = str(error)
                await trio.sleep(PAUSE_S)
        raise Unreachable(why or "nobody answered in time")

    def _heard(self, answer: Answer, server: str) -> DrainTold:
        """Raises NoLink, TurnedAway from one who does not lead, NotIn for a refusal."""
        if answer.status != 200:
            error = denied(answer.body, server)
            raise error if answer.status in ELSEWHERE else NotIn(f"{server}: {error}")
        self._server = server
        try:
            return read(DrainTold, bytes(answer.body))
        except Malformed as error:
            raise NoLink(f"{server}: {error}") from None

    def _servers(self, first: str = "") -> Iterator[str]:
        """For ever: who leads as was said, who answered last, and then each in turn."""
        yield from filter(None, (first, self._server))
        while True:
            yield from self.settings.servers


def _engines(places: Places) -> bool:
    """Whether a process of an engine lives here, whoever watches over it."""
    return any(True for _ in Table.read().of_instance(places.scope))
