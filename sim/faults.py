"""What is the engine told to do wrong, for how many requests, or which share of them, on which routes?"""

from random import Random
from typing import Any

import attrs
from attrs import define, field, frozen


@frozen
class Fault:
    """One way to misbehave; fields may be combined. ``events`` are pieces that carry a token."""

    hang: bool = False  # never answers
    slow_first_token_s: float = 0.0
    die_after_events: int | None = None  # the process is gone, as if killed
    reset_after_events: int | None = None  # the connection is reset, as by a host that crashed
    cut_after_events: int | None = None  # the connection is closed without the answer's end
    status: int | None = None
    body: Any = None  # with `status`: JSON, or text as it is
    headers: dict[str, str] = field(factory=dict)  # with `status`
    malformed: bool = False  # an event, or a body, that is not JSON
    truncated: bool = False  # half the answer, without its end
    huge_line: int = 0  # bytes of one event
    role_then_error: bool = False  # the stream opens, then says it failed
    error_event_after: int | None = None
    health_status: int | None = None
    wedge: bool = False  # takes requests, makes no token, and is healthy
    ignore_sigterm: bool = False
    fork_children: int = 0  # processes that outlive it unless somebody ends them all
    count: int | None = None  # requests it is for; None: all
    share: float | None = None  # of requests, drawn from the engine's seed; None: every one
    route: str | None = None  # "/v1/chat/completions"; None: all that generate

    @property
    def of_requests(self) -> bool:
        """Whether it befalls single requests rather than the whole engine."""
        return not (self.wedge or self.ignore_sigterm or self.fork_children or self.health_status)


NO_FAULT = Fault()
_STATUSES = ("status", "health_status")
_MOST = 256 * 1024**2  # of bytes, events or seconds
_MOST_CHILDREN = 16
_NAMES = {f.name: f for f in attrs.fields(Fault)}
_TYPES: dict[str, tuple[type, ...]] = {
    "hang": (bool,),
    "malformed": (bool,),
    "truncated": (bool,),
    "role_then_error": (bool,),
    "wedge": (bool,),
    "ignore_sigterm": (bool,),
    "slow_first_token_s": (int, float),
    "share": (int, float),
    "route": (str,),
    "headers": (dict,),
}


def fault_of(said: object) -> Fault:
    """Raises ValueError, naming what is wrong."""
    if not isinstance(said, dict):
        raise ValueError("a fault is an object")
    for name, value in said.items():
        if name not in _NAMES:
            raise ValueError(f"no fault is called {name!r}; there are {', '.join(_NAMES)}")
        wanted = _TYPES.get(name, (int,))
        if name != "body" and (not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted)):
            raise ValueError(f"{name} must be {' or '.join(t.__name__ for t in wanted)}, not {value!r}")
        if name in _STATUSES and not 200 <= value <= 599:
            raise ValueError(f"{name} must be 200 to 599, not {value}")
        if name == "share" and value > 1:
            raise ValueError(f"{name} must be 0 to 1, not {value}")
        if name == "fork_children" and value > _MOST_CHILDREN:
            raise ValueError(f"{name} must be at most {_MOST_CHILDREN}, not {value}")
        if name != "body" and isinstance(value, int | float) and not 0 <= value <= _MOST:
            raise ValueError(f"{name} must be 0 to {_MOST}, not {value}")
    return Fault(**said)


@define(eq=False)
class Faults:
    seed: int = 0
    _draw: Random = field(init=False)
    _set: list[Fault] = field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self._draw = Random(self.seed)

    def set(self, said: object) -> None:
        """One fault or a list of them, in place of those that were. Raises ValueError."""
        wanted = said if isinstance(said, list) else [said]
        self._set = [fault_of(one) for one in wanted]
        self._draw.seed(self.seed)  # the same faults befall the same requests again

    def clear(self) -> None:
        self._set = []

    def shown(self) -> list[dict[str, Any]]:
        return [attrs.asdict(fault, filter=lambda a, v: v != a.default and v != {}) for fault in self._set]

    def take(self, route: str) -> Fault:
        """What befalls this request; counts it."""
        for fault in self._set:
            if fault.of_requests and fault.route in (None, route) and self._drawn(fault):
                self._count(fault)
                return fault
        return NO_FAULT

    def take_health(self) -> int:
        for fault in self._set:
            if fault.health_status and self._drawn(fault):
                self._count(fault)
                return fault.health_status
        return 200

    @property
    def wedged(self) -> bool:
        return any(fault.wedge for fault in self._set)

    @property
    def ignores_sigterm(self) -> bool:
        return any(fault.ignore_sigterm for fault in self._set)

    @property
    def children(self) -> int:
        return max((fault.fork_children for fault in self._set), default=0)

    def _drawn(self, fault: Fault) -> bool:
        return fault.share is None or self._draw.random() < fault.share

    def _count(self, fault: Fault) -> None:
        if fault.count is None:
            return
        at = self._set.index(fault)
        if fault.count <= 1:
            del self._set[at]
        else:
            self._set[at] = attrs.evolve(fault, count=fault.count - 1)
