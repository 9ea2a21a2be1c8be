"""What Prometheus is told of the cluster: nodes and GPUs by state and reason, replicas, restarts, links, passes.

Labels are nodes, models, causes and states: all from the config, from who has joined, or from a fixed set.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import trio
from attrs import define

from llmgw.control.cluster import Cluster, state_in
from llmgw.control.endpoint_targets import PREFIX, EndpointTargets
from llmgw.control.events import Events
from llmgw.control.node_views import state_shown
from llmgw.control.passes import Passes
from llmgw.control.proving import Proving
from llmgw.control.targets import Targets
from llmgw.core.claims import board_of
from llmgw.core.drain_plan import left_on, state_of_drain, waits_for
from llmgw.core.reconcile import Seen
from llmgw.core.replicas import Phase
from llmgw.telemetry.families import Family, single, tallied

MIB = 1024**2


@define(eq=False)
class ClusterMetrics:
    """``expires_in_s`` is asked for the certificate that agents meet; None without one."""

    cluster: Cluster
    events: Events
    passes: Passes
    proving: Proving
    targets: Targets
    endpoint_targets: EndpointTargets
    expires_in_s: Any

    def families(self) -> Iterator[Family]:
        seen, now = self.cluster.observe(), trio.current_time()
        yield from self._nodes(seen, now)
        yield from self._gpus(seen)
        yield from self._replicas(seen)
        yield from self._drains(seen)
        yield from self._passes()
        yield from self._links()

    def _nodes(self, seen: Seen, now: float) -> Iterator[Family]:
        states = (
            {"node": name, "state": state_in(seen, node), "target": node.target} for name, node in seen.nodes.items()
        )
        yield Family("llmgw_node_state", "1 for the state a node is in", tuple((labels, 1.0) for labels in states))
        heard = [({"node": n}, round(one.heard_s, 3)) for n, one in seen.nodes.items() if one.heard_s is not None]
        yield Family("llmgw_node_report_age_seconds", "since a node's last report", tuple(heard))
        behind = [({"node": name}, round(node.behind_s, 3)) for name, node in seen.nodes.items()]
        yield Family("llmgw_node_behind_seconds", "since a node was told what it has not taken in", tuple(behind))
        yield Family("llmgw_node_orphans", "groups of processes that belong to nobody", tuple(
            ({"node": name}, float(len(node.orphans))) for name, node in seen.nodes.items()
        ))  # fmt: skip
        links = []
        for name, live in self.cluster.registry.nodes.items():
            if live.link is not None:
                links.append(({"node": name}, round(now - live.link.linked_at, 1)))
        yield Family("llmgw_agent_link_age_seconds", "of agents that have a link", tuple(links))
        versions = [
            ({"node": name, "version": live.hello.version}, 1.0)
            for name, live in self.cluster.registry.nodes.items()
            if live.hello is not None
        ]
        yield Family("llmgw_agent_info", "always 1", tuple(versions))

    def _gpus(self, seen: Seen) -> Iterator[Family]:
        board = board_of(seen.nodes, seen.replicas.values())
        memory, reasons, usable = [], Counter[tuple[str, str, str]](), Counter[tuple[str, str]]()
        for name in seen.nodes:
            for offer in board.offer(name).gpus:
                gpu, labels = offer.gpu, {"node": name, "gpu": offer.gpu.uuid}
                kinds = {"total": gpu.total_mib, "claimed": offer.claimed_mib, "ours": gpu.ours_mib,
                         "foreign": gpu.foreign_mib}  # fmt: skip
                memory += [({**labels, "kind": kind}, float(mib * MIB)) for kind, mib in kinds.items()]
                for one in gpu.evidence:
                    reasons[name, one.cause, str(one.severity)] += 1
                usable[name, "excluded" if gpu.excluded else "sliced" if gpu.sliced else "usable"] += 1
        yield Family("llmgw_gpu_memory_bytes", "claimed: set aside; ours: measured; foreign: others'", tuple(memory))
        yield Family("llmgw_gpus", "by state", tallied(usable, ("node", "state")))
        by_cause = tallied(reasons, ("node", "cause", "severity"))
        yield Family("llmgw_gpu_evidence", "GPUs by what speaks against them", by_cause)

    def _replicas(self, seen: Seen) -> Iterator[Family]:
        limits = self.cluster.limits()
        states: Counter[tuple[str, str]] = Counter()
        for now in seen.replicas.values():
            states[now.replica.model, state_shown(now, limits)] += 1
        yield Family("llmgw_replicas", "by model and state", tallied(states, ("model", "state")))
        wanted = [({"model": model}, float(want.replicas)) for model, want in seen.wants.items()]
        yield Family("llmgw_replicas_desired", "that there shall be", tuple(wanted))
        counted = self.cluster.counts
        failed, started = tallied(counted.failed, ("model",)), tallied(counted.started, ("model",))
        yield Family("llmgw_replica_restarts_total", "incarnations that failed", failed, "counter")
        yield Family("llmgw_replica_starts_total", "incarnations begun", started, "counter")
        sums = tuple(({"model": model}, round(seconds, 3)) for model, (_, seconds) in counted.start_times.items())
        numbers = tuple(({"model": model}, float(number)) for model, (number, _) in counted.start_times.items())
        yield Family("llmgw_replica_start_seconds_sum", "from launch to the first answer", sums, "counter")
        yield Family("llmgw_replica_start_seconds_count", "incarnations that answered", numbers, "counter")
        yield Family("llmgw_placements_failed_total", "replicas that found no place, by what most nodes lacked",
                     tallied(counted.unplaced, ("model", "reason")), "counter")  # fmt: skip
        waiting = sum(now.replica.phase is Phase.WAITING for now in seen.replicas.values())
        yield single("llmgw_replicas_waiting", "for a place or their next try", waiting)

    def _drains(self, seen: Seen) -> Iterator[Family]:
        targets, endpoints = self.targets, self.endpoint_targets
        under_way = [node for node in seen.nodes.values() if node.drain is not None]
        states = [({"subject": node.name, "state": state_of_drain(seen, node)}, 1.0) for node in under_way]
        statuses = ((id, endpoints.status(id)) for id in endpoints.held)
        states += [({"subject": PREFIX + id, "state": status["state"]}, 1.0) for id, status in statuses if status]
        yield Family("llmgw_drain_state", "1 for how far the drain of a node or an endpoint is", tuple(states))
        left = [({"subject": node.name}, float(len(left_on(seen, node)))) for node in under_way]
        yield Family("llmgw_drain_replicas_left", "of drained nodes, that still have something there", tuple(left))
        waits = Counter[tuple[str, str]]()
        for node in under_way:
            if node.draining:
                for now in left_on(seen, node):
                    waits[node.name, waits_for(seen, now)] += 1
        yield Family("llmgw_drain_waiting_on", "replicas, by what their drain waits on",
                     tallied(waits, ("subject", "what")))  # fmt: skip
        ends = Counter(targets.counts) + Counter(endpoints.counts)
        yield Family("llmgw_drains_ended_total", "by how they ended", tallied(ends, ("end",)), "counter")
        yield single(
            "llmgw_drain_replaced_total",
            "replicas that left for a drain, another in their place",
            targets.replaced,
            "counter",
        )
        yield single("llmgw_drain_requests_cut_total",
                     "requests that were there when a deadline ended what served them",
                     targets.cut + endpoints.cuts, "counter")  # fmt: skip

    def _passes(self) -> Iterator[Family]:
        passes, proving = self.passes, self.proving
        yield single("llmgw_reconcile_pass_seconds_sum", "time in passes", round(passes.seconds, 4), "counter")
        yield single("llmgw_reconcile_pass_seconds_count", "passes", passes.number, "counter")
        yield single(
            "llmgw_reconcile_held", "1 while the leader doubts itself and stops nothing", bool(self.cluster.hold)
        )
        yield single("llmgw_canary_requests_total", "asked of replicas", proving.tries, "counter")
        yield single("llmgw_canary_failures_total", "of replicas that had answered before", proving.failed, "counter")
        yield single("llmgw_events_last", "number of the latest event", self.events.last)
        yield single("llmgw_events_unwritten", "1 while the store takes no events", bool(self.events.failing))

    def _links(self) -> Iterator[Family]:
        counts = self.cluster.registry.counts
        yield Family("llmgw_agent_connections_total", "at the agents' listener, by what became of them",
                     tallied({(name,): number for name, number in counts.items()}, ("what",)), "counter")  # fmt: skip
        yield from self.certificate()

    def certificate(self) -> Iterator[Family]:
        """Also of one that does not lead: agents would meet it tomorrow."""
        left = self.expires_in_s()
        if left is not None:
            yield single("llmgw_agents_certificate_expires_seconds", "until it ends", round(left))
