"""A value that never shows itself: not in a repr, a log line, a traceback or a profile."""

from attrs import field, frozen


@frozen(repr=False)
class Secret:
    _value: str = field(alias="value")

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "***"

    def __bool__(self) -> bool:
        return bool(self._value)
