"""The same question about a changed world: `gpus=2`, `without node-3`, `with node-3`."""

from collections.abc import Callable, Sequence
from typing import Any

import attrs
from attrs import frozen

from llmgw.core.engine_spec import MIB, Strategy
from llmgw.core.offers import Demand, NodeOffer

KNOWN = (
    "gpus=N, shards=N, gpu_memory=SIZE, memory=SIZE, exclusive=true|false, strategy=spread|pack, "
    "without NODE, with NODE (as if uncordoned and healthy)"
)


class Unknown(ValueError):
    """What was supposed is nothing that can be supposed; its text says what can."""


@frozen
class World:
    demand: Demand
    nodes: tuple[NodeOffer, ...]


def suppose(world: World, said: str, bytes_of: Callable[[str], int]) -> World:
    """One assumption, or several with commas between them. Raises Unknown.

    ``bytes_of`` reads sizes as the config does; raises ValueError.
    """
    for one in filter(None, (part.strip() for part in said.split(","))):
        world = _supposed(world, one, bytes_of)
    return world


def _supposed(world: World, one: str, bytes_of: Callable[[str], int]) -> World:
    word, _, rest = one.partition(" ")
    if word in ("without", "with") and rest:
        return attrs.evolve(world, nodes=_nodes(world.nodes, word, rest.strip()))
    key, equals, value = one.partition("=")
    if not equals:
        raise Unknown(f"{one!r} supposes nothing; write {KNOWN}")
    return attrs.evolve(world, demand=_demand(world.demand, key.strip(), value.strip(), bytes_of))


def _nodes(nodes: Sequence[NodeOffer], word: str, name: str) -> tuple[NodeOffer, ...]:
    if name not in {node.name for node in nodes}:
        raise Unknown(f"there is no node {name!r}")
    if word == "without":
        return tuple(node for node in nodes if node.name != name)
    return tuple(
        attrs.evolve(node, trouble="", target="schedulable", target_why="") if node.name == name else node
        for node in nodes
    )


def _demand(demand: Demand, key: str, value: str, bytes_of: Callable[[str], int]) -> Demand:
    changes: dict[str, Any]
    try:
        match key:
            case "gpus" | "shards":
                changes = {key: int(value)}
            case "gpu_memory":
                changes = {"need_mib": bytes_of(value) // MIB}
            case "memory":
                changes = {"memory_mib": bytes_of(value) // MIB}
            case "exclusive":
                changes = {"exclusive": {"true": True, "false": False}[value]}
            case "strategy":
                changes = {"rules": attrs.evolve(demand.rules, strategy=Strategy(value))}
            case _:
                raise Unknown(f"{key!r} can't be supposed; write {KNOWN}")
    except Unknown:
        raise
    except (ValueError, KeyError):
        raise Unknown(f"{key} = {value!r} makes no sense; write {KNOWN}") from None
    if changes.get("gpus", 0) < 0 or changes.get("shards", 1) < 1:
        raise Unknown(f"{key} = {value} is too little")
    return attrs.evolve(demand, **changes)
