"""What `make demo` shows, to its end."""

import json
import signal
import sys
from pathlib import Path

from sim.node import end_engines
from tests.journeys.running import running


def test_two_answers_and_why_they_went_where_they_went(tmp_path: Path):
    with running("demo", "--once", "--dir", str(tmp_path)) as demo:
        assert demo.wait(60) == 0
    said = "\n".join(demo.lines)
    assert said.count("answered by engine-") == 2


def test_an_engine_of_a_cluster_dies_and_a_node_is_drained_while_traffic_is_answered(tmp_path: Path):
    """And while it stays up, ctl and console find it without a word."""
    config = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    with running("demo", "--cluster", "--dir", str(tmp_path), **config) as demo:
        demo.said("Press Ctrl-C", 90)
        with running("ctl", "-o", "json", "nodes", **config) as nodes:
            assert nodes.wait(20) == 0
        with running("console", **config) as console:
            assert console.wait(20) == 2, "it finds the demo, and no terminal"
        demo.signal(signal.SIGINT)
        assert demo.wait(60) == 0
    with running("ctl", "context", "list", **config) as contexts:
        assert contexts.wait(20) == 0
    said = "\n".join(demo.lines)
    assert "killed by signal 9" in said
    assert ", 0 failed" in said
    assert "is drained after" in said
    assert f"  {sys.executable} -m llmgw console" in demo.lines
    assert [node["name"] for node in json.loads("\n".join(nodes.lines))["nodes"]] == ["node-1", "node-2"]
    assert not any("demo" in line for line in contexts.lines)
    assert [end_engines(tmp_path / f"node-{number}") for number in (1, 2)] == [0, 0]
