"""One HTTP/2 connection that carries one stream, for either end of the agent link. Sans-IO, over ``h2``.

What must stay true:

* a connection carries one stream in its life; a second one ends it;
* received data counts against our window until ``consumed``, and sent data against theirs: ``write`` takes what
  their window allows and no more;
* every frame is looked at before ``h2`` holds it: h2 4.4.1 checks a frame's length only once all of it is there
  (up to 16 MiB), bounds neither PING nor SETTINGS, and keeps up to 64 CONTINUATION frames.

RFC 9113 §4.1 (frame head), §5.2 (flow control), §10.5 (denial of service).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
from attrs import define, field, frozen

STREAM = 1
FRAME_SIZE = 16_384
WINDOW = 65_535
HEADERS_MAX = 8 * 1024
AT_ONCE = 64 * 1024  # most that ``write`` takes, whatever their window
PREFACE = 24  # bytes
SMALL = 32  # a DATA frame below this costs as much as a frame without data; no line of JSON is so short
ALLOWANCE = 128  # frames without (much) data; one more is earned by each KiB that moved
EARNED_BY = 1024
_DATA, _HEADERS, _PUSH_PROMISE, _CONTINUATION = 0, 1, 5, 9
_SETTINGS = {
    h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 1,
    h2.settings.SettingCodes.MAX_HEADER_LIST_SIZE: HEADERS_MAX,
    h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: WINDOW,
    h2.settings.SettingCodes.MAX_FRAME_SIZE: FRAME_SIZE,
}


class Violation(Exception):
    """The peer broke the protocol or our bounds; its text says how. The connection is of no use any more."""


@frozen
class Head:
    """A request's or an answer's head, with ``:method``, ``:path`` or ``:status``."""

    fields: Mapping[str, str]


@frozen
class Body:
    """``size`` is what to hand to ``consumed``: with padding."""

    data: bytes
    size: int


@frozen
class End:
    """Nothing more comes; ``why`` is empty if that was said in good order."""

    why: str = ""


Happening = Head | Body | End


@define(eq=False)
class H2Stream:
    """Made by ``for_server`` or ``for_client``; feed it with ``receive``, send what ``outgoing`` gives."""

    _h2: h2.connection.H2Connection
    _gauge: "_Gauge"
    _opened: bool = field(default=False, init=False)  # there is a stream to write on
    _ended: bool = field(default=False, init=False)  # by us

    @classmethod
    def for_server(cls) -> "H2Stream":
        return cls(_connection(client=False), _Gauge(PREFACE))

    @classmethod
    def for_client(cls, fields: Iterable[tuple[str, str]], end: bool = False) -> "H2Stream":
        """Ask at once; ``end``: the request has no body."""
        stream = cls(_connection(client=True), _Gauge(0))
        stream._h2.send_headers(STREAM, list(fields), end_stream=end)
        stream._opened, stream._ended = True, end
        return stream

    def receive(self, data: bytes) -> list[Happening]:
        """Raises Violation."""
        self._gauge.look(data)
        try:
            events = self._h2.receive_data(data)
        except h2.exceptions.ProtocolError as error:
            raise Violation(f"no HTTP/2 of ours: {error or type(error).__name__}") from error
        return [happening for event in events for happening in self._happenings(event)]

    def consumed(self, size: int) -> None:
        """That much of what ``receive`` gave is done with: the peer may send as much again."""
        self._h2.acknowledge_received_data(size, STREAM)

    def write(self, data: bytes | memoryview) -> int:
        """How many bytes the peer's window took; 0: wait for something to be received."""
        if not self._opened or self._ended:
            return 0
        room = min(self._h2.local_flow_control_window(STREAM), AT_ONCE, len(data))
        view = memoryview(data)
        for start in range(0, room, FRAME_SIZE):
            self._h2.send_data(STREAM, view[start : min(start + FRAME_SIZE, room)])
        if room > 0:
            self._gauge.earn(room)
        return max(0, room)

    def respond(self, status: int, fields: Sequence[tuple[str, str]] = ()) -> None:
        if not self._ended:  # else whoever asked has gone
            self._h2.send_headers(STREAM, [(":status", str(status)), *fields])
            self._opened = True

    def finish(self) -> None:
        """Nothing more comes from us; the peer may still send."""
        if self._opened and not self._ended:
            self._ended = True
            self._h2.end_stream(STREAM)

    def outgoing(self) -> bytes:
        return self._h2.data_to_send()

    def _happenings(self, event: h2.events.Event) -> Iterator[Happening]:
        match event:
            case h2.events.DataReceived():
                self._gauge.earn(len(event.data))
                if event.flow_controlled_length:
                    yield Body(event.data, event.flow_controlled_length)
            case h2.events.RequestReceived() | h2.events.ResponseReceived():
                if event.stream_id != STREAM:
                    raise Violation("a second stream on one connection")
                yield Head(_fields(event.headers))
            case h2.events.StreamEnded():
                yield End()
            case h2.events.StreamReset():
                self._ended = True
                yield End("the stream was reset")
            case h2.events.ConnectionTerminated():
                self._ended = True
                yield End("the connection was ended")
            case _:
                pass  # settings, windows and pings: h2 has dealt with them


@define
class _Gauge:
    """Walks over the heads of frames, so that nothing is held or answered without bound."""

    _before: int  # bytes of the preface still to come
    _head: bytearray = field(factory=bytearray, init=False)
    _left: int = field(default=0, init=False)  # of the frame under way
    _allowance: float = field(default=float(ALLOWANCE), init=False)
    _headers: int = field(default=0, init=False)

    def look(self, data: bytes) -> None:
        """Raises Violation."""
        at = min(self._before, len(data))
        self._before -= at
        while at < len(data):
            step = min(self._left, len(data) - at)
            self._left -= step
            at += step
            taken = data[at : at + 9 - len(self._head)]
            self._head += taken
            at += len(taken)
            if len(self._head) == 9:
                self._frame(int.from_bytes(self._head[:3], "big"), self._head[3])
                self._head.clear()

    def earn(self, bytes_moved: int) -> None:
        self._allowance = min(float(ALLOWANCE), self._allowance + bytes_moved / EARNED_BY)

    def _frame(self, length: int, kind: int) -> None:
        if length > FRAME_SIZE:
            raise Violation(f"an HTTP/2 frame of {length} bytes, at most {FRAME_SIZE} are taken")
        self._left = length
        if kind in (_HEADERS, _PUSH_PROMISE, _CONTINUATION):
            self._headers += length
            if self._headers > HEADERS_MAX:
                raise Violation(f"more than {HEADERS_MAX} bytes of header fields")
        if kind != _DATA or length < SMALL:
            self._allowance -= 1
            if self._allowance < 0:
                raise Violation("a flood of HTTP/2 frames that carry nothing")


def _connection(client: bool) -> h2.connection.H2Connection:
    config = h2.config.H2Configuration(client_side=client, header_encoding=False)
    connection = h2.connection.H2Connection(config)
    ours = _SETTINGS | ({h2.settings.SettingCodes.ENABLE_PUSH: 0} if client else {})
    connection.local_settings = h2.settings.Settings(client=client, initial_values=ours)
    connection.decoder.max_header_list_size = HEADERS_MAX
    connection.initiate_connection()
    return connection


def _fields(headers: Iterable[tuple[bytes | str, bytes | str]]) -> dict[str, str]:
    """The first of each name counts; nothing we read may stand twice."""
    fields: dict[str, str] = {}
    for name, value in headers:
        fields.setdefault(_text(name), _text(value))
    return fields


def _text(field: bytes | str) -> str:
    return field if isinstance(field, str) else field.decode("latin-1")
