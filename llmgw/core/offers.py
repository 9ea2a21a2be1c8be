"""What nodes have to offer a replica, and what it asks of them."""

from collections.abc import Mapping

from attrs import field, frozen

from llmgw.core.engine_spec import EngineSpec, PlacementRules, Strategy, Want
from llmgw.core.gpus import Gpu
from llmgw.core.shards import Fetch

STALE_S = 10.0  # a GPU that nobody could ask for this long gets nothing new
DRIVER_MIB = 1024  # what a card may have in use while it counts as empty: the driver's own part
DRIVER_SHARE = 0.05


def asked(target: str, why: str) -> str:
    """``cordoned by ann: new fans``"""
    return f"{target} {why}" if why.startswith("by ") else f"{target}: {why}" if why else target


@frozen
class Claim:
    """GPU memory set aside for a shard, whether it is used yet or not."""

    instance: str
    mib: int
    exclusive: bool
    model: str = ""


@frozen
class GpuOffer:
    gpu: Gpu
    claims: tuple[Claim, ...] = ()
    claimed_mib: int = field(init=False)
    free_mib: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        claimed, gpu = sum(claim.mib for claim in self.claims), self.gpu
        # What our engines use beyond their claims is gone too.
        free = gpu.total_mib - max(claimed, gpu.ours_mib) - gpu.foreign_mib
        object.__setattr__(self, "claimed_mib", claimed)
        object.__setattr__(self, "free_mib", free)

    @property
    def label(self) -> str:
        return f"GPU {self.gpu.index}"

    @property
    def stale(self) -> bool:
        """Nobody could ask it lately."""
        return self.gpu.read_age_s is None or self.gpu.read_age_s > STALE_S


@frozen
class NodeOffer:
    """One node as placement sees it. ``trouble`` says why nothing may land there at all, empty: it may."""

    name: str
    gpus: tuple[GpuOffer, ...] = ()
    trouble: str = ""
    target: str = "schedulable"
    target_why: str = ""
    labels: Mapping[str, str] = field(factory=dict)
    memory_free_mib: int = 0  # of the host, beyond what is claimed
    memory_mib: int = 0
    models: Mapping[str, int] = field(factory=dict)  # shards of each model here
    has: frozenset[str] = frozenset()  # paths of model files that are there
    apart: Mapping[str, frozenset[str]] = field(factory=dict)  # of models: whom they must not stand beside


@frozen
class Demand:
    """What one replica asks for. ``home``: nodes it ran on before, preferred where nothing speaks against them."""

    model: str
    shards: int = 1
    gpus: int = 0
    need_mib: int = 0  # on each GPU; 0: the whole card
    exclusive: bool = True
    memory_mib: int = 0
    files: Fetch | None = None
    rules: PlacementRules = field(factory=PlacementRules)
    home: frozenset[str] = frozenset()
    avoid: frozenset[str] = frozenset()  # nodes it moves away from
    shuns: frozenset[str] = frozenset()  # nodes where it failed again and again: others first
    leaving: frozenset[str] = frozenset()  # nodes of the replica that it replaces

    @property
    def packs(self) -> bool:
        return self.rules.strategy is Strategy.PACK


def demand_of(want: Want, home: frozenset[str] = frozenset(), avoid: frozenset[str] = frozenset()) -> Demand:
    spec: EngineSpec = want.spec
    files = Fetch(spec.model) if spec.model.startswith("/") else None
    return Demand(
        want.model, spec.shards, spec.gpus, spec.gpu_memory_mib, spec.exclusive, spec.memory_mib, files, want.rules,
        home, avoid,
    )  # fmt: skip
