"""A replica as the leader keeps it, and how it stands now."""

from collections.abc import Mapping
from enum import StrEnum

from attrs import field, frozen

from llmgw.core.engine_spec import EngineSpec
from llmgw.core.placement import ShardPlace
from llmgw.core.settings import Unit, setting
from llmgw.core.shards import ENDED, ShardSeen, ShardState, instance_id


class Phase(StrEnum):
    """What the leader means to do with it; kept in the store."""

    WAITING = "waiting"  # for a place
    WANTED = "wanted"  # placed: it is to run and serve
    LEAVING = "leaving"  # out of the pool, finishing what it has
    STOPPING = "stopping"  # its shards are told to end, and then it is forgotten
    RESTARTING = "restarting"  # its shards are told to end, and then it waits for a place again


PLACED = frozenset({Phase.WANTED, Phase.LEAVING, Phase.STOPPING, Phase.RESTARTING})


@frozen
class Replica:
    """A row of the store. Times are wall clock."""

    name: str
    model: str
    spec: EngineSpec
    phase: Phase = Phase.WAITING
    generation: int = 0  # of its last incarnation; 0: it never had one
    shards: tuple[ShardPlace, ...] = ()
    why: str = ""  # of the phase
    reason: str = ""  # why it is placed, however long it waits
    since: float = 0.0  # of the phase
    made_at: float = 0.0
    replaces: str = ""  # the replica that goes once this one serves
    leave_why: str = ""  # why a replacement was asked for: this one goes once another serves
    replaces_for: str = ""  # the kind of reason, where that may be undone: "drain", "gpu", "move"
    only: tuple[str, ...] = ()  # nodes it was moved to by name
    move_to: tuple[str, ...] = ()  # nodes that its replacement must go to
    move_from: tuple[str, ...] = ()  # nodes that its replacement must not go to
    crashes: int = 0  # in a row
    retry_at: float = 0.0
    last_end: str = ""  # how the last incarnation ended
    home: tuple[str, ...] = ()  # nodes of the last incarnation
    avoid: tuple[str, ...] = ()  # nodes it moves away from
    failed_on: tuple[str, ...] = ()  # nodes of a crash loop: another is tried before them
    stop_first: bool = False  # what it replaces is stopped before it starts
    restores: EngineSpec | None = None  # taken up again if this one's own spec does not come up
    gave_up_on: str = ""  # the revision that did not come up here
    first_host: str = ""  # where this incarnation's rank 0 is, once known; the other ranks are told
    first_ports: Mapping[str, int] = field(factory=dict)

    @property
    def revision(self) -> str:
        return self.spec.revision

    @property
    def moves(self) -> bool:
        """An operator has sent it elsewhere, and nothing has come of that yet."""
        return bool(self.leave_why) and bool(self.move_to or self.move_from)

    def instance(self, rank: int) -> str:
        return instance_id(self.name, self.generation, rank)

    @property
    def instances(self) -> tuple[str, ...]:
        return tuple(self.instance(shard.rank) for shard in self.shards)

    @property
    def endpoint_id(self) -> str:
        """Its endpoint in the pool; another generation is another endpoint."""
        return f"{self.name}.g{self.generation}"


@frozen
class Proof:
    """What this leader knows of one incarnation from asking it. Times are the monotonic clock, in seconds."""

    proved_at: float | None = None  # it answered a real request, and nothing has spoken against it since
    failures: int = 0  # in a row, after it was proved
    why: str = ""  # what the last try said
    tried_at: float | None = None
    healthy_at: float | None = None  # since it said that it is well; only an answer is progress then


NO_PROOF = Proof()


@frozen
class ShardNow:
    """One shard as it is believed to be. ``known``: its node has reported since this leader began."""

    id: str
    node: str
    rank: int
    state: ShardState
    age_s: float = 0.0
    why: str = ""
    known: bool = True
    seen: ShardSeen | None = None

    @property
    def ended(self) -> bool:
        return self.state in ENDED


class Standing(StrEnum):
    """How a replica stands, in one word."""

    WAITING = "waiting"  # for a place, or for its next try
    STARTING = "starting"
    LOADING = "loading"
    SERVING = "serving"
    UNKNOWN = "unknown"  # a node of it is silent
    GONE = "gone"  # given up: it does not count any more, though its engine may answer still
    BROKEN = "broken"
    LEAVING = "leaving"
    STOPPING = "stopping"
    ENDED = "ended"


@frozen
class ReplicaNow:
    """A replica and how it stands. ``healthy_s``: how long it has served; ``progress_s``: since it last got on."""

    replica: Replica
    standing: Standing
    why: str = ""
    shards: tuple[ShardNow, ...] = ()
    in_flight: int = 0
    idle: bool = True  # its engine runs and holds nothing, as far as anybody can tell
    held: int | None = None  # requests that its engine said it has, whoever sent them; None: it has not said
    healthy_s: float = 0.0
    age_s: float = 0.0  # in its phase
    out: str = ""  # why it shall go elsewhere, for something of its nodes or GPUs
    out_kind: str = ""  # "drain", "gpu"
    overdue: str = ""  # why it ends now, replaced or not

    @property
    def name(self) -> str:
        return self.replica.name

    @property
    def live(self) -> bool:
        """Wanted, and not leaving, failed, lost, nor unknown past the grace."""
        return self.standing in _LIVE

    @property
    def serving(self) -> bool:
        return self.standing is Standing.SERVING


_LIVE = frozenset({Standing.STARTING, Standing.LOADING, Standing.SERVING, Standing.UNKNOWN})


@frozen
class ReplicaLimits:
    """``[replica]``"""

    healthy_min: float = setting(10.0, Unit.SECONDS, "how long a new replica must serve before an old one leaves")
    restart_backoff: float = setting(1.0, Unit.SECONDS, "pause before the first restart; it doubles", at_least=0.01)
    restart_backoff_max: float = setting(300.0, Unit.SECONDS, "longest pause between restarts", at_least=0.01)
    steady_after: float = setting(600.0, Unit.SECONDS, "serving this long forgives earlier crashes", at_least=0.0)
    crash_loop: int = setting(3, Unit.COUNT, "crashes in a row that are called a crash loop", at_least=1)
    start_within: float = setting(
        600.0, Unit.SECONDS, "no progress for this long ends a start; a model's engine may say another",
        at_least=0.1,
    )  # fmt: skip
    leave_within: float = setting(
        2700.0, Unit.SECONDS, "requests that a leaving replica still has are cut off after this", at_least=0.0
    )
    stuck_after: float = setting(
        30.0, Unit.SECONDS, "an engine with requests and no token for this long is taken out", at_least=0.1
    )
    canary_failures: int = setting(2, Unit.COUNT, "canary requests in a row that take it out", at_least=1)
    restart_failures: int = setting(5, Unit.COUNT, "canary requests in a row that restart it", at_least=1)
    restarts_per_hour: int = setting(
        6, Unit.COUNT, "restarts for ill health of one model's replicas; beyond it they stay out", at_least=0
    )
    decisions_max: int = setting(1000, Unit.COUNT, "placements that are remembered", at_least=1)
    events_max: int = setting(10_000, Unit.COUNT, "events that are remembered", at_least=10)


def backoff(crashes: int, limits: ReplicaLimits) -> float:
    """Seconds before the next try, after this many crashes in a row."""
    return min(limits.restart_backoff_max, limits.restart_backoff * 2.0 ** min(max(0, crashes - 1), 30))


def by_model(replicas: Mapping[str, ReplicaNow]) -> dict[str, list[ReplicaNow]]:
    found: dict[str, list[ReplicaNow]] = {}
    for name in sorted(replicas):
        now = replicas[name]
        found.setdefault(now.replica.model, []).append(now)
    return found
