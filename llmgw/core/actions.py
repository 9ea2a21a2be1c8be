"""What a pass may do, each with its reason; how it reads in events, the audit and the log."""

from attrs import frozen

from llmgw.core.engine_spec import EngineSpec
from llmgw.core.offers import Demand
from llmgw.core.placement import Placed, Unplaceable


@frozen
class Create:
    """One more replica. ``replaces``: the one that goes once this one serves."""

    model: str
    spec: EngineSpec
    why: str
    replaces: str = ""
    avoid: tuple[str, ...] = ()
    prefer: tuple[str, ...] = ()  # where a dry run saw it go
    only: tuple[str, ...] = ()  # where an operator sends it
    kind: str = ""  # of the reason, where that may be undone: "drain", "gpu", "move"

    def __str__(self) -> str:
        return f"{self.model}: one more replica, {self.why}"


@frozen
class Start:
    """A place was found: the next generation starts there."""

    replica: str
    demand: Demand
    placed: Placed
    why: str

    def __str__(self) -> str:
        return f"{self.replica} starts on {', '.join(self.placed.nodes)}: {self.why}"


@frozen
class Blocked:
    """No place was found; it goes on waiting."""

    replica: str
    demand: Demand
    unplaceable: Unplaceable
    why: str

    def __str__(self) -> str:
        return f"{self.replica} waits: {self.why}"


@frozen
class Waits:
    """It has a place, and others are to start before it."""

    replica: str
    why: str

    def __str__(self) -> str:
        return f"{self.replica} waits for {self.why}"


@frozen
class Fail:
    """An incarnation ended unasked, or is as good as ended: all its shards end, then it is tried again."""

    replica: str
    why: str
    crashes: int
    pause_s: float
    ill: bool = False  # its processes run, but it answers nothing
    served: bool = False  # it had come up before
    elsewhere: bool = False  # it failed too often where it is: another node is tried first

    def __str__(self) -> str:
        again = f", tried again in {self.pause_s:g} s" if self.pause_s >= 1 else ""
        times = f" (crash {self.crashes} in a row)" if self.crashes > 1 else ""
        return f"{self.replica} failed{times}: {self.why}{again}"


@frozen
class Renew:
    """It serves nobody, so it takes up the new spec at once. ``restart``: it has shards, which end first."""

    replica: str
    spec: EngineSpec
    restart: bool
    why: str
    gave_up_on: str = ""

    def __str__(self) -> str:
        return f"{self.replica} takes up another spec: {self.why}"


@frozen
class StopFirst:
    """A replacement fits nowhere beside the one it replaces, and policy lets that one go first."""

    replica: str
    replaces: str
    restores: EngineSpec
    why: str

    def __str__(self) -> str:
        return f"{self.replaces} goes before {self.replica} starts: {self.why}"


@frozen
class Again:
    """All its shards are gone: it waits for a place."""

    replica: str
    why: str

    def __str__(self) -> str:
        return f"{self.replica} waits for a place: {self.why}"


@frozen
class Settled:
    """What it replaced is gone."""

    replica: str
    replaced: str

    def __str__(self) -> str:
        return f"{self.replica} has replaced {self.replaced}"


@frozen
class Leave:
    replica: str
    why: str

    def __str__(self) -> str:
        return f"{self.replica} leaves the pool: {self.why}"


@frozen
class Return:
    """Back into the pool: what it left for is no longer so."""

    replica: str
    why: str

    def __str__(self) -> str:
        return f"{self.replica} returns to the pool: {self.why}"


@frozen
class Stop:
    """``cut``: requests that end with it."""

    replica: str
    why: str
    cut: int = 0

    def __str__(self) -> str:
        return f"{self.replica} stops: {self.why}"


@frozen
class Forget:
    replica: str
    why: str

    def __str__(self) -> str:
        return f"{self.replica} is gone: {self.why}"


Action = Create | Start | Blocked | Waits | Fail | Renew | StopFirst | Again | Settled | Leave | Return | Stop | Forget


@frozen
class Plan:
    """``held``: what was not done because this leader doubts itself or has not heard enough yet."""

    actions: tuple[Action, ...] = ()
    held: tuple[str, ...] = ()
    hold: str = ""

    def __str__(self) -> str:
        """The sentence a pass ends with."""
        said = "; ".join(str(action) for action in self.actions) or "nothing to do"
        because = f", {self.hold}" if self.hold else ""
        return f"{said}; held back{because}: {'; '.join(self.held)}" if self.held else said
