"""One endpoint as this process sees it now: what the probe learned and what the road counts.

The only mutable thing the roads share. Probe and road meet here; scheduling reads it.
"""

from attrs import define, field

from llmgw.core.breaker import Breaker
from llmgw.core.fleet import Endpoint
from llmgw.core.saturation import Sample


@define(eq=False)
class LiveEndpoint:
    """Times are Trio's clock, in seconds."""

    endpoint: Endpoint
    breaker: Breaker
    added_at: float
    in_flight: int = 0
    healthy: bool | None = None  # None: nobody has asked yet; counts as usable
    health_why: str = "not asked yet"
    health_at: float | None = None
    leaving: bool = False  # removed by a reload: serves on what it has
    sample: Sample | None = None
    sample_failures: int = 0
    busy_until: float = 0.0  # after its own 429 or 503: full until then
    served: int = field(default=0, init=False)

    @property
    def id(self) -> str:
        return self.endpoint.id

    def usable(self, now: float) -> bool:
        """The one predicate for saturation, scheduling and /ready."""
        return self.healthy is not False and not self.leaving and self.breaker.may_try(now)
