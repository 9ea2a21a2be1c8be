"""What `make demo` shows, to its end."""

from pathlib import Path

from sim.node import end_engines
from tests.journeys.running import running


def test_two_answers_and_why_they_went_where_they_went(tmp_path: Path):
    with running("demo", "--once", "--dir", str(tmp_path)) as demo:
        assert demo.wait(60) == 0
    said = "\n".join(demo.lines)
    assert said.count("answered by engine-") == 2


def test_an_engine_of_a_cluster_dies_and_a_node_is_drained_while_traffic_is_answered(tmp_path: Path):
    with running("demo", "--cluster", "--once", "--dir", str(tmp_path)) as demo:
        assert demo.wait(90) == 0
    said = "\n".join(demo.lines)
    assert "killed by signal 9" in said
    assert ", 0 failed" in said
    assert "is drained after" in said
    assert [end_engines(tmp_path / f"node-{number}") for number in (1, 2)] == [0, 0]
