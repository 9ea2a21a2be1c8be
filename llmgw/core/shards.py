"""One engine process of a replica: what its agent is told of it, and what it says back."""

from collections.abc import Mapping
from enum import StrEnum

from attrs import field, frozen

HTTP = "http"  # the port requests go to


class ShardState(StrEnum):
    STARTING = "starting"  # wanted: files, memory, ports are seen to
    LOADING = "loading"  # its process runs and has not answered a request
    READY = "ready"  # it has
    LEAVING = "leaving"  # out of the pool, finishing what it has
    STOPPING = "stopping"  # told to end
    RELEASING = "releasing"  # ended; its processes or its GPU memory are not gone yet
    STOPPED = "stopped"
    FAILED = "failed"  # ended unasked
    LOST = "lost"  # gone without an exit status: a reboot, or its node was given up
    UNKNOWN = "unknown"  # its node is silent


ENDED = frozenset({ShardState.STOPPED, ShardState.FAILED, ShardState.LOST})


@frozen
class Fetch:
    """How the model's files come to a node: a command that ends with 0 once they are all at ``path``."""

    path: str
    argv: tuple[str, ...] = ()  # empty: they must be there
    within_s: float = 3600.0


@frozen
class Launch:
    """One entry of ``wanted``. ``argv`` and the values of ``env`` may hold {host} {port} {port:NAME} {gpus}.

    ``key`` is the engine's own API key, given in the environment as ``key_env`` and never told again. An engine
    that reads its key from a file alone gets one: ``key_file`` is its text with {key} in it, mode 0600, and argv
    names it as {key_file}.
    """

    id: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(factory=dict)
    cwd: str = ""
    user: str = ""  # empty: the agent's own
    host: str = ""  # address to listen on; empty: the node's own address
    ports: tuple[str, ...] = (HTTP,)
    gpus: tuple[str, ...] = ()  # UUIDs
    need_mib: int = 0  # free on each GPU before it starts
    memory_within_s: float = 120.0  # how long that may take
    files: Fetch | None = None
    stop_grace_s: float = 30.0
    key: str = field(default="", repr=False)
    key_env: str = ""
    key_file: str = ""


@frozen
class Exit:
    """How a process ended: ``code``, or the ``signal`` that killed it. ``at``: wall clock."""

    code: int | None = None
    signal: int | None = None
    oom: bool = False
    at: float = 0.0

    def __str__(self) -> str:
        if self.oom:
            return "killed for want of memory"
        return f"killed by signal {self.signal}" if self.signal else f"exited with {self.code}"


@frozen
class ShardSeen:
    """What an agent says of one shard. ``age_s``: in this state, by the agent's monotonic clock."""

    id: str
    state: ShardState
    age_s: float = 0.0
    why: str = ""  # what it waits for, or how it ended
    pid: int = 0
    host: str = ""
    ports: Mapping[str, int] = field(factory=dict)
    adopted: bool = False  # by an agent that did not start it
    exit: Exit | None = None
    pids: tuple[int, ...] = ()  # still there while releasing
    gpu_mib: Mapping[str, int] = field(factory=dict)  # measured, by UUID
    memory_mib: int = 0
    progress: int = 0  # rises while it does something: log bytes, CPU time
    log_age_s: float | None = None  # since its last line
    started_at: float = 0.0  # wall clock


@frozen
class Orphan:
    """Processes with our mark that belong to no shard the agent knows."""

    id: str
    pids: tuple[int, ...]
    why: str


def instance_id(replica: str, generation: int, rank: int) -> str:
    return f"{replica}.g{generation}.r{rank}"
