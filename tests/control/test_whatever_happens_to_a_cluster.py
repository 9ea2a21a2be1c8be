"""Whatever happens to nodes, engines, leaders and wishes: nothing is used twice, and it ends as it is wanted.

A story is a list of happenings; Hypothesis makes them up and shortens one that fails. What must hold is looked at in
every pass, and in the nodes whenever an engine starts.
"""

import tempfile
from pathlib import Path

import trio
import trio.testing
from hypothesis import given, note, settings
from hypothesis import strategies as st

from llmgw.core.engine_spec import OnFull
from tests.control.little_cluster import little_cluster, want
from tests.control.stories import (
    LIMITS,
    MANNERS,
    MEMORY,
    PROBING,
    SPECS,
    TIMES,
    all_well,
    as_wanted,
    happen,
    look_at_plans,
)

models, nodes, numbers = st.sampled_from(sorted(SPECS)), st.integers(0, 2), st.integers(0, 20)
happenings = st.one_of(
    st.tuples(st.just("scale"), models, st.integers(0, 2)),
    st.tuples(st.just("spec"), models, st.integers(0, 2)),
    st.tuples(st.just("restart"), models, numbers),
    st.tuples(st.just("kill"), st.just(""), numbers),
    st.tuples(st.just("wedge"), st.just(""), numbers),
    st.tuples(st.just("cut"), st.just(""), nodes),
    st.tuples(st.just("deaf"), st.just(""), nodes),
    st.tuples(st.just("well"), st.just(""), nodes),
    st.tuples(st.just("give up"), st.just(""), nodes),
    st.tuples(st.just("exclude"), st.just(""), nodes),
    st.tuples(st.just("busy"), models, st.integers(0, 2)),
    st.tuples(st.just("leader"), st.just(""), st.just(0)),
    st.tuples(st.just("store"), st.just(""), st.integers(1, 15)),
    st.tuples(st.just("wait"), st.just(""), st.integers(1, 40)),
)
stories = st.lists(st.tuples(happenings, st.sampled_from([0.05, 0.3, 1.2, 3.0])), min_size=3, max_size=14)


@settings(max_examples=settings().max_examples if settings().max_examples > 100 else 50)
@given(stories, st.sampled_from([2, 4]), st.sampled_from(OnFull))
def test_whatever_happens_it_ends_as_it_is_wanted(story, gpus, on_full):
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        clock = trio.testing.MockClock(autojump_threshold=0)
        try:
            trio.run(_played, Path(folder), story, gpus, on_full, clock=clock)
        except BaseExceptionGroup as failed:
            raise _first(failed) from None


def _first(failed):
    """So that Hypothesis knows one failure from another."""
    while isinstance(failed, BaseExceptionGroup):
        failed = failed.exceptions[0]
    return failed


async def _played(folder, story, gpus, on_full):
    wants = [want(model, 1, spec, on_full=on_full) for model, spec in SPECS.items()]
    async with little_cluster(
        folder, {f"node-{i}": gpus for i in range(3)}, wants, LIMITS, TIMES, PROBING, manners=MANNERS
    ) as little:
        look_at_plans(little)
        await trio.sleep(5)
        for happening, pause in story:
            await happen(little, on_full, *happening)
            await trio.sleep(pause)
        note(little.story())
        await all_well(little)
        await little.until(lambda: as_wanted(little, roomy=gpus == 4), 300)
        if gpus == 4:
            await little.quiet(2)
