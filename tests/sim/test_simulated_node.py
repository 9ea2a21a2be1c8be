"""`llmgw sim node`: an agent whose GPUs are a file."""

import signal
import subprocess
import sys
from pathlib import Path

from sim.gpus import SimFolder
from sim.node import NodeSpec, inventory_of


def test_it_runs_an_agent_with_gpus_of_its_own_and_ends_when_asked(tmp_path: Path):
    folder = tmp_path / "node"
    command = [sys.executable, "-m", "llmgw", "sim", "node", "--dir", str(folder), "--server", "127.0.0.1:1"]
    options = ["--name", "n.1", "--gpus", "3", "--gpu-memory", "1000", "--label", "zone=a"]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines = iter(process.stderr.readline, "")
            assert "0 engines" in next(lines)
            assert any("3 GPUs" in line for line in lines)
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 0
        finally:
            process.kill()
    made = SimFolder(folder / "gpus").state.gpus
    assert [(gpu.uuid, gpu.total_mib) for gpu in made] == [(f"GPU-n-1-{n}", 1000) for n in range(3)]


def test_a_broken_gpu_stays_broken_when_the_node_starts_again(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("LLMGW_SIM_GPUS", "")
    spec = NodeSpec(tmp_path, gpus=2)
    inventory_of(spec)
    folder = SimFolder(tmp_path / "gpus")
    folder.xid("GPU-sim-0", 79)
    inventory_of(spec)
    assert folder.state.gpus[0].xids == (79,)


def test_a_node_may_have_no_gpus_and_says_what_it_is(tmp_path: Path):
    settings = NodeSpec(tmp_path, "n1", ("h:1",), gpus=0, labels={"zone": "a"}).settings
    assert (settings.gpus, settings.name, settings.labels, settings.servers) == (False, "n1", {"zone": "a"}, ("h:1",))
