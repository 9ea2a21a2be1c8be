"""What the driver said of a node's GPUs, once. None: it did not tell."""

from collections.abc import Mapping

from attrs import field, frozen

RECOVERY_NONE = "none"


@frozen
class Holder:
    """A process with memory on a GPU. ``mib`` None: the driver lists it without a number."""

    pid: int
    mib: int | None = None


@frozen
class Sample:
    """One GPU or one MIG slice. Memory in MiB, with what the driver keeps for itself in ``used_mib``."""

    uuid: str
    index: int
    model: str = ""
    total_mib: int | None = None
    used_mib: int | None = None
    holders: tuple[Holder, ...] = ()
    temperature_c: float | None = None
    power_w: float | None = None
    utilisation: float | None = None  # 0 to 1
    ecc_uncorrected: int | None = None  # since the driver was loaded or the GPU reset
    remap_pending: bool | None = None  # of a memory row, or of a page on older cards
    remap_failed: bool | None = None
    slowed: str = ""  # "thermal", "power": by how the hardware protects itself
    recovery: str | None = None  # what the driver asks for: "none", "GPU reset", "node reboot", …
    energy_mj: int | None = None  # since the driver was loaded or the GPU reset
    sliced: bool = False  # in MIG mode
    slice_of: str = ""  # UUID of the card
    untold: Mapping[str, str] = field(factory=dict)  # what it failed to tell, not what it knows nothing of -> why


@frozen
class Xid:
    """An error the driver reported. ``at``: the node's wall clock when it was heard."""

    uuid: str
    code: int
    at: float


@frozen
class Reading:
    """``trouble``: why there are no GPUs here, or not all of them; empty: fine."""

    gpus: tuple[Sample, ...] = ()
    xids: tuple[Xid, ...] = ()  # since the reading before
    driver: str = ""  # its version
    trouble: str = ""
