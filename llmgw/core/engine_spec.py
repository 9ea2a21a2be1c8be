"""How a model's engines are made, and where they may run: what an operator wrote, as a value.

The *revision* is a hash of what a running engine would have to be restarted for; the rest only reroutes or
decides where the next one lands.
"""

import hashlib
import json
from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property

import attrs
from attrs import field, frozen

MIB = 1024**2


class Strategy(StrEnum):
    SPREAD = "spread"  # over nodes: one that dies takes few replicas along
    PACK = "pack"  # onto few nodes: whole ones stay free for what needs them


class OnFull(StrEnum):
    """What a change does when its replacement fits nowhere beside the running one."""

    WAIT = "wait"
    STOP_FIRST = "stop_first"


@frozen
class EngineSpec:
    preset: str
    executable: tuple[str, ...] = ()  # empty: the preset's
    model: str = ""  # path or name the engine loads
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(factory=dict)
    user: str = ""
    cwd: str = ""
    ports: tuple[str, ...] = ()  # named ports besides the preset's
    fetch: tuple[str, ...] = ()
    fetch_within_s: float = 3600.0
    shards: int = 1
    gpus: int = 0  # per shard
    gpu_memory_mib: int = 0  # need on each GPU; 0: the whole card
    exclusive: bool = True  # nobody else's claim on its GPUs
    memory_mib: int = 0  # of the host, per shard
    served_as: str = ""
    speaks: str = ""  # whose metrics and manners it has; empty: the preset's
    api_key: bool = True  # the engine asks for one
    capacity: int | None = None
    max_in_flight: int | None = None
    adapters: frozenset[str] = frozenset()
    start_within_s: float = 0.0  # 0: as [replica] says
    stop_grace_s: float = 0.0  # 0: the preset's

    @cached_property
    def revision(self) -> str:
        """Twelve hexadecimal digits."""
        said = {name: value for name, value in attrs.asdict(self).items() if name not in _WITHOUT_RESTART}
        text = json.dumps(said, sort_keys=True, default=sorted)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


# An engine goes on as it is when these change.
_WITHOUT_RESTART = frozenset(
    {"fetch", "fetch_within_s", "capacity", "max_in_flight", "adapters", "start_within_s", "stop_grace_s"}
)


@frozen
class PlacementRules:
    selector: Mapping[str, str] = field(factory=dict)  # labels a node must have
    nodes: tuple[str, ...] = ()  # these only; empty: any
    strategy: Strategy = Strategy.SPREAD
    apart_from: tuple[str, ...] = ()  # models whose shards may not be on the same node
    one_per_node: bool = False  # no two replicas of this model on one node
    on_full: OnFull = OnFull.WAIT


@frozen
class Want:
    """How many replicas of a model there shall be. ``most`` bounds what scales by itself, not the surge."""

    model: str
    spec: EngineSpec
    rules: PlacementRules = field(factory=PlacementRules)
    least: int = 1
    most: int = 1
    scaled: int | None = None  # by an operator, over what is written

    @property
    def replicas(self) -> int:
        return self.least if self.scaled is None else self.scaled
