"""The deadlines of one attempt, on one alarm.

Five limits, each with a name: dial, headers, first_token, idle, total; and two moments that limit nothing:
the keep-alive comment and the end of a held preamble. The alarm is set to whatever comes first; when it
rings the caller asks which, acts, and may go on.
"""

from math import inf

from attrs import define, field

from llmgw.core.outcome import Outcome
from llmgw.tasks.alarms import Alarm

TIMED_OUT = {
    "dial": Outcome.DIAL_TIMEOUT,
    "headers": Outcome.HEADERS_TIMEOUT,
    "first_token": Outcome.FIRST_TOKEN_TIMEOUT,
    "idle": Outcome.IDLE_TIMEOUT,
    "total": Outcome.TOTAL_TIMEOUT,
}
_SLACK = 0.05  # it slides once this share of a limit has passed: fewer moves, never early


@define(eq=False)
class Timers:
    alarm: Alarm
    total_at: float
    phase: str = "dial"
    phase_at: float = inf
    keepalive_after: float = 0.0  # 0: never
    keepalive_at: float = inf
    hold_at: float = inf
    _phase_s: float = field(default=inf, init=False)
    _slide_at: float = field(default=0.0, init=False)

    def next(self) -> float:
        return min(self.total_at, self.phase_at, self.keepalive_at, self.hold_at)

    def enter(self, phase: str, seconds: float, now: float, slides: bool = False) -> None:
        """Another limit takes over; one that ``slides`` begins anew with every progress."""
        self.phase, self._phase_s = phase, seconds if slides else inf
        self.phase_at = now + seconds * (1 + _SLACK if slides else 1)
        self._slide_at = now if slides else now + seconds * _SLACK  # the progress that began it counts
        self.alarm.set(self.next())

    def until(self, phase: str, at: float) -> None:
        """Another limit takes over, with its end already known."""
        self.phase, self._phase_s, self.phase_at, self._slide_at = phase, inf, at, inf
        self.alarm.set(self.next())

    def progress(self, now: float) -> None:
        """Bytes came: the sliding limit and the keep-alive begin anew. Cheap: called once per read."""
        if now < self._slide_at:
            return
        self._slide_at = now + min(self._phase_s, self.keepalive_after or inf) * _SLACK
        if self._phase_s < inf:
            self.phase_at = now + self._phase_s * (1 + _SLACK)
        if self.keepalive_at < inf:
            self.keepalive_at = now + self.keepalive_after * (1 + _SLACK)
        self.alarm.set(self.next())

    def hold(self, seconds: float, now: float) -> None:
        self.hold_at = now + seconds
        self.alarm.set(self.next())

    def expired(self, now: float) -> str | None:
        """The limit that has run out, if one has; total before the others."""
        if now >= self.total_at:
            return "total"
        return self.phase if now >= self.phase_at else None
