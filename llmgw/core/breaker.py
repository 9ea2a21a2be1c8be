"""Whether an endpoint that failed may be tried again: closed, open, half-open.

Transport errors, 5xx except 503 and the engine's 401/403 count; a client's 4xx and an engine's 429/503
never do. It opens after ``failures`` in a row; half-open lets exactly one request through, whose end
decides. Times are the caller's clock, in seconds.
"""

from enum import StrEnum

from attrs import define, field, frozen

from llmgw.core.settings import Unit, setting


@frozen
class BreakerLimits:
    """``[breaker]``"""

    failures: int = setting(5, Unit.COUNT, "failures in a row that take an endpoint out", at_least=1)
    open_for: float = setting(5.0, Unit.SECONDS, "how long it stays out before one request is tried", at_least=0.1)
    open_max: float = setting(60.0, Unit.SECONDS, "each failed try doubles the time, up to this")


class State(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@define(eq=False)
class Breaker:
    limits: BreakerLimits = field(factory=BreakerLimits)
    failures: int = 0  # in a row
    why: str = ""  # the last failure
    _closed: bool = True
    _open_until: float = 0.0
    _open_for: float = 0.0
    _trying: bool = False  # the half-open request is under way

    def state(self, now: float) -> State:
        if self._closed:
            return State.CLOSED
        return State.HALF_OPEN if self._trying or now >= self._open_until else State.OPEN

    def may_try(self, now: float) -> bool:
        return self._closed or (not self._trying and now >= self._open_until)

    def take(self, now: float) -> None:
        """A request goes there: the half-open one, if it is not closed."""
        if not self._closed:
            assert self.may_try(now), "an open breaker lets nobody through"
            self._trying = True

    def good(self) -> None:
        self.failures, self._closed, self._trying, self._open_for, self.why = 0, True, False, 0.0, ""

    def bad(self, now: float, why: str) -> None:
        self.failures += 1
        self.why = why
        if self._trying or (self._closed and self.failures >= self.limits.failures):
            self._open(now)

    def unknown(self) -> None:
        """It ended without a verdict (the client left): the half-open permit comes back."""
        self._trying = False

    def _open(self, now: float) -> None:
        longer = self._open_for * 2 if self._open_for else self.limits.open_for
        self._open_for = min(longer, self.limits.open_max)
        self._open_until = now + self._open_for
        self._closed, self._trying = False, False
