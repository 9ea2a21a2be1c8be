"""What an operator asked of a node, and how far a drain has got.

Schedulable, cordoned and drained are three targets of one thing: what differs is what must be sure before anybody
says that it is so. Times are wall clock.
"""

from collections.abc import Mapping
from enum import StrEnum

from attrs import evolve, field, frozen

from llmgw.core.settings import Unit, setting

NOTHING: Mapping[str, tuple[str, ...]] = {}


class Target(StrEnum):
    SCHEDULABLE = "schedulable"
    CORDONED = "cordoned"  # nothing new lands there; what runs there stays
    DRAINED = "drained"  # and what runs there goes elsewhere, replacement first


class AtDeadline(StrEnum):
    """What becomes of replicas that nobody could replace when the grace is over."""

    STOP = "stop"  # they are stopped: the node can be taken out
    KEEP = "keep"  # they serve on: the drain has ended, blocked, and the node stays cordoned


class DrainEnd(StrEnum):
    DRAINED = "drained"  # no process of ours is left
    BLOCKED = "blocked"  # what could not go elsewhere was kept
    UNDONE = "undone"


@frozen
class Aim:
    """What was asked of a node, who did, when and why; ``at`` None: nobody ever did."""

    target: Target = Target.SCHEDULABLE
    by: str = ""
    at: float | None = None
    why: str = ""


@frozen
class Drain:
    """Kept with the node. ``planned``: where the dry run saw each replica go.

    ``until_boot``: the node asked for it itself, in this boot; once it reports from another, ``before`` holds again.
    Empty: an operator asked, and only an operator ends it.
    """

    grace_s: float
    ends_at: float
    at_deadline: AtDeadline = AtDeadline.STOP
    planned: Mapping[str, tuple[str, ...]] = field(factory=dict)
    replaced: tuple[str, ...] = ()
    cut: int = 0  # requests that were there when the deadline ended their engine; some may have gone elsewhere
    ended: DrainEnd | None = None
    ended_at: float = 0.0
    said: str = ""  # how it ended, in words
    until_boot: str = ""
    before: Aim = field(factory=Aim)

    @property
    def under_way(self) -> bool:
        return self.ended is None

    @property
    def said_cut(self) -> str:
        """What had not begun to answer is tried elsewhere, and its client is none the wiser."""
        if not self.cut:
            return "0 requests were cut"
        return f"at most {self.cut} {'request was' if self.cut == 1 else 'requests were'} cut"


def goes_on(drain: Drain | None) -> bool:
    """Whether an ask that says nothing new leaves it as it is: under way, or drained."""
    return drain is not None and drain.ended is not DrainEnd.BLOCKED


def asked_again(
    before: Drain | None,
    grace_s: float | None,
    at_deadline: AtDeadline | None,
    usual_s: float,
    wall: float,
    planned: Mapping[str, tuple[str, ...]] = NOTHING,
) -> Drain:
    """What an operator's ask makes of the drain there is. What is not said leaves one that is under way as it is.

    One that the node asked for itself becomes the operator's.
    """
    new_terms = grace_s is not None or at_deadline is not None
    if before is None or not goes_on(before) or (new_terms and not before.under_way):
        grace = usual_s if grace_s is None else grace_s
        return Drain(grace, wall + grace, at_deadline or AtDeadline.STOP, planned)
    drain = evolve(before, until_boot="", before=Aim())
    if at_deadline is not None:
        drain = evolve(drain, at_deadline=at_deadline)
    if grace_s is not None:
        drain = evolve(drain, grace_s=grace_s, ends_at=wall + grace_s)
    return drain if drain == before else evolve(drain, planned={**before.planned, **planned})


def begins(before: Drain | None, drain: Drain | None) -> bool:
    """Whether that is another drain than there was."""
    if drain is None or before is None:
        return drain is not None
    return bool(before.until_boot) or (drain.under_way and not before.under_way)


def asks_anew(drain: Drain | None, boot: str) -> bool:
    """Whether what a node asks in this boot is more than was asked already. ``drain``: of a target of drained.

    An operator's drain is never replaced by the node's own: that one would end with the boot.
    """
    if drain is None:
        return True
    return bool(drain.until_boot) and (drain.until_boot != boot or drain.ended is DrainEnd.BLOCKED)


def is_over_by_boot(drain: Drain | None, boot: str) -> bool:
    """``boot``: the node's now; empty: not known."""
    return drain is not None and bool(drain.until_boot) and bool(boot) and drain.until_boot != boot


@frozen
class DrainLimits:
    """``[drain]``"""

    grace: float = setting(
        2700.0, Unit.SECONDS, "a drain is over after this, unless it was asked otherwise", at_least=1
    )
    surges_max: int = setting(
        4, Unit.COUNT, "replacements that start at once because of drains and sick GPUs, over all models", at_least=1
    )
    last_call: float = setting(
        60.0,
        Unit.SECONDS,
        "before a drain is over, at most a tenth of its grace: what can go nowhere gets nothing new if others serve",
        at_least=0.0,
    )
    cordon_within: float = setting(
        5.0, Unit.SECONDS, "a cordon is answered, confirmed or not", at_least=0.1, at_most=60
    )
