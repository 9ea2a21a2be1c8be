"""Two control planes on two SQLite files are two clusters: agents that were told of both keep to theirs."""

import pytest

from tests.journeys.clustering import cluster, model
from tests.journeys.running import House, running


def test_the_second_process_on_one_store_says_why_and_ends(home: House):
    with cluster(home, model(), nodes=0) as made:
        gateway = made.gateway
        with running("server", "-c", str(gateway.config), "--data-dir", str(gateway.data_dir)) as second:
            assert second.wait() == 3
        assert any(f"{gateway.data_dir}" in line and str(gateway.pid) in line for line in second.lines), second.lines


@pytest.mark.slow
def test_a_node_keeps_to_its_cluster_and_refuses_the_other_by_name(home: House):
    with (
        cluster(home, model(1), nodes=0) as ours,
        cluster(home, model(1), nodes=0, name="other", ca_of=ours) as others,
    ):
        both = f"127.0.0.1:{others.agents_port},127.0.0.1:{ours.agents_port}"
        node = ours.add("node-1", server=both)
        ours.wait(lambda: ours.serves(1))
        before = ours.running()

        # Its own is away for a while: it asks the other one, and is no node of that.
        ours.kill_control_plane()
        assert node.process is not None
        server = f"127.0.0.1:{others.agents_port}"
        node.process.said(f"refused by {server}: it is of cluster ", 20)
        assert any(f": take {server} out of agent.servers" in line for line in node.process.lines)
        assert others.get("/nodes")["nodes"] == []
        ours.start_control_plane()
        ours.wait(lambda: ours.serves(1) and ours.node("node-1")["agent"]["linked"])
        assert ours.running() == before
