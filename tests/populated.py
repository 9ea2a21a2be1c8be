"""A control plane with something in it: two nodes that report, a model of two replicas that serve."""

import trio
from attrs import evolve

from llmgw.core.engine_spec import EngineSpec, Want
from llmgw.core.gpus import Evidence, Gpu, GpuProcess, Severity
from llmgw.core.identity import Operator, Role
from llmgw.core.replicas import Phase, Proof
from llmgw.core.shards import Orphan, ShardSeen, ShardState
from llmgw.wire.agent_frames import VERSION, Hello, Host, Obeys, Report, Tail
from llmgw.wire.agent_joining import JoinAsked
from tests.clusters import Plane

ANN = Operator("ann", Role.ADMIN)
MODEL = "org/llama"
WANT = Want(MODEL, EngineSpec("sim", gpus=1, gpu_memory_mib=8192), least=2, most=2)
XID = Evidence("xid 79", Severity.EXCLUDED, "fallen off the bus", 1.0, 2.0, "a reboot of the node", 3)
GPUS = {
    "node-1": (
        Gpu("GPU-a0", 0, "H200", 24576, 2048, processes=(GpuProcess(99, 2048, "python\x1b[31m"),)),
        Gpu("GPU-a1", 1, "H200", 24576, 0, evidence=(XID,)),
    ),
    "node-2": (Gpu("GPU-b0", 0, "H200", 24576, 0),),
}
ORPHAN = Orphan("old.g1.r0", (4, 5), "no record of it")
LOG = "loading\n\x1b[2Jweights\tdone\n"


async def populated(plane: Plane) -> None:
    """``org-llama-1`` and ``org-llama-2`` serve, on one node each."""
    invited = await plane.joining.invite(ANN)
    for name in GPUS:
        await plane.joining.join(invited.token.text, JoinAsked(name, version="0.3", address=f"10.0.0.{name[-1]}"))
        plane.registry.node(name).hello = Hello(VERSION, "c", name, "boot", version="0.3", labels={"rack": "a"})
        reports(plane, name)
    await plane.desired.record([{"name": MODEL}], "start", source="llmgw.toml")
    plane.desired.take([WANT])
    for _ in range(3):
        await plane.passes.once()
    for name in GPUS:
        reports(plane, name)
    for row in plane.cluster.rows.values():
        plane.cluster.proofs[row.endpoint_id] = Proof(trio.current_time(), tried_at=trio.current_time())
    await plane.passes.once()
    plane.registry.node("node-1").said(Tail(_shard_on(plane, "node-1"), LOG, 2000), trio.current_time())


def reports(plane: Plane, name: str) -> None:
    """Whatever is wanted there runs."""
    cluster = plane.cluster
    places = [(row, at) for row in cluster.rows.values() for at in row.shards if at.node == name]
    running = {
        row.instance(at.rank): ShardSeen(
            row.instance(at.rank), ShardState.LOADING, 1.0, pid=100 + row.generation, host="127.0.0.1",
            ports={"http": 20_000 + row.generation}, gpu_mib=dict.fromkeys(at.gpus, 7168), memory_mib=512,
        )
        for row, at in places
        if row.phase in (Phase.WANTED, Phase.LEAVING)
    }  # fmt: skip
    ours = [gpu for _, at in places for gpu in at.gpus]
    gpus = [evolve(g, used_mib=g.used_mib + 7168, ours_mib=7168) if g.uuid in ours else g for g in GPUS[name]]
    sent = cluster.sent.get(name)
    orphans = (ORPHAN,) if name == "node-1" else ()
    report = Report(
        1, Obeys(cluster.term, sent.rev if sent else 0), Host(65536, 32768, 1024), tuple(gpus),
        tuple(running.values()), orphans,
    )  # fmt: skip
    plane.registry.node(name).reported(report, trio.current_time())


def _shard_on(plane: Plane, node: str) -> str:
    return next(row.instance(at.rank) for row in plane.cluster.rows.values() for at in row.shards if at.node == node)
