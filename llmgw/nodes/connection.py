"""One connection of an agent: who is there, what they ask for, and the answer.

Each route is behind a token (C43): the link and a node's own drain with its credential, joining with a join token,
and the CA certificate with a join token's public part, because whoever fetches it does not know yet whom they talk to.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Protocol

import trio
from attrs import define, field

from llmgw.core.identity import Declined
from llmgw.core.joining import Admitted, Joined, Unwelcome
from llmgw.nodes.limits import AgentsLimits
from llmgw.nodes.link import Session
from llmgw.nodes.registry import NotLeading, Registry
from llmgw.tasks.duplex import Duplex
from llmgw.wire.agent_frames import Malformed
from llmgw.wire.agent_joining import (
    BODY_MAX,
    CA,
    DRAIN,
    JOIN,
    LINK,
    Denied,
    DrainAsked,
    DrainTold,
    JoinAsked,
    JoinGiven,
    bearer,
    encode,
    read,
)
from llmgw.wire.h2_stream import Body, End, H2Stream, Head, Violation

NO_TOKEN = "show a node's credential or a join token"
NOT_LEADING = "this control plane does not lead"


class Gatekeeper(Protocol):
    """Who may come in (``control.joining``)."""

    def authenticate(self, credential: str) -> Admitted | Unwelcome: ...
    def may_ask_for_ca(self, public: str) -> Unwelcome | None: ...
    async def join(self, token: str, asked: JoinAsked) -> Joined | Unwelcome: ...


class OwnDrains(Protocol):
    """What nodes ask for themselves (``control.own_drains``)."""

    async def ask(self, node: str, asked: DrainAsked) -> DrainTold | Declined: ...
    def told(self, node: str) -> DrainTold: ...


@define(eq=False)
class House:
    """What all connections share. ``ca``: the PEM that agents pin. ``drains`` None: no node may ask for one."""

    registry: Registry
    gatekeeper: Gatekeeper
    limits: AgentsLimits
    ca: Callable[[], bytes] = lambda: b""
    drains: OwnDrains | None = None


@define(eq=False)
class Connection:
    house: House
    stream: trio.abc.Stream
    peer: str
    admitted: Callable[[], None]  # called once a valid credential was shown
    _h2: H2Stream = field(factory=H2Stream.for_server, init=False)
    _duplex: Duplex = field(init=False)
    _session: Session | None = field(default=None, init=False)
    _patience: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    _waits_for: str = field(default="credential and hello", init=False)
    _answer: memoryview | None = field(default=None, init=False)
    _body: bytearray | None = field(default=None, init=False)  # of a question
    _answers: Callable[[bytes], Awaitable[None]] | None = field(default=None, init=False)
    _asked: trio.Event = field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self._duplex = Duplex(self.stream, self._heard, self._outgoing, self.house.limits.write_stall)

    async def run(self, deadline: float) -> str:
        """Until it ends; why, in words. ``deadline``: for the first frame."""
        why = ""
        self._patience.deadline = deadline
        try:
            async with trio.open_nursery() as beside:
                beside.start_soon(self._answer_if_asked)
                with self._patience:
                    why = await self._duplex.run()
                beside.cancel_scope.cancel(reason="the connection has ended")
            if self._patience.cancelled_caught:
                self._count("silent")
                why = f"nothing came in time: {self._waits_for}"
        finally:
            if self._session is not None:
                self._session.over(why or "the listener ends")
        return why

    # -- bytes ------------------------------------------------------------------------------------------

    def _heard(self, data: bytes) -> None:
        try:
            for happening in self._h2.receive(data):
                match happening:
                    case Head(fields):
                        self._head(fields)
                    case Body(part, size):
                        self._part(part)
                        self._h2.consumed(size)
                    case End(why):
                        self._end(why)
        except Violation as error:
            self._count("malformed")
            self._duplex.cut(str(error))

    def _outgoing(self) -> bytes:
        if self._session is not None:
            self._session.fill(self._h2)
        elif self._answer is not None:
            self._answer = self._answer[self._h2.write(self._answer) :]
            if not self._answer:
                self._answer = None
                self._h2.finish()
                self._duplex.finish("answered")
        return self._h2.outgoing()

    def _part(self, data: bytes) -> None:
        if self._session is not None:
            self._session.heard(data)
        elif self._body is not None:
            self._body += data
            if len(self._body) > BODY_MAX:
                self._body = None
                self._deny(413, f"a body of more than {BODY_MAX} bytes")

    def _end(self, why: str) -> None:
        if self._body is not None and not why:
            self._asked.set()
        elif self._session is not None or why:
            self._duplex.cut(why or "the agent ended the link")

    # -- routes -----------------------------------------------------------------------------------------

    def _head(self, fields: Mapping[str, str]) -> None:
        method, path, token = fields.get(":method", ""), fields.get(":path", ""), bearer(fields)
        gatekeeper = self.house.gatekeeper
        if not token:
            self._unauthorized(NO_TOKEN)
        elif (method, path) == ("GET", CA):
            refused = gatekeeper.may_ask_for_ca(token)
            self._unauthorized(refused.why) if refused else self._say(200, self.house.ca())
        elif (method, path) == ("POST", JOIN):
            self._take_body(partial(self._join, token))
        else:
            match gatekeeper.authenticate(token):
                case Unwelcome(why):
                    self._unauthorized(why, self.house.registry.cluster)
                case Admitted(node) if (method, path) == ("POST", LINK):
                    self._link(node)
                case Admitted(node) if path == DRAIN and self.house.drains is not None:
                    self._own_drain(node, method, self.house.drains)
                case Admitted():
                    self._deny(404, f"there is no {method} {path}")

    def _link(self, node: str) -> None:
        registry = self.house.registry
        lead = registry.lead()
        if isinstance(lead, NotLeading):
            self._deny(421, NOT_LEADING, lead.leader)
            return
        self.admitted()
        self._h2.respond(200, [("content-type", "application/x-ndjson")])
        self._session = Session(registry, node, self.peer, self._extend, self._duplex.wake, self._duplex.finish)

    def _own_drain(self, node: str, method: str, drains: OwnDrains) -> None:
        self.admitted()
        lead = self.house.registry.lead()
        if method == "PUT":
            self._take_body(partial(self._drain, node, drains))
        elif method != "GET":
            self._deny(404, f"there is no {method} {DRAIN}")
        elif isinstance(lead, NotLeading):
            self._deny(421, NOT_LEADING, lead.leader)
        else:
            self._say(200, encode(drains.told(node)))

    def _take_body(self, answers: Callable[[bytes], Awaitable[None]]) -> None:
        self._body, self._answers, self._waits_for = bytearray(), answers, "the body"

    async def _answer_if_asked(self) -> None:
        await self._asked.wait()
        lead = self.house.registry.lead()
        if isinstance(lead, NotLeading):
            self._deny(421, NOT_LEADING, lead.leader)
            return
        assert self._answers is not None
        try:
            await self._answers(bytes(self._body or b""))
        except Malformed as error:
            self._deny(400, str(error))

    async def _join(self, token: str, body: bytes) -> None:
        """Raises Malformed."""
        match await self.house.gatekeeper.join(token, read(JoinAsked, body)):
            case Joined(cluster, node, credential):
                self._say(200, encode(JoinGiven(cluster, node, credential)))
            case Unwelcome(why):
                self._unauthorized(why)

    async def _drain(self, node: str, drains: OwnDrains, body: bytes) -> None:
        """Raises Malformed."""
        match await drains.ask(node, read(DrainAsked, body)):
            case Declined(_, why):
                self._deny(503, why)
            case told:
                self._say(200, encode(told))

    def _extend(self, seconds: float) -> None:
        self._waits_for = f"a frame within {seconds:g} s"
        self._patience.deadline = trio.current_time() + seconds

    def _unauthorized(self, why: str, cluster: str = "") -> None:
        self._count("unauthorized")
        self._deny(401, why, cluster=cluster)

    def _deny(self, status: int, why: str, leader: str = "", cluster: str = "") -> None:
        self._say(status, encode(Denied(why, leader, cluster)))

    def _say(self, status: int, body: bytes) -> None:
        self._h2.respond(status)
        self._answer = memoryview(body + b"\n")
        self._duplex.wake()

    def _count(self, what: str) -> None:
        self.house.registry.counts[what] += 1
