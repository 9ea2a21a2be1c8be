"""What a pass tells others: each node what it should run, the gateway which replicas serve."""

from collections.abc import Callable, Mapping
from typing import Any

import trio
from attrs import define, field

from llmgw.control.cluster import Cluster, Sent
from llmgw.control.events import Events
from llmgw.control.launching import engine_key, paths_asked, wanted_on
from llmgw.core.engine_spec import EngineSpec
from llmgw.core.fleet import Endpoint
from llmgw.core.presets import PRESETS, engine_of
from llmgw.core.reconcile import Seen
from llmgw.core.replicas import NO_PROOF, Phase, Replica, ReplicaNow, Standing
from llmgw.core.secret import Secret
from llmgw.core.shards import Launch
from llmgw.tasks.sockets import joined_address

Routes = Mapping[str, tuple[Endpoint, ...]]
# While nothing better serves, traffic flows to a replica whose node is silent: its engine may answer still.
_ROUTED = frozenset({Standing.SERVING, Standing.UNKNOWN, Standing.GONE})
_ROUTED_UNTRIED = _ROUTED | {Standing.LOADING}


@define(eq=False)
class Publishing:
    """``route`` takes every model's replicas; it is called only when they change."""

    cluster: Cluster
    events: Events
    secret: str = field(repr=False)
    route: Callable[[Routes], None]
    log: Any
    _version: int = field(default=-1, init=False)
    _wanted: Mapping[str, tuple[Launch, ...]] = field(factory=dict, init=False, repr=False)
    _routes: Routes = field(factory=dict, init=False, repr=False)
    _superseded: set[str] = field(factory=set, init=False)  # replicas
    _endpoints: dict[str, Endpoint] = field(factory=dict, init=False, repr=False)
    _inherited: frozenset[str] = field(default=frozenset(), init=False)  # endpoints

    def inherit(self, routes: Routes) -> None:
        """What this gateway serves already, as the term begins: it stays until the first try of each says otherwise."""
        self._routes = routes
        self._endpoints = {one.id: one for its in routes.values() for one in its}
        self._inherited = frozenset(self._endpoints)

    def publish(self, seen: Seen) -> None:
        if seen.settled:
            self._tell_nodes(seen)
        self._tell_gateway(seen)

    # -- nodes ----------------------------------------------------------------------------------------

    def _tell_nodes(self, seen: Seen) -> None:
        cluster = self.cluster
        if self._version != cluster.version:
            self._wanted, self._version = wanted_on(cluster.rows.values(), self.secret), cluster.version
        paths = paths_asked(cluster.rows.values(), (want.spec.model for want in seen.wants.values()))
        for name in seen.nodes:
            entries, sent = self._wanted.get(name, ()), cluster.sent.get(name)
            if sent is None or entries != sent.entries or paths != sent.paths:
                before = sent or Sent()
                obeyed = sent is None or seen.nodes[name].obeys >= sent.rev
                since = trio.current_time() if obeyed else before.since
                self._tell(name, Sent(before.rev + 1, entries, paths, since))
        for name in [name for name in cluster.sent if name not in seen.nodes]:
            del cluster.sent[name]

    def _tell(self, name: str, sent: Sent) -> None:
        why = self.cluster.registry.want(name, sent.rev, sent.entries, sent.paths)
        if why:
            self.log.error("a node was not told what to run", node=name, why=why)
        self.cluster.sent[name] = sent

    # -- the gateway ----------------------------------------------------------------------------------

    def _tell_gateway(self, seen: Seen) -> None:
        found: dict[str, list[Endpoint]] = {}
        self._note_superseded(seen)
        for now in seen.replicas.values():
            if now.name in self._superseded:
                continue
            if self._is_routed(now) and (endpoint := self._endpoint(now, seen)) is not None:
                found.setdefault(now.replica.model, []).append(endpoint)
        routes = {model: tuple(sorted(its, key=lambda one: one.id)) for model, its in found.items()}
        if routes != self._routes:
            self._say(routes)
            self._routes = routes
            self.route(routes)

    def _note_superseded(self, seen: Seen) -> None:
        """What was given up has no traffic while another serves in its place, even if it comes back."""
        replaced = {now.replica.replaces for now in seen.replicas.values() if now.serving}
        gone = {name for name, now in seen.replicas.items() if now.standing is Standing.GONE}
        self._superseded = replaced & (gone | self._superseded)

    def _is_routed(self, now: ReplicaNow) -> bool:
        proof = self.cluster.proofs.get(now.replica.endpoint_id, NO_PROOF)
        if now.replica.phase is not Phase.WANTED:
            return False
        if proof.tried_at is None and now.replica.endpoint_id in self._inherited:
            return now.standing in _ROUTED_UNTRIED
        well = proof.proved_at is not None and proof.failures < self.cluster.limits().canary_failures
        return well and now.standing in _ROUTED

    def _endpoint(self, now: ReplicaNow, seen: Seen) -> Endpoint | None:
        where = self.cluster.address(now, seen.nodes)
        known = self._endpoints.get(now.replica.endpoint_id)
        if where is None:  # its node is silent since this leader began, or has not told yet
            return known
        want = seen.wants.get(now.replica.model)
        made = endpoint_of(now.replica, where, self.secret, want.spec if want else now.replica.spec)
        if made != known:
            self._endpoints[made.id] = made
        return self._endpoints[made.id]

    def _say(self, routes: Routes) -> None:
        before = {e.id: e for its in self._routes.values() for e in its}
        after = {e.id: e for its in routes.values() for e in its}
        for id, endpoint in after.items():
            if id not in before:
                name = id.rpartition(".g")[0]
                self.events.tell("replica.ready", name, f"{name} serves {endpoint.model}", endpoint=id)
        for id, endpoint in before.items():
            if id not in after:
                name = id.rpartition(".g")[0]
                self.events.tell("replica.out", name, f"{name} is out of the pool of {endpoint.model}", endpoint=id)
        live = {row.endpoint_id for row in self.cluster.rows.values()}
        self._endpoints = {id: endpoint for id, endpoint in self._endpoints.items() if id in live}


def endpoint_of(replica: Replica, where: tuple[str, int], secret: str, spec: EngineSpec) -> Endpoint:
    """``spec``: what is wanted now, for what needs no restart."""
    preset = PRESETS[replica.spec.preset]
    asks = replica.spec.api_key and bool(preset.key_env or preset.key_file)
    return Endpoint(
        replica.endpoint_id,
        replica.model,
        f"http://{joined_address(*where)}",
        engine_of(replica.spec),
        Secret(engine_key(secret, replica.endpoint_id)) if asks else None,
        served_as=replica.spec.served_as,
        capacity=spec.capacity,
        max_in_flight=spec.max_in_flight,
        adapters=spec.adapters,
        replica=replica.name,
    )
