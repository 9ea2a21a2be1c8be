"""Server-sent events as engines send them: framing, and the profile that breaks no client.

Framing accepts ``\\n``, ``\\r\\n`` and ``\\r`` across any split (WHATWG HTML, "event stream interpretation"). An
event in the safe profile keeps its bytes: one ``data:`` line, LF, one blank line, with an ``event:`` line
before it where the route has them. Anything else is made anew around the same JSON.
"""

from attrs import define

BOM = b"\xef\xbb\xbf"
KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"[DONE]"
DONE_EVENT = b"data: [DONE]\n\n"


class EventTooLarge(Exception):
    """An event passed its bound before its blank line came."""


@define(eq=False)
class Framer:
    """Cut a byte stream into events; each keeps its bytes, its blank line included."""

    most: int
    _buffer: bytes = b""
    _fresh: bool = True  # no byte yet: a byte-order mark may stand here
    _after_cr: bool = False  # a line ended in CR at the edge of a segment: its LF may follow

    def feed(self, data: bytes) -> list[bytes]:
        """The events whose blank line has come. Raises EventTooLarge."""
        if self._fresh or self._after_cr or b"\r" in data:
            data = self._normal(data)
        if not self._buffer and data.endswith(b"\n\n") and data.find(b"\n\n") == len(data) - 2 and data[:1] != b"\n":
            return [data]
        whole, ended, rest = (self._buffer + data).rpartition(b"\n\n")
        self._buffer = rest
        if len(rest) > self.most:
            raise EventTooLarge(f"an event is larger than {self.most} bytes")
        return _cut(whole) if ended else []

    def finish(self) -> list[bytes]:
        """The last event when its blank line never came."""
        rest, self._buffer = self._buffer.strip(b"\n"), b""
        return [rest + b"\n\n"] if rest else []

    def _normal(self, data: bytes) -> bytes:
        """LF for every line end; an event that had another is re-emitted by whoever reads ``safe``."""
        if self._fresh and data:
            data, self._buffer = self._buffer + data, b""
            if len(data) < len(BOM) and BOM.startswith(data):
                self._buffer = data
                return b""
            self._fresh = False
            data = data.removeprefix(BOM)
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")
        if b"\r" in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return data


def _cut(whole: bytes) -> list[bytes]:
    # More blank lines than one may stand between two events.
    pieces = (piece.strip(b"\n") for piece in whole.split(b"\n\n"))
    return [piece + b"\n\n" for piece in pieces if piece]


@define(eq=False)
class Event:
    """What one event says, and the bytes that may be sent for it."""

    data: bytes | None  # None: comments or fields nobody acts on
    name: bytes = b""  # its event: line
    bytes: bytes = b""  # in the safe profile


def read_event(raw: bytes, named: bool) -> Event:
    """Parse one framed event; ``named`` says that the route's events carry an ``event:`` line."""
    if not named and raw.startswith(b"data:") and raw.count(b"\n") == 2:
        data = raw[6:-2] if raw[5:6] == b" " else raw[5:-2]
        return Event(data or None, b"", raw)
    lines = raw[:-2].split(b"\n")
    pieces: list[bytes] = []
    name, seen = b"", []
    for line in lines:
        if not line or line[:1] == b":":
            seen.append(b":")
            continue
        key, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        seen.append(key)
        if key == b"data":
            pieces.append(value)
        elif key == b"event":
            name = value
    if not any(pieces):
        return Event(None, name)
    whole = b" ".join(pieces)
    safe = seen == [b"data"] or (named and seen == [b"event", b"data"])
    return Event(whole, name, raw if safe else emit(whole, name if named else b""))


def emit(data: bytes, name: bytes = b"") -> bytes:
    """An event in the safe profile around this JSON."""
    return b"event: %b\ndata: %b\n\n" % (name, data) if name else b"data: %b\n\n" % data
