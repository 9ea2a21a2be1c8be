"""The nodes as the leader hears them: what each said last, and what it is told.

What is heard stays when a link ends: a node that fell silent is unknown, not empty. Times are this process's
monotonic clock.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import trio
from attrs import define, field, frozen

from llmgw.core.shards import Launch
from llmgw.core.term import Term
from llmgw.nodes.limits import ClusterLimits
from llmgw.wire.agent_frames import ClearAsked, Hello, Logs, LogsAsked, Obeys, Report, Tail, Wanted, line

ASKS_MAX = 8  # for logs, under way on one node
TAILS_MAX = 512  # of one node; the oldest goes
TAILS_ENDED_MAX = 16  # of engines that its report shows no more: the last words of those that failed
ERROR_MAX = 500


class Link(Protocol):
    """What the registry asks of a node's session."""

    linked_at: float

    def want_changed(self) -> None: ...
    def ask(self, asked: LogsAsked | ClearAsked) -> None: ...
    def refuse(self, why: str) -> None: ...


@frozen
class NotLeading:
    """``leader``: host:port of the agent listener that leads; empty: not known."""

    leader: str = ""


@frozen
class KeptTail:
    """``at``: when its last line was written, by our clock."""

    text: str
    at: float


@define
class _Ask:
    answered: trio.Event = field(factory=trio.Event)
    logs: Logs | None = None


@define(eq=False)
class LiveNode:
    name: str
    hello: Hello | None = None
    report: Report | None = None
    heard_at: float | None = None  # any frame
    reported_at: float | None = None
    peer: str = ""  # the address its link came from
    link: Link | None = field(default=None, repr=False)
    last_end: str = ""  # why its last link ended
    counts: Counter[str] = field(factory=Counter)  # links, reports, tails, floods, malformed, replaced, refused, …
    tails: dict[str, KeptTail] = field(factory=dict, repr=False)
    wanted: Wanted | None = field(default=None, repr=False)
    _line: bytes = field(default=b"", repr=False)
    _asks: dict[int, _Ask] = field(factory=dict, repr=False)
    _ask_id: int = 0

    @property
    def linked(self) -> bool:
        return self.link is not None

    @property
    def link_age_s(self) -> float | None:
        return None if self.link is None else trio.current_time() - self.link.linked_at

    @property
    def obeys(self) -> Obeys:
        return self.report.obeys if self.report else Obeys()

    @property
    def address(self) -> str:
        """Where its engines are reached: as it says, else where its link came from."""
        return (self.hello.address if self.hello else "") or self.peer

    def silent_s(self, now: float) -> float | None:
        """Since its last frame; None: it was never heard."""
        return None if self.heard_at is None else now - self.heard_at

    def obeys_what_it_was_told(self) -> bool:
        """The newest ``wanted`` was taken in; before anything was wanted there is nothing to obey."""
        return self.wanted is None or (self.obeys.term, self.obeys.rev) == (self.wanted.term, self.wanted.rev)

    def wanted_line(self, term: Term) -> bytes:
        """The newest ``wanted`` as it is sent under this term; empty before the first."""
        if self.wanted is not None and self.wanted.term != term:
            self.wanted = Wanted(term, self.wanted.rev, self.wanted.shards, self.wanted.paths)
            self._line = line(self.wanted)
        return self._line

    # -- what its session tells -------------------------------------------------------------------------

    def reported(self, report: Report, now: float) -> None:
        self.report, self.reported_at = report, now
        self.counts["reports"] += 1
        if len(self.tails) > TAILS_ENDED_MAX:
            there = {shard.id for shard in report.shards}
            ended = [instance for instance in self.tails if instance not in there]
            for instance in ended[:-TAILS_ENDED_MAX]:
                del self.tails[instance]

    def said(self, tail: Tail, now: float) -> None:
        self.counts["tails"] += 1
        self.tails.pop(tail.instance, None)
        self.tails[tail.instance] = KeptTail(tail.text, now - max(0, tail.age_ms) / 1000)
        if len(self.tails) > TAILS_MAX:
            del self.tails[next(iter(self.tails))]

    def answered(self, logs: Logs) -> None:
        ask = self._asks.get(logs.ask)
        if ask is not None:  # else nobody waits for it any more
            ask.logs = logs
            ask.answered.set()

    # -- what it is told --------------------------------------------------------------------------------

    def want(self, wanted: Wanted, frame_max: int) -> str:
        text = line(wanted)
        if len(text) > frame_max:
            return f"what {self.name} should run takes {len(text)} bytes to say, cluster.frame_max is {frame_max}"
        changed, self._line, self.wanted = text != self._line, text, wanted
        if self.link is not None and changed:
            self.link.want_changed()
        return ""

    async def ask_logs(self, instance: str, most: int, within_s: float) -> Logs:
        return await self._ask(lambda id: LogsAsked(id, instance, most), within_s)

    async def ask_clear(self, gpu: str, cause: str, within_s: float) -> Logs:
        """``error`` empty: it is done."""
        return await self._ask(lambda id: ClearAsked(id, gpu, cause), within_s)

    async def _ask(self, question: Callable[[int], LogsAsked | ClearAsked], within_s: float) -> Logs:
        if self.link is None:
            return Logs(0, error=f"{self.name} has no link: {self.last_end or 'it never had one'}")
        if len(self._asks) >= ASKS_MAX:
            return Logs(0, error=f"{ASKS_MAX} questions to {self.name} wait for an answer already; ask again")
        self._ask_id += 1
        id, ask = self._ask_id, _Ask()
        self._asks[id] = ask
        try:
            self.link.ask(question(id))
            with trio.move_on_after(within_s):
                await ask.answered.wait()
        finally:
            del self._asks[id]
        return ask.logs or Logs(id, error=f"{self.name} did not answer within {within_s:g} s")

    def link_ended(self, link: Link, why: str) -> bool:
        """Whether that was the node's link, and not one that another has replaced."""
        if self.link is not link:
            return False
        self.link, self.last_end = None, why
        for id, ask in self._asks.items():
            ask.logs = Logs(id, error=f"the link of {self.name} ended: {why}")
            ask.answered.set()
        return True


def _nothing(_: LiveNode) -> None: ...


@define(eq=False)
class Registry:
    """``lead`` says under which term we lead, or who does. Callbacks are synchronous and must not wait.

    ``on_newer_term`` hears of a node that has obeyed a later term than ours, and for how many seconds it has not
    heard who led under it: we are no leader any more, or the store went back in time.
    """

    cluster: str
    limits: ClusterLimits
    lead: Callable[[], Term | NotLeading]
    on_report: Callable[[LiveNode], None] = _nothing
    on_link: Callable[[LiveNode], None] = _nothing  # a link was made, or ended
    on_newer_term: Callable[[LiveNode, Term, float | None], None] = lambda node, term, heard_s: None
    nodes: dict[str, LiveNode] = field(factory=dict, init=False)
    counts: Counter[str] = field(factory=Counter, init=False)  # of nobody in particular

    def node(self, name: str) -> LiveNode:
        """Made when it is first spoken of."""
        found = self.nodes.get(name)
        if found is None:
            found = self.nodes[name] = LiveNode(name)
        return found

    def want(self, name: str, rev: int, shards: Sequence[Launch], paths: Sequence[str] = ()) -> str:
        """The whole set for a node, sent now if it has a link and again each period. Why not, or empty."""
        term = self.lead()
        if isinstance(term, NotLeading):
            return f"this is not the leader, so {name} is told nothing"
        return self.node(name).want(Wanted(term, rev, tuple(shards), tuple(paths)), self.limits.frame_max)

    def refuse(self, name: str, why: str) -> None:
        """End its link, with the reason; engines run on. Whether it may come back is not decided here."""
        node = self.nodes.get(name)
        if node is not None and node.link is not None:
            node.counts["refused"] += 1
            node.link.refuse(why)

    def refuse_all(self, why: str) -> None:
        """We lead no more."""
        for name in list(self.nodes):
            self.refuse(name, why)

    def forget(self, name: str, why: str) -> None:
        """A node that was removed."""
        self.refuse(name, why)
        self.nodes.pop(name, None)

    async def ask_logs(self, name: str, instance: str, most: int = 64 * 1024) -> Logs:
        """An answer within ``cluster.logs_within``, or one with ``error`` set."""
        node = self.nodes.get(name)
        if node is None:
            return Logs(0, error=f"no node {name} was heard of")
        return await node.ask_logs(instance, most, self.limits.logs_within)

    async def ask_clear(self, name: str, gpu: str, cause: str) -> Logs:
        """``error`` empty: what spoke against that GPU counts no more."""
        node = self.nodes.get(name)
        if node is None:
            return Logs(0, error=f"no node {name} was heard of")
        return await node.ask_clear(gpu, cause, self.limits.logs_within)

    def linked(self) -> Mapping[str, LiveNode]:
        return {name: node for name, node in self.nodes.items() if node.link is not None}

    def silent(self, name: str, now: float) -> bool:
        """Not heard for ``cluster.node_silent``, or never."""
        node = self.nodes.get(name)
        since = node.silent_s(now) if node else None
        return since is None or since > self.limits.node_silent

    def accept(self, node: LiveNode, hello: Hello, link: Link, peer: str) -> None:
        """A node's link; one it had before is closed at once, for it may be half open."""
        before, node.link = node.link, link
        node.hello, node.peer = hello, peer
        node.counts["links"] += 1
        if before is not None:
            node.counts["replaced"] += 1
            before.refuse(f"{node.name} has made a newer link")
        self.on_link(node)

    def ended(self, node: LiveNode, link: Link, why: str) -> None:
        if node.link_ended(link, why):
            self.on_link(node)
