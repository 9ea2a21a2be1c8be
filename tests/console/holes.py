"""Answers with values that are null or missing, as another version of the control plane may give them."""

from random import Random
from typing import Any

from attrs import evolve
from hypothesis import strategies as st

from console.model import Link, Picture
from console.traffic import Rates
from tests.console.answers import (
    BLOCKED_DRAIN,
    BROKE,
    CRASHING,
    DRAIN,
    EVENTS,
    EVIDENCE,
    FREE_GPU,
    GPU,
    LEADER,
    MODEL,
    NODE,
    NODE_2,
    NOT_FOUND,
    POOL,
    QUEUED,
    QUEUES,
    RECENT,
    REMOVED_POOL,
    REPLICA,
    RUNNING,
    SEATS,
    STATIC_MODEL,
    STATUS,
    WAITING_QUEUE,
    picture,
)  # fmt: skip

NAMES = ("漢字模型", "a [bold]name[/]", "tab\there\x1b[2J", "👩‍🔬❤️é", "x" * 300)
randoms = st.integers(0, 2**32).map(Random)  # drawn by hypothesis itself, each value takes it 200 times as long


def with_holes(value: Any, rng: Random, share: float = 0.1) -> Any:
    """A copy in which some values are None or gone, and some texts another's."""
    match value:
        case dict():
            kept = {key: with_holes(one, rng, share) for key, one in value.items() if rng.random() > share / 2}
            return {key: None if rng.random() < share / 2 else one for key, one in kept.items()}
        case list() | tuple():
            return [with_holes(one, rng, share) for one in value if rng.random() > share]
        case str():
            return rng.choice(NAMES) if rng.random() < share else value
    return value


def some_picture(rng: Random) -> Picture:
    """Of a cluster in any shape, told with holes."""

    def by_name(*rows: Any) -> dict[str, Any]:
        names = [f"{rng.choice(NAMES)}{number}" for number in range(len(rows))]
        return {name: {**with_holes(row, rng), "name": name} for name, row in zip(names, rows, strict=True)}

    sick = {**NODE, "state": "unreachable", "driver": "nvml is gone", "gpus": [{**GPU, "evidence": [EVIDENCE]}]}
    rates = [rng.choice([None, 0.0, 0.5, 1e6]) for _ in range(4)]
    return picture(
        taken_at=rng.choice([None, 100.0]),
        status=with_holes(STATUS, rng),
        leader=with_holes(LEADER, rng),
        hold=rng.choice(["", "three of four nodes are silent"]),
        nodes=by_name(NODE, NODE_2, sick, {**NODE, "gpus": [FREE_GPU]}),
        replicas=by_name(REPLICA, CRASHING, *[{**REPLICA, "state": "failed"}] * rng.choice([0, 9])),
        models=by_name(MODEL, STATIC_MODEL, *[{**MODEL, "saturation": None}] * rng.choice([0, 7])),
        drains={name: with_holes(row, rng) for name, row in (("node-1", DRAIN), ("endpoint/漢", BLOCKED_DRAIN))},
        pools=by_name(POOL, {**POOL, "saturation": rng.choice([None, 3.0, 1.0])}, REMOVED_POOL),
        seats=with_holes(SEATS, rng),
        queues=with_holes([*QUEUES, WAITING_QUEUE], rng),
        running=with_holes([RUNNING, QUEUED], rng),
        recent=with_holes([RECENT, NOT_FOUND, BROKE], rng),
        latest=with_holes([BROKE, RECENT], rng),
        events=[{**with_holes(event, rng), "seq": event["seq"]} for event in EVENTS],
        rates=evolve(Rates(*rates), models={"demo-model": Rates(*rates)}),
        histories={"demo-model": [rng.random() * 3 for _ in range(rng.choice([0, 1, 120]))]},
        link=Link("http://漢", rng.choice([None, 90.0]), "refused"),
    )


pictures = randoms.map(some_picture)
