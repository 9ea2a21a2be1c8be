"""C9 with real processes: an engine's place is free when its GPU memory is, and the next one waits for that."""

import os
import signal
import sys
from pathlib import Path

import pytest
import trio

from agent.gpus import Gpus
from llmgw.core.shards import Launch, ShardState
from sim.gpus import FOLDER, SimFolder, SimInventory, gpus_of
from tests.agent.engine_scripts import node, settings

A = "GPU-sim-0"
FIRST, SECOND = "m-1.g1.r0", "m-1.g2.r0"


def simulated(id: str) -> Launch:
    engine = (sys.executable, "-m", "llmgw", "sim", "engine", "--gpu-memory", "20000", "--port", "{port}")
    return Launch(id, engine, {"CUDA_VISIBLE_DEVICES": "{gpus}"}, gpus=(A,), need_mib=20000)


async def test_the_next_engine_starts_when_the_memory_of_the_last_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = SimFolder(tmp_path / "gpus")
    folder.make(gpus_of(1, 24 * 1024))
    monkeypatch.setenv(FOLDER, str(folder.path))
    asked = settings(tmp_path, gpu_every=0.05)
    whose = []  # the engines are made after the GPUs they use
    gpus = Gpus(asked, SimInventory(folder.path), lambda pid: whose[0](pid))
    async with node(tmp_path / "agent", gpus) as here, trio.open_nursery() as nursery:
        whose.append(here.engines.instance_of)
        nursery.start_soon(gpus.run)
        await gpus.wait_tried()
        here.want(simulated(FIRST))
        running = await here.until(lambda shard: shard.gpu_mib, FIRST)
        await here.log_says("listening", FIRST)
        assert running.gpu_mib == {A: 20000}
        assert gpus.free_mib(A) == 4576

        folder.hold_back(600)
        os.kill(running.pid, signal.SIGKILL)
        here.want(simulated(SECOND))
        releasing = await here.until(lambda shard: "held by nobody" in shard.why, FIRST)
        assert releasing.state is ShardState.RELEASING
        waiting = await here.until(lambda shard: shard.why, SECOND)
        assert (waiting.state, waiting.pid) == (ShardState.STARTING, 0)
        assert waiting.why == f"needs 19.5 GiB: {A} has 4.5 GiB free"

        folder.hold_back(0)
        await here.until(lambda shard: shard.gpu_mib, SECOND)
        nursery.cancel_scope.cancel()
