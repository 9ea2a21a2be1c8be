"""A placement decision, as a tree."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from console.shown import Place
from console.views.placement import Branch, lines_of, share_of_need, tree
from tests.console.answers import PLACEMENT, UNPLACED
from tests.console.holes import randoms, with_holes


def every(branches: tuple[Branch, ...]) -> list[Branch]:
    return [one for branch in branches for one in (branch, *every(branch.branches))]


def test_a_decision_is_a_tree_of_nodes_with_their_gpus_and_failed_checks() -> None:
    assert [str(line) for line in lines_of(tree(PLACEMENT), 100)] == [
        "one more replica of demo-model: goes to node-2 (1 GPU)",
        "├─ 1 shard of 1 GPU with 20.0 GiB free on each, nobody beside it",
        "└─ 2 wanted, 2 serving (3 s ago)",
        "✗ node-1",
        "├─ ░░░░░░░░░░ needs 1 GPU, 0 of 1 would do",
        "└─ ✗ GPU 0 (Simulated, GPU-node-1-0)",
        "   ├─ claimed by demo-model-3.g4.r0, and this asks for a card of its own",
        "   └─ ██░░░░░░░░ needs 20.0 GiB, free 4.0 (claimed 20.0, foreign 0.0)",
        "✓ node-2",
        "├─ apart  ██████████ 1.00",
        "├─ fit    ████████░░ 0.83",
        "├─ room   ██████████ 1.00",
        "├─ total             4.42",
        "└─ ✓ GPU 0 (Simulated, GPU-node-2-0)",
    ]


def test_where_nothing_fits_the_tree_ends_with_what_would_change_it() -> None:
    assert [str(one) for one in lines_of(tree(UNPLACED), 100)][-2:] == [
        "what would change it",
        "└─ 16.0 GiB more free on node-1 GPU 0",
    ]


def test_every_candidate_and_every_reason_stands_in_the_tree() -> None:
    told = "\n".join(str(one.line) for one in every(tree(PLACEMENT)))

    for one in PLACEMENT["candidates"]:
        assert one["name"].removeprefix("node-1 ").removeprefix("node-2 ") in told
        assert all(reason in told for reason in one["reasons"])


def test_a_node_and_a_gpu_lead_to_where_they_are_shown() -> None:
    places = [one.line.leads_to for one in every(tree(PLACEMENT)) if one.line.leads_to]

    assert places == [
        Place("node", "node-1"),
        Place("gpu", "node-1/GPU-node-1-0"),
        Place("node", "node-2"),
        Place("gpu", "node-2/GPU-node-2-0"),
    ]


def test_a_node_whose_name_begins_with_anothers_is_a_node_of_its_own() -> None:
    both = {"candidates": [{"name": "node-1"}, {"name": "node-10"}, {"name": "node-10 GPU 0 (A, GPU-a)"}]}
    _, first, second = tree(both)

    assert (str(first.line), first.branches) == ("✗ node-1", ())
    assert [str(one.line) for one in second.branches] == ["✗ GPU 0 (A, GPU-a)"]


@pytest.mark.parametrize(
    ("reason", "share"),
    [
        ("needs 20.0 GiB, free 5.0 (claimed 20.0, foreign 0.0)", 0.25),
        ("needs 4.0 GiB of host memory, free 1.0 of 8.0", 0.25),
        ("needs 20.0 GiB, free -2.0 (claimed 26.0, foreign 0.0)", 0.0),
        ("needs 2 GPUs, 1 of 8 would do", 0.5),
        ("needs label zone=a, has none", None),
        ("it moves away from here", None),
    ],
)
def test_what_is_needed_and_what_there_is_makes_a_bar(reason: str, share: float | None) -> None:
    assert share_of_need(reason) == share


@given(randoms, st.integers(1, 120), st.sampled_from([PLACEMENT, UNPLACED]))
def test_no_line_is_too_wide_and_nothing_that_is_missing_hinders_it(rng: Random, width: int, said: Any) -> None:
    branches = tree(with_holes(said, rng, 0.3))

    assert all(str(one.line).isprintable() for one in every(branches))
    assert all(cell_len(str(line)) <= width for line in lines_of(branches, width))
