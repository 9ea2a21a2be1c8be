"""One value that says why: used for requests, placements, drains, queues, GPUs and leadership.

It reads the same in a log line, the API, ``llmgw ctl explain`` and the console.
"""

from collections.abc import Mapping

from attrs import field, frozen


@frozen
class Fact:
    """Something known, and how old the knowledge is. ``age_s`` None: known for certain now."""

    text: str
    age_s: float | None = None

    def __str__(self) -> str:
        return self.text if self.age_s is None else f"{self.text} ({_age(self.age_s)} ago)"


@frozen
class Considered:
    """One candidate: chosen, or every reason it was not; scores where it was scored."""

    name: str
    chosen: bool = False
    reasons: tuple[str, ...] = ()
    scores: Mapping[str, float] = field(factory=dict)


@frozen
class Explanation:
    subject: str
    verdict: str
    because: tuple[Fact, ...] = ()
    candidates: tuple[Considered, ...] = ()
    would_change_it: tuple[str, ...] = ()
    next_command: str = ""

    def __str__(self) -> str:
        """The sentence: subject, verdict, the facts behind it."""
        because = "; ".join(str(fact) for fact in self.because)
        return f"{self.subject}: {self.verdict}" + (f", because {because}" if because else "")


def _age(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
