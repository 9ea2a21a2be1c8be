"""One connection of an agent: who is there, what they ask for, and the answer.

Three routes, each behind a token (C43): the link with a node's credential, joining with a join token, and the CA
certificate with a join token's public part, because whoever fetches it does not know yet whom they talk to.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

import trio
from attrs import define, field

from llmgw.core.joining import Admitted, Joined, Unwelcome
from llmgw.nodes.limits import AgentsLimits
from llmgw.nodes.link import Session
from llmgw.nodes.registry import NotLeading, Registry
from llmgw.tasks.duplex import Duplex
from llmgw.wire.agent_frames import Malformed
from llmgw.wire.agent_joining import BODY_MAX, CA, JOIN, LINK, Denied, JoinAsked, JoinGiven, bearer, encode, read
from llmgw.wire.h2_stream import Body, End, H2Stream, Head, Violation

NO_TOKEN = "show a node's credential or a join token"
NOT_LEADING = "this control plane does not lead"


class Gatekeeper(Protocol):
    """Who may come in (``control.joining``)."""

    def authenticate(self, credential: str) -> Admitted | Unwelcome: ...
    def may_ask_for_ca(self, public: str) -> Unwelcome | None: ...
    async def join(self, token: str, asked: JoinAsked) -> Joined | Unwelcome: ...


@define(eq=False)
class House:
    """What all connections share. ``ca``: the PEM that agents pin."""

    registry: Registry
    gatekeeper: Gatekeeper
    limits: AgentsLimits
    ca: Callable[[], bytes] = lambda: b""


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
    _token: str = field(default="", init=False)
    _body: bytearray | None = field(default=None, init=False)  # of somebody who joins
    _asked: trio.Event = field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self._duplex = Duplex(self.stream, self._heard, self._outgoing, self.house.limits.write_stall)

    async def run(self, deadline: float) -> str:
        """Until it ends; why, in words. ``deadline``: for the first frame."""
        why = ""
        self._patience.deadline = deadline
        try:
            async with trio.open_nursery() as beside:
                beside.start_soon(self._join_if_asked)
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
            self._token, self._body, self._waits_for = token, bytearray(), "the body"
        else:
            match gatekeeper.authenticate(token):
                case Unwelcome(why):
                    self._unauthorized(why)
                case Admitted(node) if (method, path) == ("POST", LINK):
                    self._link(node)
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

    async def _join_if_asked(self) -> None:
        await self._asked.wait()
        lead = self.house.registry.lead()
        if isinstance(lead, NotLeading):
            self._deny(421, NOT_LEADING, lead.leader)
            return
        try:
            asked = read(JoinAsked, bytes(self._body or b""))
        except Malformed as error:
            self._deny(400, str(error))
            return
        match await self.house.gatekeeper.join(self._token, asked):
            case Joined(cluster, node, credential):
                self._say(200, encode(JoinGiven(cluster, node, credential)))
            case Unwelcome(why):
                self._unauthorized(why)

    def _extend(self, seconds: float) -> None:
        self._waits_for = f"a frame within {seconds:g} s"
        self._patience.deadline = trio.current_time() + seconds

    def _unauthorized(self, why: str) -> None:
        self._count("unauthorized")
        self._deny(401, why)

    def _deny(self, status: int, why: str, leader: str = "") -> None:
        self._say(status, encode(Denied(why, leader)))

    def _say(self, status: int, body: bytes) -> None:
        self._h2.respond(status)
        self._answer = memoryview(body + b"\n")
        self._duplex.wake()

    def _count(self, what: str) -> None:
        self.house.registry.counts[what] += 1
