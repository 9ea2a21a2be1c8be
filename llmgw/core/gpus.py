"""What is known of one GPU, as its node's agent reports it."""

from enum import StrEnum

from attrs import frozen


class Severity(StrEnum):
    NOTE = "note"  # shown, changes nothing
    EXCLUDED = "excluded"  # nothing new lands there


@frozen
class Evidence:
    """One thing that speaks against a GPU, with a lifetime. Times are the node's wall clock, in seconds."""

    cause: str  # "xid 79", "ecc uncorrected", "driver silent"
    severity: Severity
    says: str  # what it means
    first_at: float
    last_at: float
    clears: str  # what makes it go away
    count: int = 1

    def __str__(self) -> str:
        times = f", {self.count} times" if self.count > 1 else ""
        return f"{self.cause}: {self.says}{times}; clears: {self.clears}"


@frozen
class GpuProcess:
    """Somebody's memory on a GPU; ``instance`` is ours, by id, or empty: foreign."""

    pid: int
    mib: int
    name: str = ""
    instance: str = ""


@frozen
class Gpu:
    """Known by its UUID; the index is a label that a reboot may change. Memory in MiB.

    ``read_age_s``: since the driver last answered; None: it never did, and nothing below is known.
    """

    uuid: str
    index: int
    model: str = ""
    total_mib: int = 0
    used_mib: int = 0  # by whoever
    ours_mib: int = 0  # measured of our engines' processes
    processes: tuple[GpuProcess, ...] = ()  # the largest, for explanations
    temperature_c: float | None = None
    power_w: float | None = None
    utilisation: float | None = None  # 0 to 1
    read_age_s: float | None = 0.0
    evidence: tuple[Evidence, ...] = ()
    slice_of: str = ""  # UUID of the card whose MIG slice this is
    sliced: bool = False  # a card in MIG mode: its slices are used, not itself

    @property
    def foreign_mib(self) -> int:
        """What others have there, the driver's own part included."""
        return max(0, self.used_mib - self.ours_mib)

    @property
    def excluded(self) -> tuple[Evidence, ...]:
        return tuple(e for e in self.evidence if e.severity is Severity.EXCLUDED)
