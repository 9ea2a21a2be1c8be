"""The management API's event feed: server-sent events out of the bytes of an answer, as the gateway writes them."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from attrs import define, field, frozen

EVENT_MAX = 1024**2


class NotEvents(Exception):
    """Bytes that are no events."""


@frozen
class Told:
    """``data`` None: it only says where to go on."""

    id: str = ""
    kind: str = ""
    data: Any = None


@define(eq=False)
class FeedReader:
    _rest: bytes = b""
    _fields: dict[str, str] = field(factory=dict, init=False)

    def of(self, chunk: bytes) -> Iterator[Told]:
        """Each as soon as its blank line is there; comments are passed over. Raises NotEvents."""
        for line in self._lines(chunk):
            if line:
                name, _, value = line.decode("utf-8", "replace").partition(":")
                self._fields[name] = value.removeprefix(" ")
                continue
            said, self._fields = self._fields, {}
            if "id" in said or "data" in said:
                yield _told(said)

    def _lines(self, chunk: bytes) -> list[bytes]:
        """Split at LF alone: a sentence may hold other characters that some call line ends."""
        *whole, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > EVENT_MAX:
            raise NotEvents(f"a line of more than {EVENT_MAX} bytes")
        return whole


def events_in(chunks: Iterable[bytes]) -> Iterator[Told]:
    """Of a whole answer. Raises NotEvents."""
    reader = FeedReader()
    for chunk in chunks:
        yield from reader.of(chunk)


def _told(said: dict[str, str]) -> Told:
    try:
        data = json.loads(said["data"]) if "data" in said else None
    except ValueError as error:
        raise NotEvents(f"an event that is not JSON: {error}") from None
    return Told(said.get("id", ""), said.get("event", ""), data)
