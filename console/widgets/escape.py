"""Escape with a key right behind it: two keys, as they were typed.

To Textual they are one key with alt, or, where that has no name, the second alone: the Escape that was to leave a
dialog is lost, and what comes behind it goes into the dialog.
"""

from collections.abc import Iterable

from textual import events
from textual._xterm_parser import XTermParser

ESC = "\x1b"
ESCAPED = "escaped"  # under a name of its own: Textual writes an escape within a sequence as ^
_as_one = XTermParser._sequence_to_key_events


def _apart(parser: XTermParser, sequence: str, alt: bool = False) -> Iterable[events.Key]:
    if alt or sequence == ESC:
        yield events.Key(ESCAPED, ESC)
    if sequence != ESC:
        yield from _as_one(parser, sequence)


def take_apart() -> None:
    """From now on, in this process."""
    XTermParser._sequence_to_key_events = _apart  # type: ignore[method-assign, assignment]


def as_typed(event: events.Event) -> events.Event:
    return events.Key("escape", ESC) if isinstance(event, events.Key) and event.key == ESCAPED else event
