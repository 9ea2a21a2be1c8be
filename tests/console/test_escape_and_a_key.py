"""Escape with a key right behind it, as a terminal sends them in one piece."""

import time
from collections.abc import Iterator

import pytest
from textual import events
from textual._xterm_parser import XTermParser

from console.widgets.escape import as_typed, take_apart


@pytest.fixture(autouse=True)
def apart() -> Iterator[None]:
    before = XTermParser._sequence_to_key_events
    take_apart()
    yield
    XTermParser._sequence_to_key_events = before  # type: ignore[method-assign]


def typed(text: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the keys that a terminal's bytes are, once nothing more has come for a while."""
    parser = XTermParser()
    found = list(parser.feed(text))
    later = time.monotonic() + 60
    monkeypatch.setattr("textual._parser.get_time", lambda: later)
    found += list(parser.tick())
    return [event.key for one in found if isinstance(event := as_typed(one), events.Key)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("\x1bc", ["escape", "c"]),
        ("\x1bD", ["escape", "D"]),
        ("\x1b:", ["escape", "colon"]),
        ("\x1b\r", ["escape", "enter"]),
        ("\x1bjD", ["escape", "j", "D"]),
        ("\x1b" + 40 * "j", ["escape", *40 * "j"]),
        ("\x1b\x1bc", ["escape", "escape", "c"]),
        ("\x1b", ["escape"]),
        ("\x1b[A", ["up"]),
        ("c", ["c"]),
    ],
)
def test_they_are_two_keys(text: str, keys: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert typed(text, monkeypatch) == keys
