"""How much may pass in a time: a bucket that fills by the clock."""

from attrs import define, field


@define
class Bucket:
    """Starts full. ``now`` is any clock that does not go back."""

    per_second: float
    most: float
    _has: float = field(init=False)
    _at: float | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._has = self.most

    def take(self, amount: float, now: float) -> bool:
        """False: that is more than may pass now; nothing is taken."""
        if self._at is not None:
            self._has = min(self.most, self._has + (now - self._at) * self.per_second)
        self._at = now
        if amount > self._has:
            return False
        self._has -= amount
        return True
