"""Whether an endpoint that failed may be tried again: closed, open, half-open.

Transport errors, 5xx except 503 and the engine's 401/403 count; a client's 4xx and an engine's 429/503
never do. It opens after ``failures`` in a row, or when the failures of the last ``window`` are more than
``share`` of its requests; half-open lets exactly one request through, whose end decides. Times are the
caller's clock, in seconds.

A verdict carries the ticket its request was given: what ended after the breaker changed its state was sent
before, and says nothing of how things are now.
"""

from enum import StrEnum
from math import inf

from attrs import define, field, frozen

from llmgw.core.settings import Unit, setting


@frozen
class BreakerLimits:
    """``[breaker]``"""

    failures: int = setting(5, Unit.COUNT, "failures in a row that take an endpoint out", at_least=1)
    share: float = setting(
        0.5, Unit.RATIO, "or this share of the requests that ended within the window; 1: never", at_least=0, at_most=1
    )
    window: float = setting(10.0, Unit.SECONDS, "how far back the share looks", at_least=0.1)
    share_least: int = setting(20, Unit.COUNT, "with fewer requests in the window the share says nothing", at_least=1)
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
    _trying: bool = False  # the half-open request is under way
    _ticket: int = 0  # another one after every change of state
    _open_until: float = 0.0
    _open_for: float = 0.0
    _turned_at: float = 0.0
    # Goods and bads of this half of the window, and of the half before it.
    _good: int = 0
    _bad: int = 0
    _good_before: int = 0
    _bad_before: int = 0

    def state(self, now: float) -> State:
        if self._closed:
            return State.CLOSED
        return State.HALF_OPEN if self._trying or now >= self._open_until else State.OPEN

    @property
    def half_open(self) -> bool:
        """The one request it lets through is under way."""
        return self._trying

    @property
    def opens_at(self) -> float:
        """When it lets somebody through again; the past for one that does."""
        return -inf if self._closed else self._open_until

    def may_try(self, now: float) -> bool:
        return self._closed or (not self._trying and now >= self._open_until)

    def take(self, now: float) -> int:
        """A request goes there, the half-open one if it is not closed; the ticket its verdict needs."""
        if not self._closed:
            assert self.may_try(now), "an open breaker lets nobody through"
            self._trying = True
            self._ticket += 1
        return self._ticket

    def good(self, ticket: int | None = None) -> None:
        """A request ended well; without a ticket: whoever says so knows that all is well now."""
        if ticket is None or (self._trying and ticket == self._ticket):
            self._close()
        elif self._closed and ticket == self._ticket:
            self.failures = 0
            self._good += 1

    def bad(self, now: float, why: str, ticket: int | None = None) -> None:
        if ticket is not None and ticket != self._ticket:
            return
        self.why = why
        self.failures += 1
        if self._trying:
            self._open(now)
        elif self._closed:
            self._turn(now)
            self._bad += 1
            if self.failures >= self.limits.failures or self._too_many():
                self._open(now)

    def unknown(self, ticket: int | None = None) -> None:
        """It ended without a verdict (the client left): the half-open permit comes back."""
        if self._trying and ticket in (None, self._ticket):
            self._trying = False

    def _too_many(self) -> bool:
        bad, good = self._bad + self._bad_before, self._good + self._good_before
        return bad + good >= self.limits.share_least and bad > self.limits.share * (bad + good)

    def _turn(self, now: float) -> None:
        """Goods come without a time, so a half of the window may be a little old; never a bad one."""
        half = self.limits.window / 2
        passed = now - self._turned_at
        if passed >= half:
            before = (self._good, self._bad) if passed < 2 * half else (0, 0)
            self._good_before, self._bad_before = before
            self._good = self._bad = 0
            self._turned_at = now

    def _open(self, now: float) -> None:
        longer = self._open_for * 2 if self._open_for else self.limits.open_for
        self._open_for = min(longer, self.limits.open_max)
        self._open_until = now + self._open_for
        self._closed, self._trying = False, False
        self._ticket += 1

    def _close(self) -> None:
        if not self._closed:
            self._ticket += 1
        self.failures, self.why, self._closed, self._trying, self._open_for = 0, "", True, False, 0.0
        self._good = self._bad = self._good_before = self._bad_before = 0
