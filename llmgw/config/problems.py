"""What is wrong with a config, where, and what to do about it; never the value of a secret."""

from collections.abc import Iterator
from contextlib import contextmanager

from attrs import define, field, frozen


@frozen
class Problem:
    file: str  # "environment" for a variable, "command line" for an option
    key: str  # as "relay.total" or "models[2].endpoints[0].url"; a variable; an option; empty: the file itself
    what: str
    what_to_do: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.key}" if self.key else self.file
        return f"{where}: {self.what}, {self.what_to_do}"


class ConfigError(Exception):
    """A config that can't be used; every problem found is in ``problems``, not only the first."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


class Refused(ValueError):
    """One value that can't be used; whoever knows its place makes a Problem of it."""

    def __init__(self, what: str, what_to_do: str) -> None:
        super().__init__(f"{what}, {what_to_do}")
        self.what = what
        self.what_to_do = what_to_do


@define
class Problems:
    """Collects, so that one run of check-config shows all there is to mend."""

    file: str
    found: list[Problem] = field(factory=list, init=False)

    def add(self, key: str, what: str, what_to_do: str, file: str = "") -> None:
        self.found.append(Problem(file or self.file, key, what, what_to_do))

    @contextmanager
    def at(self, key: str, file: str = "") -> Iterator[None]:
        """A refusal in here is a problem of this key, and the rest goes on."""
        try:
            yield
        except Refused as refused:
            self.add(key, refused.what, refused.what_to_do, file)
