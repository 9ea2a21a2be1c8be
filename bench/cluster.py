"""What placing one replica and a whole reconcile pass cost, in milliseconds: part of ``make bench``.

Placement: 200 nodes of 8 GPUs, half of them claimed, every candidate explained in words. A pass: 1,000 replicas on
those nodes, every node heard, nothing to do: observe, plan, publish. Fails above its bounds.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import trio
from attrs import define

from llmgw.control.applying_plan import Applying
from llmgw.control.cluster import Cluster
from llmgw.control.desired import Desired
from llmgw.control.events import Events
from llmgw.control.passes import Passes
from llmgw.control.publishing import Publishing
from llmgw.control.watching import Watching
from llmgw.core.engine_spec import EngineSpec, Want
from llmgw.core.gpus import Gpu
from llmgw.core.joining import NodeRecord
from llmgw.core.offers import Claim, Demand, GpuOffer, NodeOffer
from llmgw.core.placement import ShardPlace, place
from llmgw.core.placement_explained import explain
from llmgw.core.replicas import Phase, Proof, Replica, ReplicaLimits
from llmgw.core.shards import ShardSeen, ShardState
from llmgw.core.term import Term
from llmgw.engines.live import LiveFleet
from llmgw.nodes.limits import ClusterLimits
from llmgw.nodes.registry import Registry
from llmgw.store.place import Place
from llmgw.store.sqlite import open_store
from llmgw.store.turn import inline
from llmgw.wire.agent_frames import Hello, Host, Obeys, Report

NODES, GPUS, REPLICAS, MODELS = 200, 8, 1000, 50
ROUNDS = 15
PLACEMENT_MS, PASS_MS = 20.0, 50.0
GIB = 1024


def placement_ms() -> float:
    """Median, with the explanation."""
    nodes = [_offer(number) for number in range(NODES)]
    demand = Demand("big", 1, 2, 60 * GIB)

    def once() -> None:
        said = explain("big", demand, place(demand, nodes))
        assert len(said.candidates) > NODES

    return _median_ms(once)


def _offer(number: int) -> NodeOffer:
    name = f"node-{number:03}"
    claims = (Claim(f"m-{number}.g1.r0", 70 * GIB, True, "m"),)
    gpus = (GpuOffer(Gpu(f"GPU-{name}-{i}", i, "A100", 80 * GIB, 600), claims if i % 2 else ()) for i in range(GPUS))
    return NodeOffer(name, tuple(gpus), memory_free_mib=400 * GIB, memory_mib=500 * GIB)


def pass_ms() -> float:
    return trio.run(_pass_ms)


async def _pass_ms() -> float:
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(Place(Path(folder), Path(folder) / "llmgw.db"), lambda: inline)
        try:
            passes = await _passes(store)
            await passes.once()
            took = []
            for _ in range(ROUNDS):
                began = time.perf_counter()
                made = await passes.once()
                took.append((time.perf_counter() - began) * 1000)
                assert str(made) == "nothing to do", made
            return median(took)
        finally:
            store.close()


@define(eq=False)
class Joined:
    nodes: dict[str, NodeRecord]


class Quiet:
    def info(self, *_: Any, **__: Any) -> None: ...

    warning = error = info


async def _passes(store: Any) -> Passes:
    limits, term = ReplicaLimits(), Term(0, store.start, "bench")
    spec = EngineSpec("sim", gpus=1, gpu_memory_mib=20 * GIB, exclusive=False)
    rows = {row.name: row for row in (_row(number, spec) for number in range(REPLICAS))}
    joined = Joined({name: NodeRecord(name, name.encode(), 0.0, "t") for name in _names()})
    registry = Registry(store.cluster_id, ClusterLimits(), lambda: term)
    events, desired = await Events.load(store, lambda: 1000), await Desired.load(store)
    desired.take([Want(f"m{m}", spec, least=REPLICAS // MODELS, most=REPLICAS // MODELS) for m in range(MODELS)])
    live = LiveFleet(lambda endpoint: None)  # type: ignore[arg-type, return-value]
    cluster = Cluster(
        term,
        registry,
        joined,
        desired,
        live,
        lambda: limits,
        ClusterLimits,
        time.time,
        rows,  # type: ignore[arg-type]
    )
    for row in rows.values():
        cluster.proofs[row.endpoint_id] = Proof(trio.current_time())
    for name in _names():
        _report(registry, name, rows, term)
    publishing = Publishing(cluster, events, "secret", lambda routes: None, Quiet())
    return Passes(cluster, Applying(store, cluster, events), publishing, Watching(events), events, Quiet())


def _names() -> list[str]:
    return [f"node-{number:03}" for number in range(NODES)]


def _row(number: int, spec: EngineSpec) -> Replica:
    node = f"node-{number % NODES:03}"
    shard = ShardPlace(0, node, (f"GPU-{node}-{number // NODES}",), 20 * GIB)
    return Replica(f"m{number % MODELS}-{number}", f"m{number % MODELS}", spec, Phase.WANTED, number + 1, (shard,))


def _report(registry: Registry, name: str, rows: dict[str, Replica], term: Term) -> None:
    node = registry.node(name)
    node.hello = Hello(1, registry.cluster, name, "boot", address="10.0.0.1")
    here = [row for row in rows.values() if row.shards[0].node == name]
    shards = tuple(
        ShardSeen(row.instance(0), ShardState.LOADING, host="10.0.0.1", ports={"http": 20000 + row.generation})
        for row in here
    )
    gpus = tuple(Gpu(f"GPU-{name}-{i}", i, "A100", 80 * GIB, 600) for i in range(GPUS))
    node.reported(Report(1, Obeys(term, 10**6), Host(memory_mib=500 * GIB), gpus, shards), trio.current_time())


def _median_ms(once: Callable[[], None]) -> float:
    took = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        once()
        took.append((time.perf_counter() - began) * 1000)
    return median(took)


def main() -> None:
    found = {
        f"placement among {NODES} nodes of {GPUS} GPUs, explained": (placement_ms(), PLACEMENT_MS),
        f"a pass over {REPLICAS} replicas with nothing to do": (pass_ms(), PASS_MS),
    }
    for what, (ms, bound) in found.items():
        print(f"{what:<60} {ms:8.1f} ms  (bound {bound:g})")
    sys.exit(any(ms > bound for ms, bound in found.values()))


if __name__ == "__main__":
    main()
