"""An explanation, read on a terminal."""

from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from console.shown import Tone
from console.views.explained import explained
from tests.console.answers import PLACEMENT, UNPLACED
from tests.console.holes import NAMES, randoms, with_holes

QUEUE = {
    "subject": "queue of model m", "verdict": "nobody waits", "because": [{"text": "all is well", "age_s": 0.25}],
    "candidates": [{"name": "m-1.g1", "chosen": True, "reasons": ["has room"], "scores": {"kv": 0.5, "load": 0.25}}],
    "would_change_it": ["more capacity"], "next_command": "llmgw ctl pools m",
}  # fmt: skip


def test_it_says_what_was_decided_why_and_what_would_change_it() -> None:
    assert [str(line) for line in explained(QUEUE, 60)] == [
        "queue of model m",
        "  nobody waits",
        "because",
        "  · all is well (250 ms ago)",
        "candidates",
        "  ✓ m-1.g1",
        "      has room",
        "      kv 0.50, load 0.25",
        "what would change it",
        "  · more capacity",
        "next",
        "  $ llmgw ctl pools m",
    ]


def test_every_reason_of_a_candidate_is_told() -> None:
    told = "\n".join(str(line) for line in explained(UNPLACED, 200))

    for one in UNPLACED["candidates"]:
        for reason in one["reasons"]:
            assert reason in told


def test_who_was_chosen_is_seen_without_colours_too() -> None:
    marks = [line.cells[0] for line in explained(PLACEMENT, 80) if line.cells[0].text.strip() in ("✓", "✗")]

    assert [mark.text.strip() for mark in marks] == ["✗", "✗", "✓", "✓"]
    assert [mark.tone for mark in marks] == [Tone.DIM, Tone.DIM, Tone.GOOD, Tone.GOOD]


def test_a_line_is_broken_between_words_and_goes_on_below_its_text() -> None:
    long = {**QUEUE, "because": [{"text": "one two three four five", "age_s": None}]}
    told = [str(line) for line in explained(long, 18)]

    assert told[3:5] == ["  · one two three", "    four five"]


@given(randoms, st.integers(1, 120), st.sampled_from([PLACEMENT, UNPLACED, QUEUE, {}]))
def test_no_line_is_too_wide_and_nothing_that_is_missing_hinders_it(rng: Random, width: int, said: Any) -> None:
    for line in explained(with_holes(said, rng, 0.3), width):
        assert cell_len(str(line)) <= width
        assert str(line).isprintable()


@given(st.text(max_size=60) | st.sampled_from(NAMES), st.integers(8, 40))
def test_of_a_text_that_is_broken_nothing_is_lost(said: str, width: int) -> None:
    shown = [str(line)[4:] for line in explained({"because": [{"text": f"x {said}"}]}, width) if str(line)[4:]]
    kept = explained({"because": [{"text": f"x {said}"}]}, 10_000)

    assert "".join("".join(shown).split()).endswith("".join(str(kept[-1])[4:].split()))
