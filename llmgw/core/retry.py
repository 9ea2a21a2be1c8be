"""May a failure go elsewhere: to another endpoint of the pool, to a fallback model, and how often at all."""

from attrs import define, field

from llmgw.core.fleet import FallbackOn
from llmgw.core.outcome import Outcome, Refusal

_ELSEWHERE = frozenset(
    {
        Outcome.ENGINE_ERROR,
        Outcome.ENGINE_UNREACHABLE,
        Outcome.ENGINE_BROKE,
        Outcome.ENGINE_MALFORMED,
        Outcome.ENGINE_DENIED_US,
        Outcome.ENGINE_BUSY,
        Outcome.ENGINE_FAILED_INSIDE,
        Outcome.DIAL_TIMEOUT,
        Outcome.HEADERS_TIMEOUT,
        Outcome.FIRST_TOKEN_TIMEOUT,
        Outcome.IDLE_TIMEOUT,
    }
)
_REASONS = {
    Outcome.ENGINE_UNREACHABLE: FallbackOn.UNREACHABLE,
    Outcome.ENGINE_BROKE: FallbackOn.UNREACHABLE,
    Outcome.DIAL_TIMEOUT: FallbackOn.UNREACHABLE,
    Outcome.ENGINE_ERROR: FallbackOn.SERVER_ERROR,
    Outcome.ENGINE_MALFORMED: FallbackOn.SERVER_ERROR,
    Outcome.ENGINE_DENIED_US: FallbackOn.SERVER_ERROR,
    Outcome.ENGINE_FAILED_INSIDE: FallbackOn.SERVER_ERROR,
    Outcome.HEADERS_TIMEOUT: FallbackOn.TIMEOUT,
    Outcome.FIRST_TOKEN_TIMEOUT: FallbackOn.TIMEOUT,
    Outcome.IDLE_TIMEOUT: FallbackOn.TIMEOUT,
    Outcome.NO_ENDPOINT: FallbackOn.NO_ENDPOINT,
    Outcome.QUEUE_FULL: FallbackOn.SATURATED,
}
# What says that the endpoint itself is ill; a 429 or 503 is backpressure, a 4xx the client's own.
_ILLNESS = frozenset(
    {
        Outcome.ENGINE_ERROR,
        Outcome.ENGINE_UNREACHABLE,
        Outcome.ENGINE_BROKE,
        Outcome.ENGINE_MALFORMED,
        Outcome.ENGINE_DENIED_US,
        Outcome.DIAL_TIMEOUT,
        Outcome.HEADERS_TIMEOUT,
        Outcome.FIRST_TOKEN_TIMEOUT,
        Outcome.IDLE_TIMEOUT,
    }
)
# The engine answered as it should; who was wrong was the client.
_HEALTH = frozenset({Outcome.OK, Outcome.ENGINE_REFUSED, Outcome.NOT_SUPPORTED})
WINDOW_S = 10.0


def may_retry(outcome: Outcome, reached_client: bool, attempts: int, attempts_max: int) -> bool:
    """Only while nothing has reached the client, and where another endpoint could do better."""
    return not reached_client and attempts < attempts_max and outcome in _ELSEWHERE


def fallback_reason(refusal: Refusal) -> FallbackOn | None:
    """The reason a fallback rule may name; None: this failure goes nowhere else."""
    if refusal.outcome is Outcome.ENGINE_BUSY:
        return FallbackOn.RATE_LIMITED if refusal.status == 429 else FallbackOn.SERVER_ERROR
    return _REASONS.get(refusal.outcome)


def is_illness(outcome: Outcome) -> bool:
    """Whether the breaker counts it."""
    return outcome in _ILLNESS


def is_health(outcome: Outcome) -> bool:
    """Whether it shows that the endpoint works. What is neither says nothing of it."""
    return outcome in _HEALTH


@define(eq=False)
class RetryBudget:
    """Retries as a share of the requests of the last ten seconds, so that a storm can't feed itself."""

    share: float
    least: int  # always allowed in ten seconds
    _second: int = 0
    _requests: list[int] = field(factory=lambda: [0] * int(WINDOW_S))
    _retries: list[int] = field(factory=lambda: [0] * int(WINDOW_S))

    def request(self, now: float) -> None:
        self._turn(now)
        self._requests[self._second % len(self._requests)] += 1

    def take(self, now: float) -> bool:
        """Whether one more retry is in the budget; counts it if so."""
        self._turn(now)
        if sum(self._retries) >= max(self.least, self.share * sum(self._requests)):
            return False
        self._retries[self._second % len(self._retries)] += 1
        return True

    def _turn(self, now: float) -> None:
        second = int(now)
        if second != self._second:
            for passed in range(self._second + 1, min(second, self._second + len(self._requests)) + 1):
                slot = passed % len(self._requests)
                self._requests[slot] = self._retries[slot] = 0
            self._second = second
