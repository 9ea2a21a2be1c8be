"""How a replica that ends is told."""

from llmgw.core.engine_spec import EngineSpec
from llmgw.core.node_life import NodeNow
from llmgw.core.placement import ShardPlace
from llmgw.core.replicas import NO_PROOF, Phase, Replica, ReplicaLimits
from llmgw.core.shards import Exit, ShardSeen, ShardState
from llmgw.core.standing import stand


def test_a_stop_that_takes_long_says_once_how_its_process_ended():
    end = Exit(signal=9)
    seen = ShardSeen("m-1.g1.r0", ShardState.RELEASING, exit=end, why=f"{end}; 20.0 GiB on GPU-a held by nobody")
    shards = (ShardPlace(0, "node-1", ("GPU-a",)),)
    row = Replica("m-1", "m", EngineSpec("sim"), Phase.STOPPING, generation=1, shards=shards)
    node = NodeNow("node-1", heard_s=0.0, shards={seen.id: seen})
    now = stand(row, {"node-1": node}, NO_PROOF, ReplicaLimits(), 0.0, 0.0)
    assert now.why == "on node-1 releasing: killed by signal 9; 20.0 GiB on GPU-a held by nobody"
