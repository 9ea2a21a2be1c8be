"""A hundred stories of drains, moves and failures, a seed each: nobody loses what serves, and every drain ends."""

import random
import tempfile
from pathlib import Path

import pytest
import trio
import trio.testing

from llmgw.core.drain import Target
from tests.control.little_cluster import ANN, Little, little_cluster, want
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

SEEDS = 100
GRACE_S = 60.0  # of each drain here
WHAT = "drain drain drain uncordon uncordon cordon kill wedge scale scale move busy leader exclude wait".split()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nobody_loses_what_serves_and_every_drain_ends(seed):
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        clock = trio.testing.MockClock(autojump_threshold=0)
        trio.run(_played, Path(folder), random.Random(seed), clock=clock)


async def _played(folder: Path, chance: random.Random) -> None:
    wants = [want(model, 2, spec) for model, spec in SPECS.items()]
    nodes = {f"node-{i}": 4 for i in range(3)}
    async with little_cluster(folder, nodes, wants, LIMITS, TIMES, PROBING, manners=MANNERS) as little:
        look_at_plans(little)
        await trio.sleep(10)
        for _ in range(chance.randint(4, 12)):
            what, model, n = chance.choice(WHAT), chance.choice(sorted(SPECS)), chance.randint(0, 2)
            await happen(little, None, what, model, n)
            await trio.sleep(chance.choice([0.05, 0.3, 1.2, 3.0, 12.0]))
        await all_well(little)
        await little.until(lambda: not under_way(little), GRACE_S + 60)
        for node in nodes:
            await little.there.targets.aim(ANN, node, Target.SCHEDULABLE)
        await little.until(lambda: as_wanted(little, roomy=True), 300)
        await little.quiet(2)


def under_way(little: Little) -> list[str]:
    records = little.there.joining.nodes.values()
    return [record.name for record in records if record.drain is not None and record.drain.under_way]
