"""What the leader holds in memory of its cluster, and how a pass sees it.

Rows come from the store and go there first; everything else is heard or proved anew by each leader.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs
import trio
from attrs import define, field

from llmgw.control.desired import Desired
from llmgw.control.joining import Joining
from llmgw.core.claims import Board, board_of
from llmgw.core.drain_plan import state_of_drain
from llmgw.core.joining import NodeRecord
from llmgw.core.node_life import ClusterTimes, NodeNow, NodeState, doubts
from llmgw.core.presets import engine_of
from llmgw.core.reconcile import Seen
from llmgw.core.replicas import NO_PROOF, Phase, Proof, Replica, ReplicaLimits, ReplicaNow
from llmgw.core.shards import HTTP, Launch, ShardSeen, ShardState
from llmgw.core.standing import stand
from llmgw.core.term import Term
from llmgw.engines.live import LiveEndpoint, LiveFleet
from llmgw.nodes.limits import ClusterLimits
from llmgw.nodes.registry import LiveNode, Registry
from llmgw.wire.agent_frames import Report
from llmgw.wire.engine_metrics import has_metrics

SETTLE_S = 5.0  # a new leader waits this long for nodes that have not reported
SLEPT_S = 2.0  # woken this much too late, this process was not awake
QUIET_SAMPLES = 2  # in a row, until an engine is believed to hold nothing
HOUR_S = 3600.0


@define
class Sent:
    """What a node was told last. ``since``: when; while it does not obey, when the first of what it has not."""

    rev: int = 0
    entries: tuple[Launch, ...] = ()
    paths: tuple[str, ...] = ()
    since: float = 0.0


@define
class Counts:
    """For metrics; only ever rising. By model."""

    started: Counter[str] = field(factory=Counter)
    failed: Counter[str] = field(factory=Counter)
    unplaced: Counter[tuple[str, str]] = field(factory=Counter)  # by model and what most nodes lacked
    start_times: dict[str, tuple[int, float]] = field(factory=dict)  # how many, and seconds altogether

    def answered(self, model: str, seconds: float) -> None:
        number, total = self.start_times.get(model, (0, 0.0))
        self.start_times[model] = number + 1, total + seconds


@define(eq=False)
class Cluster:
    """Times are Trio's clock, in seconds; ``wall`` is the clock of the rows."""

    term: Term
    registry: Registry
    joining: Joining
    desired: Desired
    live: LiveFleet
    limits: Callable[[], ReplicaLimits]
    times: Callable[[], ClusterLimits]
    wall: Callable[[], float]
    rows: dict[str, Replica] = field(factory=dict)
    moves_off_sick: Callable[[], bool] = field(default=lambda: True)  # gpu.on_excluded
    turn: trio.Lock = field(factory=trio.Lock)  # whoever changes rows: from looking at them to having them stored
    began_at: float = field(factory=trio.current_time)
    began_wall: float = field(init=False)
    counts: Counts = field(factory=Counts, init=False)
    proofs: dict[str, Proof] = field(factory=dict, init=False)  # by endpoint id
    quiet: dict[str, int] = field(factory=dict, init=False)  # by endpoint id: scrapes in a row that showed nothing
    held: dict[str, int] = field(factory=dict, init=False)  # by endpoint id: what the last of those showed
    sent: dict[str, Sent] = field(factory=dict, init=False)  # by node
    store_away: str = field(default="", init=False)
    woke_late_s: float = field(default=0.0, init=False)  # this process was not awake
    woke_at: float = field(default=-math.inf, init=False)
    ill_restarts: dict[str, list[float]] = field(factory=dict, init=False)  # by model: when
    settled: bool = field(default=False, init=False)
    hold: str = field(default="", init=False)
    version: int = field(default=0, init=False)  # of the rows
    changed: trio.Event = field(factory=trio.Event, init=False)  # something a pass should look at
    _progress: dict[str, tuple[int, float]] = field(factory=dict, init=False)  # by instance: what, when
    _shards: dict[str, tuple[Report, Mapping[str, ShardSeen]]] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.began_wall = self.wall()

    def wake(self) -> None:
        self.changed.set()

    def was_due(self, at: float) -> None:
        """Told by whoever slept until then: much too late says that this process was not awake."""
        now = trio.current_time()
        if now - at > SLEPT_S:
            self.woke_late_s, self.woke_at = now - at, now

    def go_on_from(self, before: "Cluster") -> None:
        """The same term is led again: what nodes are told now is numbered after what they were told then."""
        self.sent.update({name: Sent(sent.rev) for name, sent in before.sent.items()})

    # -- observing ------------------------------------------------------------------------------------

    def observe(self) -> Seen:
        now, wall = trio.current_time(), self.wall()
        nodes = self.nodes(now)
        self._settle(nodes.values(), now)
        self._doubt(nodes.values())
        replicas = {name: self.standing(row, nodes, now, wall) for name, row in self.rows.items()}
        recent = {m: sum(now - at < HOUR_S for at in times) for m, times in self.ill_restarts.items()}
        return Seen(self.desired.wants, replicas, nodes, wall, self.hold, self.settled, recent)

    def nodes(self, now: float) -> dict[str, NodeNow]:
        """Every node that has joined, whether it was heard or not."""
        limits = self.times()
        times = ClusterTimes(limits.node_silent, limits.node_grace, limits.obey_within)
        return {name: self._node(record, now, times) for name, record in self.joining.nodes.items()}

    def standing(self, row: Replica, nodes: Mapping[str, NodeNow], now: float, wall: float) -> ReplicaNow:
        proof = self.proofs.get(row.endpoint_id, NO_PROOF)
        want = self.desired.wants.get(row.model)
        endpoint = self.endpoint(row.endpoint_id)
        in_flight = endpoint.in_flight if endpoint is not None else 0
        return stand(
            row,
            nodes,
            proof,
            self.limits(),
            now,
            wall,
            self._stands_still(row, proof, nodes, now) if proof.proved_at is None else 0.0,
            (want.spec.start_within_s if want else row.spec.start_within_s) or None,
            in_flight,
            self.quiet.get(row.endpoint_id, 0 if has_metrics(engine_of(row.spec)) else QUIET_SAMPLES) >= QUIET_SAMPLES,
            self.moves_off_sick(),
            self.held.get(row.endpoint_id),
        )

    def endpoint(self, id: str) -> LiveEndpoint | None:
        return self.live.find(id)

    def board(self, without: frozenset[str] = frozenset()) -> Board:
        """Who has claimed what, for questions between passes."""
        seen = self.observe()
        return board_of(seen.nodes, seen.replicas.values(), without)

    def _node(self, record: NodeRecord, now: float, times: ClusterTimes) -> NodeNow:
        live = self.registry.nodes.get(record.name)
        sent = self.sent.get(record.name)
        base = NodeNow(
            record.name,
            target=record.target,
            target_why=_said_by(record),
            drain=record.drain,
            drain_left_s=record.drain.ends_at - self.wall() if record.drain is not None else 0.0,
            given_up=record.given_up_at is not None,
            rev=sent.rev if sent else 0,
            silent_for=now - self.began_at,
            awake_s=now - self.woke_at,
            labels=record.labels,
            address=record.address,
            times=times,
        )
        report = live.report if live is not None else None
        if live is None or report is None or live.reported_at is None:
            return base
        obeys = report.obeys.rev if report.obeys.term == self.term else -1
        # It can't obey what it could not hear.
        linked_at = live.link.linked_at if live.link is not None else now
        behind = now - max(sent.since, linked_at) if sent and obeys < sent.rev else 0.0
        return attrs.evolve(
            base,
            heard_s=now - live.reported_at,
            connected=live.linked,
            boot=live.hello.boot if live.linked and live.hello is not None else "",
            obeys=obeys,
            behind_s=behind,
            shards=self._by_id(record.name, report),
            gpus=report.gpus,
            orphans=report.orphans,
            labels=live.hello.labels if live.hello else record.labels,
            has=frozenset(report.has),
            address=live.address,
            memory_mib=report.host.memory_mib,
            memory_reserved_mib=report.host.reserved_mib,
            driver=report.host.driver,
        )

    def _by_id(self, name: str, report: Report) -> Mapping[str, ShardSeen]:
        kept = self._shards.get(name)
        if kept is None or kept[0] is not report:
            kept = self._shards[name] = report, {shard.id: shard for shard in report.shards}
        return kept[1]

    def _stands_still(self, row: Replica, proof: Proof, nodes: Mapping[str, NodeNow], now: float) -> float:
        """Since any of its shards last got on while it starts: the limit counts no progress, not time.

        One that says it is well has loaded: its log and its CPU time rise on, whether it answers or not.
        """
        latest = 0.0
        for place in row.shards:
            id, node = row.instance(place.rank), nodes.get(place.node)
            seen = node.shards.get(id) if node else None
            mark = hash((seen.state, seen.progress)) if seen else 0
            known = self._progress.get(id)
            if known is None or known[0] != mark:
                known = self._progress[id] = mark, now
            latest = max(latest, known[1])
        if proof.healthy_at is not None:
            latest = min(latest, proof.healthy_at)
        return now - latest if row.shards else 0.0

    def _settle(self, nodes: Iterable[NodeNow], now: float) -> None:
        """Nothing starts or stops before reports have arrived: an unknown node is unknown, never empty."""
        if not self.settled:
            heard = all(node.heard_s is not None or node.given_up for node in nodes)
            self.settled = heard or now - self.began_at > SETTLE_S

    def _doubt(self, nodes: Iterable[NodeNow]) -> None:
        known = [node for node in nodes if not node.given_up]
        if self.woke_late_s:
            before = [node for node in known if node.heard_s is not None]
            again = sum(node.silence_s < node.awake_s for node in before)
            if again * 2 >= len(before):
                self.woke_late_s = 0.0
        self.hold = doubts(known, self.woke_late_s, self.store_away)

    # -- taking over what was decided -----------------------------------------------------------------

    def took(self, rows: Iterable[Replica], gone: Iterable[str]) -> None:
        """The rows as the store has them now."""
        for row in rows:
            self.rows[row.name] = row
        for name in gone:
            self.rows.pop(name, None)
        self.version += 1
        self._forget()

    def _forget(self) -> None:
        """What is known of incarnations that are no more."""
        endpoints = {row.endpoint_id for row in self.rows.values()}
        instances = {id for row in self.rows.values() for id in row.instances}
        table: tuple[tuple[dict[str, Any], set[str]], ...] = (
            (self.proofs, endpoints), (self.quiet, endpoints), (self.held, endpoints), (self._progress, instances)
        )  # fmt: skip
        for kept, valid in table:
            for id in [id for id in kept if id not in valid]:
                del kept[id]

    def first_seen(self, seen: Seen) -> list[Replica]:
        """Rows whose rank 0 has just told its ports: the other ranks are told them, and so is a later leader.

        A row that is older than its process, out of a backup, follows what is reported.
        """
        found = []
        for now in seen.replicas.values():
            row, shard = now.replica, now.shards[0].seen if now.shards else None
            # While it is prepared its ports may still change.
            if shard is None or row.phase is not Phase.WANTED or shard.state is not ShardState.LOADING:
                continue
            if shard.ports.get(HTTP) and dict(shard.ports) != dict(row.first_ports):
                host = shard.host or seen.nodes[now.shards[0].node].address
                found.append(attrs.evolve(row, first_host=host, first_ports=dict(shard.ports)))
        return found

    def address(self, now: ReplicaNow, nodes: Mapping[str, NodeNow]) -> tuple[str, int] | None:
        """Host and port of rank 0, as far as it is known."""
        if not now.shards:
            return None
        first = now.shards[0]
        node, row = nodes.get(first.node), now.replica
        if node is None:
            return None
        if first.seen is not None and first.seen.ports.get(HTTP):
            return first.seen.host or node.address, first.seen.ports[HTTP]
        # Its node has not reported to this leader: where it was, if it answers there with its own key.
        return (row.first_host, row.first_ports[HTTP]) if first.seen is None and row.first_ports.get(HTTP) else None


def _said_by(record: NodeRecord) -> str:
    if not record.target_by:
        return record.target_why
    return f"by {record.target_by}" + (f": {record.target_why}" if record.target_why else "")


def signature(node: LiveNode) -> object:
    """What of a report a pass should look at at once; numbers that change all the time wait for the next one."""
    report = node.report
    if report is None:
        return None
    shards = tuple((s.id, s.state, tuple(s.ports.items()), s.exit is not None) for s in report.shards)
    evidence = tuple((g.uuid, tuple(e.cause for e in g.evidence)) for g in report.gpus)
    return shards, evidence, report.obeys, len(report.orphans)


def state_of(node: NodeNow) -> str:
    return "lost" if node.given_up else str(NodeState(node.state))


def state_in(seen: Seen, node: NodeNow) -> str:
    """As operators are told: of a node that is there and is taken out of service, how far that is."""
    if node.given_up or node.state is not NodeState.READY or node.drain is None:
        return state_of(node)
    return state_of_drain(seen, node)
