"""What became of those who waited for one pool: by band and tenant, for operators and metrics."""

from collections import Counter

from attrs import define, field

from llmgw.core.identity import Band
from llmgw.telemetry.metrics import OTHER, Buckets

WAITS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


@define(eq=False)
class Waited:
    """Of one tenant in one band. ``refused`` by reason: full, too_late, overflowed, gone, gave_way, no_endpoint, …"""

    served: int = 0
    wait_s: float = 0.0  # of those served, together
    longest_s: float = 0.0
    refused: Counter[str] = field(factory=Counter)


@define(eq=False)
class Waits:
    """Of one pool. Tenants beyond ``tenants_max`` are counted together."""

    tenants_max: int
    by: dict[tuple[Band, str], Waited] = field(factory=dict)
    waits: dict[Band, Buckets] = field(factory=lambda: {band: Buckets(WAITS_S) for band in Band})

    def served(self, band: Band, tenant: str, seconds: float) -> None:
        one = self._of(band, tenant)
        one.served += 1
        one.wait_s += seconds
        one.longest_s = max(one.longest_s, seconds)
        self.waits[band].observe(seconds)

    def refused(self, band: Band, tenant: str, reason: str) -> None:
        self._of(band, tenant).refused[reason] += 1

    def refusals(self) -> Counter[tuple[Band, str]]:
        """By band and reason."""
        found: Counter[tuple[Band, str]] = Counter()
        for (band, _), one in self.by.items():
            for reason, count in one.refused.items():
                found[(band, reason)] += count
        return found

    def named(self, band: Band, tenant: str) -> str:
        """The name it is counted under, the same from now on."""
        one = self._of(band, tenant)
        return tenant if self.by.get((band, tenant)) is one else OTHER

    def _of(self, band: Band, tenant: str) -> Waited:
        one = self.by.get((band, tenant))
        if one is None:
            known = tenant if len(self.by) < self.tenants_max else OTHER
            one = self.by.setdefault((band, known), Waited())
        return one
