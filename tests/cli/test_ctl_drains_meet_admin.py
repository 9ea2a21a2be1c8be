"""ctl cordons, drains, moves and purges against the real admin app and control plane."""

from click.testing import Result

from llmgw.core.gpus import Gpu
from tests import populated
from tests.cli import test_ctl_cluster as clustered

gateway = clustered.gateway
NODE, OTHER = "node-1", "node-2"


def real(gateway: clustered.Clustered, *words: str) -> Result:
    return clustered.ctl(gateway, *words)


def test_a_cordon_is_seen_at_the_node_with_who_and_why_and_taken_back(gateway):
    shown = real(gateway, "cordon", NODE, OTHER, "-m", "new fans")
    assert (shown.exit_code, shown.stdout) == (0, "node-1 is cordoned\nnode-2 is cordoned\n")
    assert real(gateway, "cordon", NODE).exit_code == 0

    listed = real(gateway, "nodes").stdout.splitlines()[1]
    assert "cordoned " in listed
    assert "cordoned by first-start: new fans" in listed
    head = real(gateway, "nodes", "show", NODE).stdout.splitlines()[0]
    assert head.startswith("node-1: ready, cordoned by first-start, ")
    assert head.endswith(" ago): new fans")

    assert real(gateway, "uncordon", NODE, OTHER, "-m", "done").exit_code == 0
    assert "schedulable" in real(gateway, "nodes").stdout.splitlines()[1]


def test_a_dry_run_and_the_drain_after_it_say_the_same_and_nodes_show_it(gateway):
    dry = real(gateway, "drain", OTHER, "--dry-run")
    assert (dry.exit_code, "nowhere" in dry.stdout, "no node fits" in dry.stdout) == (5, True, True)
    asked = real(gateway, "drain", OTHER, "--grace", "90m", "--at-deadline", "keep", "-m", "new fans")
    assert asked.exit_code == 0
    assert "node-2 is draining\n" in asked.stdout
    assert "what could not go elsewhere by then is kept" in asked.stdout

    assert "draining, 0 of 1 replica replaced, 90 min left" in real(gateway, "nodes").stdout
    node = real(gateway, "nodes", "show", OTHER).stdout
    assert "\n  drain: draining, 0 of 1 replica replaced" in node
    assert "waits for its turn\n" in node
    drains = real(gateway, "drains").stdout.splitlines()
    assert drains[1].split()[:2] == ["node-2", "draining"]
    assert drains[1].endswith("new fans")
    assert "node-2" in real(gateway, "explain", "drain", OTHER).stdout

    assert real(gateway, "uncordon", OTHER).exit_code == 0
    assert real(gateway, "drains").stdout == "nothing is drained\n"


def test_a_drain_that_was_asked_for_is_followed_though_its_grace_was_not_the_usual_one(gateway, monkeypatch):
    monkeypatch.setitem(populated.GPUS, OTHER, (*populated.GPUS[OTHER], Gpu("GPU-b1", 1, "H200", 24576, 0)))
    gateway.ask(populated.reports, gateway.plane, OTHER)
    gateway.plane.cluster.counts.start_times[populated.MODEL] = (1, 5000.0)

    dry = real(gateway, "drain", NODE, "--dry-run")
    assert (dry.exit_code, "takes about 5014 s" in dry.stdout) == (1, True)
    assert dry.stderr.endswith(f"next: llmgw ctl drain {NODE} --grace 168min --watch\n")
    assert real(gateway, "drain", NODE).exit_code == 1
    assert real(gateway, "drain", NODE, "--grace", "90min").exit_code == 0

    again = real(gateway, "drain", NODE)
    assert (again.exit_code, "  org-llama-1 goes to node-2\n90 min left" in again.stdout) == (0, True)


def test_moves_and_purges_are_refused_with_reasons(gateway):
    moved = real(gateway, "move", "org-llama-1", "--to", OTHER)
    assert (moved.exit_code, "org-llama-1 fits nowhere there: " in moved.stderr) == (5, True)
    assert real(gateway, "move", "nope").exit_code == 4
    assert real(gateway, "purge", "org-llama-1", "--yes").exit_code == 1
    assert real(gateway, "drain", "node-9").exit_code == 4
    assert real(gateway, "drain", "endpoint/nope").exit_code == 4
    assert real(gateway, "uncordon", "node-9").exit_code == 4
