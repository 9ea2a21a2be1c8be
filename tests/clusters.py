"""A control plane over a real store, without a listener: for what is built on it."""

from functools import partial
from typing import Any

import trio
from attrs import define

from llmgw.admin.services import Applied, ClusterServices
from llmgw.config.units import bytes_of
from llmgw.control.acting import Acting
from llmgw.control.applying_plan import Applying
from llmgw.control.cluster import Cluster
from llmgw.control.desired import Desired
from llmgw.control.endpoint_targets import EndpointTargets
from llmgw.control.events import Events
from llmgw.control.explaining import Explaining
from llmgw.control.explaining_drains import ExplainingDrains
from llmgw.control.joining import Joining
from llmgw.control.own_drains import OwnDrains
from llmgw.control.passes import Passes
from llmgw.control.publishing import Publishing
from llmgw.control.targets import Targets
from llmgw.control.watching import Watching
from llmgw.core.drain import DrainLimits
from llmgw.core.drain_plan import NO_REQUESTS, Requests
from llmgw.core.identity import Operator
from llmgw.core.replicas import ReplicaLimits
from llmgw.core.term import Term
from llmgw.daemon.operating import revision_json
from llmgw.engines.client import EngineClient
from llmgw.engines.live import LiveFleet
from llmgw.nodes.limits import ClusterLimits
from llmgw.nodes.registry import Registry
from llmgw.store import replicas
from llmgw.store.desired import Revision
from llmgw.store.sqlite import SqliteStore

CA = "0" * 32


class Quiet:
    """A log that nobody reads."""

    def info(self, *_: Any, **__: Any) -> None: ...

    warning = error = info


@define(eq=False)
class Plane:
    store: SqliteStore
    cluster: Cluster
    events: Events
    desired: Desired
    joining: Joining
    registry: Registry
    passes: Passes
    routed: list[Any]
    limits: ReplicaLimits
    targets: Targets
    own_drains: OwnDrains
    endpoint_targets: EndpointTargets
    requests: dict[str, Requests]  # by endpoint id, as a gateway would count them

    def services(self) -> ClusterServices:
        async def roll_back(to: Revision, by: Operator, why: str) -> Applied:
            return Applied(to.revision + 1, (f"models of revision {to.revision}",))

        return ClusterServices(
            self.cluster,
            self.joining,
            self.desired,
            self.events,
            Explaining(self.cluster, self.store, bytes_of),
            ExplainingDrains(self.targets, self.endpoint_targets),
            Acting(self.store, self.cluster, self.events),
            self.targets,
            self.endpoint_targets,
            self.store,
            roll_back,
            revision_json,
            lambda: "10.0.0.1:7443",
        )


async def plane(
    store: SqliteStore, limits: ReplicaLimits | None = None, wall: Any = None, connect: Any = None, times: Any = None
) -> Plane:
    """``connect``: how its engines are reached; None: they are not."""
    limits, times = limits or ReplicaLimits(), times or ClusterLimits
    term = Term(0, store.start, "nonce")
    wall = wall or (lambda: 1_000_000.0 + trio.current_time())
    events = await Events.load(store, lambda: limits.events_max, wall)
    desired = await Desired.load(store, wall)
    joining = await Joining.load(store, lambda: CA)
    registry = Registry(store.cluster_id, times(), lambda: term)
    live = LiveFleet(lambda endpoint: EngineClient(endpoint, connect or _no_network))
    rows = await store.read(replicas.every)
    cluster = Cluster(
        term, registry, joining, desired, live, lambda: limits, times, wall, {row.name: row for row in rows}
    )
    desired.on_change = cluster.wake
    routed: list[Any] = []
    publishing = Publishing(cluster, events, "secret", routed.append, Quiet())
    passes = Passes(cluster, Applying(store, cluster, events), publishing, Watching(events), events, Quiet())
    requests: dict[str, Requests] = {}
    targets = Targets(cluster, events, DrainLimits, lambda: requests, lambda what, error: None)
    endpoints = EndpointTargets(
        store, live, events, DrainLimits, wall, lambda: requests, partial(_cut, requests), lambda what, error: None
    )
    await endpoints.load()
    own = OwnDrains(cluster, events, targets, lambda what, error: None)

    async def looked(seen: Any, stopped: Any) -> None:
        await targets.look(seen, stopped)
        await own.look(seen)

    passes.after = looked
    return Plane(
        store, cluster, events, desired, joining, registry, passes, routed, limits, targets, own, endpoints, requests
    )


def _cut(requests: dict[str, Requests], endpoint: str) -> int:
    return requests.pop(endpoint, NO_REQUESTS).number


async def _no_network(host: str, port: int, tls: object = None) -> Any:
    raise OSError("there is no network here")
