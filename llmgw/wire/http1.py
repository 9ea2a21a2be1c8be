"""HTTP/1.1 heads and bodies as values, sans-IO, parsed by httptools (llhttp).

A request's head is cut off at its blank line, checked for everything two parsers could read differently,
and parsed by itself; its body is framed by the length or, when chunked, by a parser of its own. So
nothing that waits behind a request is ever parsed before its turn.
"""

from collections.abc import Iterable
from http import HTTPStatus

import httptools
from attrs import define, field

Headers = list[tuple[bytes, bytes]]

END_OF_HEAD = b"\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
_ALLOWED_IN_HEAD = bytes(b for b in range(256) if b >= 0x20 and b != 0x7F) + b"\t\r\n"
_TARGET = bytes(range(0x21, 0x7F)).replace(b"#", b"")
_METHODS = frozenset({b"GET", b"POST", b"HEAD", b"OPTIONS", b"DELETE", b"PUT", b"PATCH"})
_NOT_OURS = frozenset({b"CONNECT", b"TRACE"})
_TOKEN = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_HOST = b"-._~%!$&'()*+,;=:[]0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_FRAMING_LOOKALIKES = frozenset({b"content_length", b"transfer_encoding", b"content_encoding"})
_UNDERSTOOD = _FRAMING_LOOKALIKES | {
    b"host", b"content-length", b"transfer-encoding", b"connection", b"expect", b"upgrade", b"content-encoding"
}  # fmt: skip
_SILENT_MAX = 16 * 1024  # bytes of chunk extensions or trailers that carry nothing


class Malformed(Exception):
    """Not a request two parsers would read alike; the connection closes behind ``status``."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


@define(eq=False)
class Head:
    """A request head. Header names are in lower case, in the order they came."""

    method: str
    path: str
    query: str
    minor: int  # of HTTP/1.x
    headers: Headers
    length: int | None = None  # Content-Length
    chunked: bool = False
    keep_alive: bool = True
    expects_continue: bool = False
    upgrade: bytes = b""
    coding: bytes = b""  # Content-Encoding

    @property
    def has_body(self) -> bool:
        return self.chunked or bool(self.length)


def too_early_to_tell(data: bytes, head_max: int) -> None:
    """Refuse what can no longer become a head, before its end has come. Raises Malformed."""
    if len(data) > head_max:
        raise Malformed(431, f"the request head is longer than {head_max} bytes")
    first = data[:1]
    if first and not first.isalpha() and first not in (b"\r", b"\n"):
        raise Malformed(400, "this is not an HTTP request")
    if data.count(b"\n") != data.count(b"\r\n"):
        raise Malformed(400, "a line ends without a carriage return")


def parse_head(head: bytes, target_max: int, headers_max: int) -> Head:
    """A whole head, its blank line included, as a value. Raises Malformed."""
    if head.translate(None, _ALLOWED_IN_HEAD):
        raise Malformed(400, "control bytes in the request head")
    lines = head.count(b"\n")
    if lines != head.count(b"\r") or lines != head.count(b"\r\n"):
        raise Malformed(400, "a line of the request head does not end in CR LF")
    if b"\r\n " in head or b"\r\n\t" in head:
        raise Malformed(400, "folded or indented header lines are not accepted")
    if lines - 2 > headers_max:
        raise Malformed(431, f"more than {headers_max} header fields")
    method, path, query, minor = _request_line(head[: head.index(b"\r\n")], target_max)
    found = _Collector()
    parser = httptools.HttpRequestParser(found)
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        found.upgrading = True
    except httptools.HttpParserError as error:
        raise Malformed(400, f"not HTTP/1.1: {error}") from None
    if not found.complete_head:
        raise Malformed(400, "the request head is not complete")
    parsed = Head(method, path, query, minor, found.headers)
    _understand(parsed)
    return parsed


def _request_line(line: bytes, target_max: int) -> tuple[str, str, str, int]:
    parts = line.split(b" ")
    if len(parts) != 3:
        raise Malformed(400, "the request line is not method, target, version")
    method, target, version = parts
    if len(target) > target_max:
        raise Malformed(414, f"the request target is longer than {target_max} bytes")
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        known = version[:5] == b"HTTP/" and len(version) == 8 and version[5:6].isdigit()
        raise Malformed(505 if known else 400, "only HTTP/1.1 and HTTP/1.0 are spoken here")
    if method in _NOT_OURS:
        raise Malformed(405, f"{method.decode('ascii')} is not answered here")
    if method not in _METHODS:
        odd = not method or method.translate(None, _TOKEN) or method.upper() != method
        raise Malformed(400 if odd else 501, "unknown request method")
    if target.translate(None, _TARGET):
        raise Malformed(400, "the request target has bytes that must be percent-encoded")
    if target[:1] != b"/" and not (target == b"*" and method == b"OPTIONS"):
        raise Malformed(400, "the request target must be a path: this is no proxy")
    path, _, query = target.decode("ascii").partition("?")
    return method.decode("ascii"), path, query, 1 if version == b"HTTP/1.1" else 0


def _understand(head: Head) -> None:
    """Framing and what else the door must know; one pass over the headers."""
    hosts = 0
    for name, value in head.headers:
        if name not in _UNDERSTOOD:
            continue
        if name == b"host":
            hosts += 1
            if value.translate(None, _HOST):
                raise Malformed(400, "the Host header is not a host")
        elif name == b"content-length":
            if head.length is not None or not value.isdigit() or len(value) > 18:
                raise Malformed(400, "Content-Length must be given once, as decimal digits")
            head.length = int(value)
        elif name == b"transfer-encoding":
            if head.chunked or value.lower() != b"chunked":
                raise Malformed(400, "the only transfer coding accepted is chunked, once")
            head.chunked = True
        elif name == b"connection":
            _connection(head, value)
        elif name == b"expect":
            if value.lower() != b"100-continue":
                raise Malformed(417, "the only expectation met here is 100-continue")
            head.expects_continue = head.minor == 1
        elif name == b"upgrade":
            head.upgrade = value
        elif name == b"content-encoding":
            head.coding = head.coding + b", " + value.lower() if head.coding else value.lower()
        elif name in _FRAMING_LOOKALIKES:
            raise Malformed(400, f"{name.decode()} is not a header: did you mean {name.decode().replace('_', '-')}")
    if hosts != 1 and (head.minor == 1 or hosts):
        raise Malformed(400, "exactly one Host header is needed")
    if head.chunked and head.length is not None:
        raise Malformed(400, "Content-Length and Transfer-Encoding must not both be given")
    if head.chunked and head.minor == 0:
        raise Malformed(400, "HTTP/1.0 knows no transfer codings")
    if head.minor == 0:
        head.keep_alive = False


def _connection(head: Head, value: bytes) -> None:
    if b"close" in [token.strip() for token in value.lower().split(b",")]:
        head.keep_alive = False


class _Collector:
    """httptools' callbacks for a head."""

    def __init__(self) -> None:
        self.headers: Headers = []
        self.complete_head = False
        self.upgrading = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        self.complete_head = True


class ChunkedBody:
    """The body of one chunked request: feed bytes, take decoded ones.

    Trailers are dropped. Bytes that belong to a request behind it set ``overrun``: they can't be given
    back, so the connection closes after the answer (no client known pipelines behind a chunked body).
    """

    _PRETEND = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"

    def __init__(self) -> None:
        self.complete = False
        self.overrun = False
        self._pieces: list[bytes] = []
        self._silent = 0
        self._spoke = False
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(self._PRETEND)

    def feed(self, data: bytes) -> bytes:
        """The decoded bytes in ``data``. Raises Malformed."""
        self._spoke = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if not self.complete:
                raise Malformed(400, f"the chunked body is malformed: {error}") from None
            self.overrun = True
        self._silent = 0 if self._spoke else self._silent + len(data)
        if self._silent > _SILENT_MAX:
            raise Malformed(400, "chunk extensions or trailers without end")
        pieces, self._pieces = self._pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def on_message_begin(self) -> None:
        if self.complete:
            self.overrun = True

    def on_chunk_header(self) -> None:
        self._spoke = True

    def on_body(self, data: bytes) -> None:
        if not self.complete:
            self._spoke = True
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        self.complete = True


@define(eq=False)
class Response:
    """One response as it arrives: feed bytes until ``head_done``, then take body pieces until ``complete``.

    A body without length or chunks ends with the connection (``ends_with_connection``).
    """

    head_max: int = 64 * 1024
    status: int = 0
    headers: Headers = field(factory=list)
    head_done: bool = False
    complete: bool = False
    keep_alive: bool = False
    framed: bool = False
    started: bool = False  # any byte has come
    overrun: bool = False  # bytes behind the end: the connection is not to be used again
    _head_size: int = 0
    _pieces: list[bytes] = field(factory=list)
    _parser: httptools.HttpResponseParser = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Raises Malformed (502 is for the caller to say)."""
        self.started = True
        if self.complete:
            self.overrun = True
            return
        if not self.head_done:
            self._head_size += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise Malformed(502, "the engine wants to switch protocols") from None
        except httptools.HttpParserError as error:
            if not self.complete:
                raise Malformed(502, f"the engine's answer is not HTTP: {error}") from None
            self.overrun = True
        if not self.head_done and self._head_size > self.head_max:
            raise Malformed(502, "the engine's response head is too long")

    def take(self) -> list[bytes]:
        """Body pieces since the last call."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def connection_ended(self) -> bool:
        """Whether the answer is whole now that nothing more comes."""
        if self.head_done and not self.framed:
            self.complete = True
        return self.complete

    def header(self, name: bytes) -> bytes:
        for known, value in self.headers:
            if known == name:
                return value
        return b""

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.head_done:  # else a trailer: dropped
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status < 200:  # 100, 102, 103: the real one follows
            self.headers = []
            return
        self.head_done = True
        self.keep_alive = self._parser.should_keep_alive()
        self.framed = (
            self.header(b"content-length") != b""
            or self.header(b"transfer-encoding") != b""
            or self.status in (204, 304)
        )

    def on_body(self, data: bytes) -> None:
        if not self.complete:
            self._pieces.append(data)

    def on_message_begin(self) -> None:
        if self.complete:
            self.overrun = True

    def on_message_complete(self) -> None:
        if self.head_done:
            self.complete = True


_REASONS = {status.value: status.phrase for status in HTTPStatus} | {529: "Overloaded"}
_STATUS_LINES = {
    code: f"HTTP/1.1 {code} {_REASONS.get(code, 'Status')}\r\n".encode("ascii") for code in range(100, 600)
}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def status_line(status: int) -> bytes:
    return _STATUS_LINES[status]


def header_lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Header lines; a value that would split the answer loses its control bytes."""
    return b"".join(b"%b: %b\r\n" % (name, _one_line(value)) for name, value in headers)


def _one_line(value: bytes) -> bytes:
    if b"\r" in value or b"\n" in value or b"\0" in value:
        return value.translate(None, b"\r\n\0")
    return value
