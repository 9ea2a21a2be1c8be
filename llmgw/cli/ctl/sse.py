"""Server-sent events out of the bytes of an answer, as the gateway writes them."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from attrs import define, frozen

EVENT_MAX = 1024**2


class NotEvents(Exception):
    """Bytes that are no events."""


@frozen
class Told:
    """``data`` None: it only says where to go on."""

    id: str = ""
    kind: str = ""
    data: Any = None


@define
class _Lines:
    _rest: bytes = b""

    def of(self, chunk: bytes) -> list[bytes]:
        """Split at LF alone: a sentence may hold other characters that some call line ends."""
        *whole, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > EVENT_MAX:
            raise NotEvents(f"a line of more than {EVENT_MAX} bytes")
        return whole


def events_in(chunks: Iterable[bytes]) -> Iterator[Told]:
    """Each as soon as its blank line is there; comments are passed over. Raises NotEvents."""
    lines, fields = _Lines(), dict[str, str]()
    for chunk in chunks:
        for line in lines.of(chunk):
            if line:
                name, _, value = line.decode("utf-8", "replace").partition(":")
                fields[name] = value.removeprefix(" ")
            else:
                if "id" in fields or "data" in fields:
                    yield _told(fields)
                fields = {}


def _told(fields: dict[str, str]) -> Told:
    try:
        data = json.loads(fields["data"]) if "data" in fields else None
    except ValueError as error:
        raise NotEvents(f"an event that is not JSON: {error}") from None
    return Told(fields.get("id", ""), fields.get("event", ""), data)
