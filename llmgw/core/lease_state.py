"""What one control plane knows of leadership, and whether it may act.

Times are seconds of a clock that also counts while the machine sleeps (CLOCK_BOOTTIME), each process its own; none
is compared with the database's.
"""

from enum import Enum
from math import inf

from attrs import field, frozen

from llmgw.core.lease_facts import Addresses, Call, LeaseLimits, LeaseRow, Right
from llmgw.core.lease_misfits import Misfits
from llmgw.core.term import NO_TERM, Term

TICK_S = 0.5  # at least this often something is told, so that a stall is noticed


class Role(Enum):
    STANDBY = "standby"
    LEADING = "leading"
    SUSPENDED = "suspended"  # leads, and does nothing until a renewal has succeeded
    LEAVING = "leaving"  # does nothing more; the lease is given back once its tasks have ended


@frozen
class Sent:
    """The statement that is under way."""

    call: Call
    at: float  # before it was sent
    nonce: str = ""


@frozen
class Attempt:
    """A new term of ours that may have come to be, or still may. ``at``: the first time it was sent."""

    nonce: str
    at: float
    seq: int | None  # of the row it takes; None: it lifts
    looked: bool = False


@frozen
class Leadership:
    """One process's part in it. ``holder``: random, its own. ``spread``: 0 to 1, so that two do not keep step."""

    holder: str
    limits: LeaseLimits = field(factory=LeaseLimits)
    addresses: Addresses = field(factory=Addresses)
    spread: float = 0.5
    role: Role = Role.STANDBY
    why: str = "it has just started"
    since: float = 0.0  # in this role
    # -- the lease, as far as it is ours --
    term: Term = NO_TERM  # that we lead, or led last
    held: bool = False  # the row may still be ours: nobody was seen to take it, and we did not give it back
    trusted_until: float = -inf
    suspended_at: float = -inf
    renew_at: float = inf
    renewals: int = 0
    led_since: float = 0.0
    working: bool = False  # tasks of a leadership run
    ready: bool = False
    said_ready: bool = False
    lift_above: Term | None = None
    conflict: tuple[str, Term] | None = None  # an agent, and the other leader's term of our number that it has obeyed
    attempt: Attempt | None = None
    # -- what we know --
    sent: Sent | None = None
    ticked_at: float = -inf
    row: LeaseRow | None = None
    row_at: float = -inf
    unchanged_since: float = -inf
    misfits: Misfits = field(factory=Misfits)
    doubted_at: float = -inf  # the store was seen to have gone back in time
    away_since: float | None = None  # the first statement without an answer since the last with one
    away_why: str = ""
    led_last: bool = False  # nobody has led since we did, as far as we know
    led_until: float = -inf
    gave_back: bool = False  # the last leadership of ours ended by giving the lease back
    next_seen_at: float | None = None  # another leader, since we led last
    # -- when --
    look_at: float = -inf
    retry_at: float = -inf
    out_until: float = -inf
    resigned: bool = False  # out so that somebody else leads, which is over once somebody has

    @property
    def leads(self) -> bool:
        return self.role in (Role.LEADING, Role.SUSPENDED)

    def stalled(self, now: float) -> bool:
        """Nothing ran in this process for longer than a leader ignores."""
        return now - self.ticked_at > TICK_S + self.limits.margin

    def may_act(self, now: float) -> bool:
        """Asked immediately before each act of a leader."""
        if self.role is not Role.LEADING or self.lift_above is not None:
            return False
        return now < self.trusted_until and not self.stalled(now)

    def takes_at(self) -> tuple[float, Right] | None:
        """When a standby may take the lease if nobody writes it until then, and by which right."""
        row, ttl, since = self.row, self.limits.ttl, self.unchanged_since
        if row is None:
            return None
        if row.released:
            return (since + ttl if self.doubt else since, Right.RELEASED)
        if row.remaining_s <= ttl and self.row_at + row.remaining_s <= since + 2 * ttl:
            return max(since + ttl, self.row_at + row.remaining_s), Right.EXPIRED
        return since + 2 * ttl, Right.UNCHANGED

    @property
    def doubt(self) -> str:
        """Why the database may lack a leader that came after this row: then "released" means nothing yet."""
        row = self.row
        if row is not None and row.written != row.timeline:
            return (
                f"another database took over since the lease was written (timeline {row.written}, now {row.timeline})"
            )
        if self.doubted_at >= self.unchanged_since and self.doubted_at > -inf:
            return "the store went back in time"
        return ""
