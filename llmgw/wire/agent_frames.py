"""What leader and agent say to each other: one JSON object a line.

Up: ``hello`` first, then ``report`` each period, ``tail`` on change, ``logs`` when asked. Down: ``welcome``,
then ``wanted`` whenever it changes and at least each period, ``logs_asked``, ``clear_asked``; or ``refused``, which
is the end.
Unknown members are ignored and new ones have defaults, so versions one apart understand each other.
"""

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from llmgw.core.gpus import Gpu
from llmgw.core.shards import Launch, Orphan, ShardSeen
from llmgw.core.term import NO_TERM, Term

VERSION = 1
OLDEST = 1  # still understood
FRAME_MAX = 256 * 1024
TAIL_MAX = 8 * 1024


class Malformed(Exception):
    """A frame that is none; its text says why."""


class Obeys(msgspec.Struct, frozen=True):
    """The last ``wanted`` that was taken in."""

    term: Term = NO_TERM
    rev: int = 0


class Host(msgspec.Struct, frozen=True):
    """The machine: memory in MiB, cores, load over a minute, the GPU driver's state in words (empty: fine)."""

    memory_mib: int = 0
    memory_free_mib: int = 0
    reserved_mib: int = 0  # kept for the system
    cores: int = 0
    load: float = 0.0
    driver: str = ""


class Hello(msgspec.Struct, frozen=True, tag="hello", tag_field="t"):
    v: int
    cluster: str
    node: str
    boot: str
    seen: Term = NO_TERM
    heard_ms: int | None = None  # since the last frame of that term
    version: str = ""
    address: str = ""
    labels: Mapping[str, str] = {}


class Report(msgspec.Struct, frozen=True, tag="report", tag_field="t"):
    seq: int
    obeys: Obeys = Obeys()
    host: Host = Host()
    gpus: tuple[Gpu, ...] = ()
    shards: tuple[ShardSeen, ...] = ()
    orphans: tuple[Orphan, ...] = ()
    has: tuple[str, ...] = ()  # of the paths that were asked about, those that are there


class Tail(msgspec.Struct, frozen=True, tag="tail", tag_field="t"):
    """A shard's last lines; ``age_ms`` since the last of them."""

    instance: str
    text: str
    age_ms: int = 0


class Logs(msgspec.Struct, frozen=True, tag="logs", tag_field="t"):
    """An answer to ``logs_asked``; ``error`` when there is none."""

    ask: int
    text: str = ""
    age_ms: int | None = None
    error: str = ""


class Welcome(msgspec.Struct, frozen=True, tag="welcome", tag_field="t"):
    term: Term
    period_ms: int
    v: int = VERSION
    cluster: str = ""


class Wanted(msgspec.Struct, frozen=True, tag="wanted", tag_field="t"):
    """The whole set. ``paths``: say which of these are on the node."""

    term: Term
    rev: int
    shards: tuple[Launch, ...] = ()
    paths: tuple[str, ...] = ()


class LogsAsked(msgspec.Struct, frozen=True, tag="logs_asked", tag_field="t"):
    ask: int
    instance: str
    bytes: int = 64 * 1024


class ClearAsked(msgspec.Struct, frozen=True, tag="clear_asked", tag_field="t"):
    """An operator has looked at a GPU: what speaks against it from before counts no more. Answered by ``logs``."""

    ask: int
    gpu: str  # UUID
    cause: str


class Refused(msgspec.Struct, frozen=True, tag="refused", tag_field="t"):
    """``leader``: host:port of the agent listener that leads, if known."""

    why: str
    leader: str = ""


T = TypeVar("T")
Up = Hello | Report | Tail | Logs
Down = Welcome | Wanted | LogsAsked | ClearAsked | Refused

_encode = msgspec.json.Encoder().encode
_up: msgspec.json.Decoder[Up] = msgspec.json.Decoder(Up)
_down: msgspec.json.Decoder[Down] = msgspec.json.Decoder(Down)


def line(frame: Up | Down) -> bytes:
    return _encode(frame) + b"\n"


def read_up(text: bytes) -> Up:
    """Raises Malformed."""
    return _read(_up, text)


def read_down(text: bytes) -> Down:
    """Raises Malformed."""
    return _read(_down, text)


def _read(decoder: "msgspec.json.Decoder[T]", text: bytes) -> T:
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"a frame that can't be read: {error}") from None


class Lines:
    """Bytes as they come -> whole lines; what is longer than the bound is refused before it is held."""

    def __init__(self, most: int = FRAME_MAX) -> None:
        self.most = most
        self._part = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Whole lines without their ends. Raises Malformed."""
        *whole, rest = data.split(b"\n")
        if not whole:
            self._hold(rest)
            return []
        self._hold(whole[0])
        lines = [bytes(self._part), *whole[1:]]
        self._part = bytearray()
        if any(len(one) > self.most for one in lines):
            raise Malformed(f"a frame of more than {self.most} bytes")
        self._hold(rest)
        return [one for one in lines if one]

    def _hold(self, data: bytes) -> None:
        if len(self._part) + len(data) > self.most:
            raise Malformed(f"a frame of more than {self.most} bytes")
        self._part += data
