"""What leadership is made of: its settings, the lease row as it was read, what can happen, what can be done."""

from enum import Enum
from math import inf

from attrs import field, frozen

from llmgw.core.settings import Unit, setting
from llmgw.core.term import NO_TERM, Term


@frozen
class LeaseLimits:
    """``[lease]``: who leads where two control planes share a store. The same on all of them."""

    ttl: float = setting(10.0, Unit.SECONDS, "a leader that is not heard for this long is replaced", at_least=1)
    renew: float = setting(2.0, Unit.SECONDS, "the leader renews this often", at_least=0.1)
    margin: float = setting(
        2.0, Unit.SECONDS, "a leader trusts its lease this much shorter than ttl; also the longest stall it ignores",
        at_least=0.1,
    )  # fmt: skip
    poll: float = setting(1.0, Unit.SECONDS, "a standby looks this often, if nobody tells it to", at_least=0.05)
    call_within: float = setting(
        2.0, Unit.SECONDS, "a statement that has no answer by then: its connection is thrown away", at_least=0.1
    )
    acks_within: float = setting(
        0.5, Unit.SECONDS, "a leader that hands over waits this long for what it began", at_least=0
    )
    handover: float = setting(
        5.0, Unit.SECONDS, "who handed over stays ready until the next leader is, at most this long", at_least=0
    )

    @property
    def trusted(self) -> float:
        """For so long, from before it is sent, a statement that succeeds lets its sender lead."""
        return self.ttl - self.margin

    def problem(self) -> str:
        """Why these can't go together; empty: they can."""
        need = self.renew + self.call_within + self.margin
        if need >= self.ttl:
            return f"lease.ttl ({self.ttl:g} s) must be longer than renew + call_within + margin ({need:g} s)"
        return ""


@frozen
class Addresses:
    """Where a control plane is: ``name`` for people, and its three listeners as others reach them."""

    name: str = ""
    client: str = ""
    admin: str = ""
    agents: str = ""


@frozen
class LeaseRow:
    """The lease as the store has it.

    ``seq`` rises with every acquisition and renewal. ``remaining_s`` is by the database's clock, below 0 when it
    has run out. ``timeline`` is the database's now, ``written`` what it was when this row was written: between
    the two a standby database took over, and what it had not yet received is lost.
    """

    holder: str = ""  # random, one a process
    term: Term = NO_TERM
    seq: int = 0
    released: bool = True
    remaining_s: float = -inf
    timeline: int = 0
    written: int = 0
    addresses: Addresses = field(factory=Addresses)
    ready: bool = False  # the leader has somewhere to send requests
    held_s: float = 0.0  # since it was acquired, by the database's clock
    renewals: int = 0

    @property
    def sight(self) -> tuple[object, ...]:
        """Two looks that give the same: nobody has written in between."""
        return self.timeline, self.holder, self.term, self.seq, self.released

    @property
    def age(self) -> tuple[int, int, int]:
        """It never falls, unless the store went back in time."""
        return self.term.n, self.term.epoch, self.seq


# -- what can happen ------------------------------------------------------------------------------------------


@frozen
class Looked:
    row: LeaseRow


@frozen
class Acquired:
    term: Term
    seq: int


@frozen
class Renewed:
    seq: int


@frozen
class Lifted:
    term: Term


@frozen
class Released:
    """The lease was given back."""


@frozen
class Refused:
    """The store answered, and no row was what the statement asks for: somebody was quicker."""


@frozen
class Failed:
    """No answer: whether the statement was carried out, or will be, is not known."""

    why: str


Answer = Looked | Acquired | Renewed | Lifted | Released | Refused | Failed


@frozen
class Ticked:
    """Time has passed; at least each ``TICK_S``."""


@frozen
class Nudged:
    """Somebody has written the lease row: look now."""


@frozen
class Resign:
    """``failed``: it could not lead, and somebody who has led meanwhile makes it no better."""

    why: str
    failed: bool = False


@frozen
class Stop:
    """This process ends: it gives back what it holds, takes nothing any more, and watches who comes next."""


@frozen
class Told:
    """An agent has obeyed ``seen``, which our term is not above. ``heard_s``: age of the last frame under it."""

    agent: str
    seen: Term
    heard_s: float | None


@frozen
class WorkEnded:
    """Every task of the leadership that ended has ended too."""


@frozen
class Serving:
    """Whether this process, as the leader, has somewhere to send requests."""

    ready: bool


Happening = Ticked | Nudged | Resign | Stop | Told | WorkEnded | Serving


# -- what can be done -----------------------------------------------------------------------------------------


class Right(Enum):
    """By which of three a standby may take the lease."""

    RELEASED = "the lease was given back"
    EXPIRED = "it ran out by the database's clock, and nobody wrote it for one ttl by ours"
    UNCHANGED = "nobody wrote it for two ttl by our clock, whatever the database's says"


@frozen
class Rest:
    """Nothing before ``until``, unless something happens."""

    until: float
    why: str


@frozen
class Look:
    why: str


@frozen
class Acquire:
    """Only if the row still is what was ``seen``."""

    right: Right
    seen: LeaseRow
    why: str


@frozen
class Renew:
    term: Term
    ready: bool
    why: str


@frozen
class Lift:
    """Put the term above what an agent has seen, both parts of it."""

    term: Term
    above: Term
    why: str


@frozen
class Release:
    term: Term
    why: str


Call = Look | Acquire | Renew | Lift | Release
Move = Rest | Call
