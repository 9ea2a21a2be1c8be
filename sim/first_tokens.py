"""How long do requests wait for their first token? Counted in vLLM's buckets."""

from bisect import bisect_left

from attrs import define, field

BOUNDS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)


@define(eq=False)
class FirstTokens:
    total_s: float = field(default=0.0, init=False)
    _counts: list[int] = field(factory=lambda: [0] * (len(BOUNDS_S) + 1), init=False)

    def took(self, seconds: float) -> None:
        self.total_s += seconds
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1

    def up_to(self) -> list[tuple[str, int]]:
        """Each bucket's bound, as its label has it, and how many took at most so long."""
        shown, so_far = [], 0
        for bound, count in zip([*map(str, BOUNDS_S), "+Inf"], self._counts, strict=True):
            so_far += count
            shown.append((bound, so_far))
        return shown
