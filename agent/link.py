"""How this node finds its leader and keeps a link: each control plane in turn, with pauses that are never even."""

import random
from collections.abc import Callable, Mapping
from typing import NoReturn

import msgspec
import trio
from attrs import define, field

from agent.dialing import Dial, NoLink, NotTrusted, local_address
from agent.faces import Engines
from agent.membership import Joined, Membership, NotIn, TurnedAway
from agent.proc import boot_id
from agent.report import Reporter
from agent.talk import Talk
from agent.terms import Terms
from llmgw import __version__
from llmgw.core.agent_settings import AgentSettings
from llmgw.core.joining import may_be_named
from llmgw.wire.agent_frames import VERSION, Hello

FIRST_PAUSE_S = 0.2
LEAST_PAUSE_S = 0.02
STEADY_S = 1.0  # a link that lasted so long was a good one
LABELS_MAX = 64
LABEL_NAME_MAX = 63
LABEL_VALUE_MAX = 255
LABELS_BYTES_MAX = 8 * 1024  # as JSON: joining and every hello carry them, and both have a bound
STANDS_BY_MOST_S = 2.0  # longest pause while somebody answers that does not lead: soon somebody will
WELCOMED_MOST_S = 1.0  # longest pause after one that was shorter: who welcomed us is back within seconds


@define(eq=False)
class LeaderLink:
    """``run`` is a service. ``say`` gets a line when the link's state changes; ``state`` is the last one."""

    settings: AgentSettings
    membership: Membership
    terms: Terms
    engines: Engines
    reporter: Reporter
    dial: Dial
    say: Callable[[str], None] = lambda text: None
    draw: Callable[[], float] = random.random
    state: str = field(default="no link yet", init=False)
    talk: Talk | None = field(default=None, init=False)
    tries: int = field(default=0, init=False)
    _turn: int = field(default=0, init=False)  # whose turn it is among the servers
    _stands_by: bool = field(default=False, init=False)  # a control plane of ours answered lately, and does not lead
    _unanswered: int = field(default=0, init=False)  # tries in a row
    _led_to: str = field(default="", init=False)  # the leader, as another control plane named it

    async def run(self) -> NoReturn:
        pause_s = FIRST_PAUSE_S
        while True:
            server, hinted = self._server()
            began = trio.current_time()
            welcomed, leader = await self._try(server)
            if welcomed:
                steady = trio.current_time() - began >= STEADY_S
                pause_s = FIRST_PAUSE_S if steady else min(pause_s, WELCOMED_MOST_S)
            if leader and leader != server and not hinted:
                self._led_to = leader
                continue
            self._turn += 0 if welcomed else 1
            if self._stands_by:
                pause_s = min(pause_s, STANDS_BY_MOST_S)
            await trio.sleep(max(LEAST_PAUSE_S, self.draw() * pause_s))
            pause_s = min(pause_s * 2, self.settings.reconnect_max)

    async def _try(self, server: str) -> tuple[bool, str]:
        """Whether it welcomed us, and who leads, if it named another."""
        self.tries += 1
        try:
            joined = await self._joined(server)
            stream = await self.dial(server, self.membership.ca())
        except TurnedAway as error:
            self._is(f"refused by {server}: {error}")
            return False, error.leader
        except NotIn as error:
            self._is(f"no link with {server}: {error}")
            return False, ""
        except NotTrusted as error:
            self._is("; ".join(filter(None, (f"no link: {error}", self.membership.belonging))))
            return False, ""
        except (NoLink, OSError) as error:
            self._is(f"no link: {error}")
            self._unanswered += 1
            self._stands_by &= self._unanswered <= len(self.settings.servers)
            return False, ""
        self.engines.address = self.settings.address or local_address(stream) or self.engines.address
        hello = Hello(
            VERSION, joined.cluster, joined.node, boot_id(), self.terms.seen, self.terms.heard_ms, __version__,
            self.settings.address, dict(self.settings.labels),
        )  # fmt: skip
        talk = self.talk = Talk(
            server, stream, joined.credential, hello, self.terms, self.engines, self.reporter, self.settings.silent,
            lambda: self._is(f"linked with {server}"),
        )  # fmt: skip
        try:
            why = await talk.run()
        finally:
            self.talk = None
        refused = talk.refused
        self._is(f"refused by {server}: {self._why(talk)}" if refused else f"the link with {server} ended: {why}")
        self._stands_by, self._unanswered = talk.stands_by, 0
        return talk.welcomed, refused.leader if refused else ""

    async def _joined(self, server: str) -> Joined:
        """Raises NotIn, NoLink, OSError."""
        before = self.membership.joined
        joined = await self.membership.ensure(server)
        if before is not None and before.cluster != joined.cluster:
            self.terms.read_again()
        return joined

    def _why(self, talk: Talk) -> str:
        why = talk.refused.why if talk.refused else ""
        if not talk.not_admitted:
            return why
        return self.membership.no_member_of(talk.denied_by, talk.server) or f"{why}; {self.membership.way_back}"

    def _server(self) -> tuple[str, bool]:
        if self._led_to:
            server, self._led_to = self._led_to, ""
            return server, True
        servers = self.settings.servers
        return servers[self._turn % len(servers)], False

    def _is(self, state: str) -> None:
        if state != self.state:
            self.state = state
            self.say(state)


def node_name(settings: AgentSettings, host: str) -> str:
    """Raises ValueError."""
    name = settings.name or host.partition(".")[0]
    if not may_be_named(name):
        raise ValueError(f"{name!r} is no name for a node: set agent.name to letters, digits, '.', '_' or '-'")
    return name


def too_many_labels(labels: Mapping[str, str]) -> str:
    """Why these can't be told to a leader; empty: they can."""
    if len(labels) > LABELS_MAX:
        return f"agent.labels: {len(labels)} labels are too many, {LABELS_MAX} is the most"
    for name, value in labels.items():
        if not 0 < len(name) <= LABEL_NAME_MAX:
            return f"agent.labels: {name[:80]!r} is no name for a label: 1 to {LABEL_NAME_MAX} characters"
        if len(value) > LABEL_VALUE_MAX:
            return (
                f"agent.labels: the value of {name} is too long: {len(value)} characters, {LABEL_VALUE_MAX} is the most"
            )
    if (size := len(msgspec.json.encode(dict(labels)))) > LABELS_BYTES_MAX:
        return f"agent.labels: the labels take {size} bytes together, {LABELS_BYTES_MAX} is the most"
    return ""
