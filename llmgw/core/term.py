"""Whose word counts: the number of a leadership, carried by every frame to and from an agent."""

from attrs import frozen


@frozen
class Term:
    """Compared by ``(n, epoch)``; ``nonce`` tells two leaders apart that a rolled-back store gave one number.

    ``n`` is 0 on SQLite and rises with PostgreSQL's timeline; it never falls.
    """

    n: int = 0
    epoch: int = 0
    nonce: str = ""

    def is_newer_than(self, other: "Term") -> bool:
        return (self.n, self.epoch) > (other.n, other.epoch)

    def comes_right_after(self, other: "Term") -> bool:
        """Nobody can have led under a term between the two, which may be one and the same."""
        return self.n == other.n and 0 <= self.epoch - other.epoch <= 1

    def conflicts_with(self, other: "Term") -> bool:
        """Two leaders under one number: neither may be obeyed."""
        return (self.n, self.epoch) == (other.n, other.epoch) and self.nonce != other.nonce

    def __str__(self) -> str:
        return f"{self.n}.{self.epoch}"


NO_TERM = Term()
