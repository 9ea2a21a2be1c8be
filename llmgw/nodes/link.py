"""One agent's session at the leader: what it says is handed on, what it should run is told to it.

Level, not edge: of ``wanted`` only the newest is kept, and sent when the agent's window has room, so that an agent
that reads slowly holds one frame of ours and no more. Each report is answered by what is wanted (or by another
``welcome``), at most twice a period: that is the leader's sign of life, and no timer makes all links speak at once.
"""

from collections import deque
from collections.abc import Callable

import trio
from attrs import define, field

from llmgw.core.term import Term
from llmgw.nodes.registry import ASKS_MAX, LiveNode, NotLeading, Registry
from llmgw.tasks.rate import Bucket
from llmgw.wire.agent_frames import (
    OLDEST,
    VERSION,
    ClearAsked,
    Hello,
    Lines,
    Logs,
    LogsAsked,
    Malformed,
    Refused,
    Report,
    Tail,
    Up,
    Welcome,
    line,
    read_up,
)
from llmgw.wire.h2_stream import H2Stream

BURST_S = 10.0
PIECES = 10  # HTTP/2 frames that one of ours may come in, over time


@define(eq=False)
class Session:
    """Of the node ``name``, whose credential was shown. ``extend(seconds)``: so long may it be silent from now."""

    registry: Registry
    name: str
    peer: str
    extend: Callable[[float], None]
    wake: Callable[[], None]
    finish: Callable[[str], None]
    linked_at: float = field(factory=trio.current_time)
    node: LiveNode | None = field(default=None, init=False)
    _lines: Lines = field(init=False)
    _frames: Bucket = field(init=False)
    _pieces: Bucket = field(init=False)
    _bytes: Bucket = field(init=False)
    _out: deque[bytes] = field(factory=deque, init=False)
    _part: memoryview = field(default=memoryview(b""), init=False)
    _due: bool = field(default=False, init=False)
    _told_at: float = field(default=0.0, init=False)
    _refused: str = field(default="", init=False)

    def __attrs_post_init__(self) -> None:
        limits = self.registry.limits
        self._lines = Lines(limits.frame_max)
        self._frames = Bucket(limits.frames_per_second_max, limits.frames_per_second_max * BURST_S)
        self._pieces = Bucket(self._frames.per_second * PIECES, self._frames.most * PIECES)
        self._bytes = Bucket(limits.bytes_per_second_max, limits.bytes_per_second_max * BURST_S)

    # -- up ---------------------------------------------------------------------------------------------

    def heard(self, data: bytes) -> None:
        if self._refused:
            return
        now = trio.current_time()
        try:
            lines = self._lines.feed(data)
            allowed = self._bytes.take(len(data), now) and self._pieces.take(1, now)
            if not allowed or not self._frames.take(len(lines), now):
                self._count("floods")
                self.refuse(f"{self.name} sends more than cluster.frames_per_second_max or bytes_per_second_max allow")
                return
            for text in lines:
                self._take(read_up(text), now)
        except Malformed as error:
            self._count("malformed")
            self.refuse(f"{self.name} sent {error}")

    def _take(self, frame: Up, now: float) -> None:
        if self._refused:
            return
        node = self.node
        if node is None or isinstance(frame, Hello):
            self._greet(frame)
            return
        self.extend(self.registry.limits.node_silent)
        node.heard_at = now
        match frame:
            case Report():
                node.reported(frame, now)
                self._tell_again(now)
                self.registry.on_report(node)
            case Tail():
                node.said(frame, now)
            case Logs():
                node.answered(frame)

    def _greet(self, frame: Up) -> None:
        if self.node is not None or not isinstance(frame, Hello):
            self.refuse(f"{self.name} said {type(frame).__name__.lower()} where a hello belongs, or a second one")
            return
        registry, node, term = self.registry, self.registry.node(self.name), self.registry.lead()
        if isinstance(term, NotLeading):
            self.refuse("this control plane does not lead")
        elif why := unacceptable(frame, self.name, registry.cluster, term):
            node.counts["refused"] += 1
            self.refuse(why)
            if frame.seen.is_newer_than(term) or frame.seen.conflicts_with(term):
                heard_s = None if frame.heard_ms is None else frame.heard_ms / 1000
                registry.on_newer_term(node, frame.seen, heard_s)
        else:
            self.node, node.heard_at = node, trio.current_time()
            self.extend(registry.limits.node_silent)
            self._out.append(self._welcome(term))
            self._due = node.wanted is not None
            registry.accept(node, frame, self, self.peer)

    def _tell_again(self, now: float) -> None:
        if now - self._told_at >= self.registry.limits.period / 2:
            self._due = True

    def _count(self, what: str) -> None:
        (self.node.counts if self.node else self.registry.counts)[what] += 1

    # -- down -------------------------------------------------------------------------------------------

    def want_changed(self) -> None:
        self._due = True
        self.wake()

    def ask(self, asked: LogsAsked | ClearAsked) -> None:
        if len(self._out) < 2 * ASKS_MAX:  # else it does not read; the question runs into its deadline
            self._out.append(line(asked))
            self.wake()

    def refuse(self, why: str) -> None:
        """Said to the agent, and the end."""
        if self._refused:
            return
        lead = self.registry.lead()
        leader = lead.leader if isinstance(lead, NotLeading) else ""
        self._refused, self._due = why, False
        self._out.clear()
        self._out.append(line(Refused(why, leader)))
        self.finish(why)

    def fill(self, h2: H2Stream) -> None:
        """Write what there is to say, as far as the agent's window goes."""
        while self._part or self._next():
            taken = h2.write(self._part)
            if not taken:
                return
            self._part = self._part[taken:]
        if self._refused:
            h2.finish()

    def over(self, why: str) -> None:
        if self.node is not None:
            self.registry.ended(self.node, self, why)

    def _next(self) -> bool:
        """Whether there is another line; none is made before the one before it has gone."""
        if self._out:
            self._part = memoryview(self._out.popleft())
        elif self._due and self.node is not None:
            self._due, self._told_at = False, trio.current_time()
            term = self.registry.lead()
            if isinstance(term, NotLeading):
                self.refuse("this control plane does not lead any more")
                return self._next()
            self._part = memoryview(self.node.wanted_line(term) or self._welcome(term))
        return bool(self._part)

    def _welcome(self, term: Term) -> bytes:
        return line(Welcome(term, round(self.registry.limits.period * 1000), VERSION, self.registry.cluster))


def unacceptable(hello: Hello, name: str, cluster: str, term: Term) -> str:
    """Why an agent that shows the credential of ``name`` is not welcome; empty: it is."""
    if hello.node != name:
        return f"this credential was given to {name}, not to {hello.node}; join again under that name"
    if hello.v < OLDEST or abs(hello.v - VERSION) > 1:
        which = "the agent" if hello.v < VERSION else "the control plane"
        return f"{name} speaks version {hello.v} of the link, this leader {VERSION}, one apart works: upgrade {which}"
    if hello.cluster != cluster:
        return (
            f"{name} belongs to cluster {hello.cluster or 'none'}, this is cluster {cluster}; join it again to move it"
        )
    if hello.seen.is_newer_than(term):
        return f"{name} has obeyed term {hello.seen}, this leader's is {term}: stale"
    if hello.seen.conflicts_with(term):
        return f"{name} has obeyed another leader of the same term {term}: conflict"
    return ""
