"""What is believed of a node from what its agent says, and when the leader should rather doubt itself."""

import math
from collections.abc import Iterable, Mapping
from enum import StrEnum

from attrs import field, frozen

from llmgw.core.drain import AtDeadline, Drain
from llmgw.core.gpus import Gpu
from llmgw.core.shards import Orphan, ShardSeen


class NodeState(StrEnum):
    READY = "ready"
    UNREACHABLE = "unreachable"  # it has reported to this leader, and is silent now
    UNKNOWN = "unknown"  # it has not reported to this leader yet: unknown, never empty


@frozen
class ClusterTimes:
    """Seconds; of ``[cluster]``."""

    node_silent: float = 5.0
    node_grace: float = 60.0
    obey_within: float = 10.0


@frozen
class NodeNow:
    """A node as a pass sees it. ``heard_s``: since its last report; None: none since this leader began."""

    name: str
    heard_s: float | None = None
    target: str = "schedulable"
    target_why: str = ""  # who asked, and why
    drain: Drain | None = None  # of a target of drained
    drain_left_s: float = 0.0  # of its grace
    boot: str = ""  # the id of its boot, as its agent says; empty: it has no link
    given_up: bool = False  # an operator said that it will not come back
    connected: bool = False
    rev: int = 0  # of the wanted set it was sent last
    obeys: int = -1  # of the set it says it obeys; -1: of another leader's
    behind_s: float = 0.0  # how long it has not obeyed what it was sent
    silent_for: float = 0.0  # unheard: since this leader began
    awake_s: float = math.inf  # since this process last slept: who sleeps hears nothing
    shards: Mapping[str, ShardSeen] = field(factory=dict)
    gpus: tuple[Gpu, ...] = ()
    orphans: tuple[Orphan, ...] = ()
    labels: Mapping[str, str] = field(factory=dict)
    has: frozenset[str] = frozenset()
    address: str = ""
    memory_mib: int = 0
    memory_reserved_mib: int = 0
    driver: str = ""
    times: ClusterTimes = field(factory=ClusterTimes)

    @property
    def state(self) -> NodeState:
        if self.heard_s is None:
            return NodeState.UNKNOWN
        return NodeState.UNREACHABLE if self.heard_s > self.times.node_silent else NodeState.READY

    @property
    def silence_s(self) -> float:
        return self.silent_for if self.heard_s is None else self.heard_s

    @property
    def obedient(self) -> bool:
        """Whether its report speaks of the set it was sent last."""
        return self.state is NodeState.READY and self.obeys >= self.rev

    @property
    def draining(self) -> str:
        """Why what runs there shall go elsewhere; empty: it may stay."""
        if self.drain is None or not self.drain.under_way:
            return ""
        return f"{self.name} is drained{f' {self.target_why}' if self.target_why else ''}"

    @property
    def overdue(self) -> str:
        """Why what is still there ends now, replaced or not; empty: it need not."""
        drain = self.drain
        if not self.draining or drain is None or self.drain_left_s > 0 or drain.at_deadline is AtDeadline.KEEP:
            return ""
        return f"the drain of {self.name} has used up its {drain.grace_s:.0f} s"

    def last_call(self, within_s: float) -> str:
        """Why what is there, and can go nowhere, shall begin nothing new; empty: it may."""
        drain = self.drain
        if not self.draining or drain is None or drain.at_deadline is AtDeadline.KEEP:
            return ""
        soon = self.drain_left_s <= min(within_s, drain.grace_s / 10)
        return f"the drain of {self.name} is soon over" if soon else ""

    @property
    def gone(self) -> str:
        """Why what runs there does not count any more; empty: it does."""
        if self.given_up:
            return f"{self.name} was given up"
        if self.state is not NodeState.READY and min(self.silence_s, self.awake_s) > self.times.node_grace:
            return f"{self.name} silent for {self.silence_s:.0f} s"
        return ""

    @property
    def trouble(self) -> str:
        """Why nothing may land there; empty: it may."""
        if self.given_up:
            return "given up by an operator"
        match self.state:
            case NodeState.UNKNOWN:
                return "unknown: it has not reported yet"
            case NodeState.UNREACHABLE:
                return f"unreachable: silent for {self.silence_s:.0f} s"
        if self.behind_s > self.times.obey_within:
            return f"it has not obeyed for {self.behind_s:.0f} s"
        return ""


def doubts(nodes: Iterable[NodeNow], woke_late_s: float, store_away: str) -> str:
    """Why this leader should rather believe that it is at fault itself; empty: it need not.

    More than half of the nodes, and at least two, silent at once: seldom are so many dead.
    """
    if store_away:
        return f"the store is away: {store_away}"
    # One that this leader has yet to hear counts once it has had the time to speak.
    known = [n for n in nodes if not n.given_up and (n.heard_s is not None or n.silent_for > n.times.node_silent)]
    silent = [node for node in known if node.state is not NodeState.READY]
    if len(silent) >= 2 and len(silent) * 2 > len(known):
        stalled = f", and this process was not awake for {woke_late_s:.0f} s" if woke_late_s else ""
        return f"{len(silent)} of {len(known)} nodes are silent{stalled}"
    if woke_late_s and silent:
        return f"this process was not awake for {woke_late_s:.0f} s"
    return ""
