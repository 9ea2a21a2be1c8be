"""Shortly before a drain is over, what can go nowhere begins nothing new, if others serve: less is cut at the end."""

import attrs

from llmgw.core.actions import Leave, Return, Stop
from llmgw.core.drain import AtDeadline
from llmgw.core.replicas import Phase
from tests.core.test_drains import Drained
from tests.core.test_reconcile import want


def stuck(n=2, grace_s=300.0, **more):
    """Every node is full; the one of m-1 is drained."""
    cluster = Drained(nodes=n, gpus=1, wants={"m": want(n)}).run(30)
    cluster.said.clear()
    cluster.in_flight = {"m-1": 2}
    node = cluster.rows["m-1"].shards[0].node
    cluster.drain(node, grace_s=grace_s, **more)
    return cluster, node


def test_it_leaves_the_pool_a_tenth_of_the_grace_before_the_end_and_finishes_what_it_has():
    cluster, node = stuck()
    cluster.run(269)
    assert cluster.serving() == ["m-1", "m-2"]
    cluster.run(2)
    assert cluster.serving() == ["m-2"]
    (leave,) = cluster.of(Leave)
    assert leave.why == f"last call: the drain of {node} is soon over, and others of its model serve"
    cluster.run(5)
    assert cluster.rows["m-1"].phase is Phase.LEAVING
    cluster.in_flight.clear()
    cluster.run(3)
    assert cluster.on(node) == []


def test_but_a_minute_before_it_at_most():
    cluster, _ = stuck(grace_s=2700.0)
    cluster.run(2639)
    assert cluster.serving() == ["m-1", "m-2"]
    cluster.run(2)
    assert cluster.serving() == ["m-2"]


def test_the_last_one_that_serves_serves_to_the_end():
    cluster, node = stuck(n=1)
    cluster.run(299)
    assert cluster.serving() == ["m-1"]
    cluster.run(3)
    assert cluster.on(node) == []


def test_and_so_does_what_is_kept():
    cluster, _ = stuck(at_deadline=AtDeadline.KEEP)
    cluster.run(400)
    assert cluster.serving() == ["m-1", "m-2"]


def test_and_one_whose_replacement_starts():
    cluster, _ = stuck()
    cluster.start_s = 35
    cluster.run(260)
    cluster.nodes += 1  # there is room at last
    cluster.run(38)
    assert len(cluster.serving()) >= 2
    assert not cluster.of(Leave)


def test_two_that_are_called_at_once_do_not_count_on_each_other():
    cluster, _ = stuck()
    cluster.drain(cluster.rows["m-2"].shards[0].node, grace_s=300.0)
    cluster.run(298)
    assert cluster.serving() == ["m-1", "m-2"]


def test_with_more_time_or_an_undo_it_is_back_in_the_pool():
    for undone in (True, False):
        cluster, node = stuck()
        cluster.run(275)
        assert cluster.serving() == ["m-2"]
        if undone:
            del cluster.aims[node]
        else:
            cluster.aims[node] = attrs.evolve(cluster.aims[node], ends_at=cluster.mono + 300)
        cluster.run(5)
        assert [back.replica for back in cluster.of(Return)] == ["m-1"]
        assert cluster.serving() == ["m-1", "m-2"]
        assert not [one for one in cluster.of(Stop) if one.replica == "m-1"]
