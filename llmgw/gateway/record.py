"""What is remembered of requests: a story while one runs, a compact record after it.

Times in a story are Trio's clock; ``at`` is wall time. Records are packed (some 300 bytes each), kept in a
ring, and found by the count inside their id.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from attrs import define, field

from llmgw.core.identity import KeyRecord
from llmgw.core.outcome import Outcome


@define(eq=False)
class Try:
    """One attempt at one endpoint."""

    endpoint: str
    began: float
    ended: float = 0.0
    outcome: Outcome | None = None
    why: str = ""
    dial_s: float = 0.0
    account: Any = None  # how the endpoint was chosen


@define(eq=False)
class Story:
    """One request as it goes; closed exactly once."""

    id: str
    route: str
    received: float
    at: float
    key: KeyRecord | None = None
    asked: str = ""  # the name the client used
    model: str = ""
    adapter: str | None = None
    stream: bool = False
    read_at: float = 0.0
    admitted_at: float = 0.0
    wait_s: float = 0.0  # in queues
    waited_behind: str = ""
    let_through: str = ""  # which condition ended the wait
    tries: list[Try] = field(factory=list)
    fallbacks: list[str] = field(factory=list)
    fell_back_on: list[str] = field(factory=list)  # why, for each
    outcome: Outcome | None = None
    status: int = 0
    message: str = ""
    bytes_in: int = 0
    client_label: str = ""
    retry_count: str = ""
    asking: Any = None  # admission's, while it waits for a pool
    passage: Any = None  # the relay's, once there is one: what was seen of the answer


class Record(msgspec.Struct, omit_defaults=True, array_like=True):
    """A closed story. Durations in seconds since the request's head was whole."""

    id: str
    at: float
    route: str
    outcome: str
    status: int
    total_s: float
    tenant: str = ""
    key: str = ""
    band: str = ""
    asked: str = ""
    model: str = ""
    adapter: str = ""
    stream: bool = False
    endpoint: str = ""
    read_s: float = 0.0
    wait_s: float = 0.0
    waited_behind: str = ""
    dial_s: float = 0.0
    headers_s: float | None = None
    ttft_s: float | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    estimated: bool = False
    message: str = ""
    bytes_in: int = 0
    bytes_out: int = 0
    label: str = ""
    retry_count: str = ""
    tries: list[tuple[str, str, str, float]] = []  # endpoint, outcome, why, seconds
    fallbacks: list[str] = []
    choices: list[Any] = []  # how each try's endpoint was chosen
    let_through: str = ""  # which condition ended the wait
    fell_back_on: list[str] = []  # why, for each fallback


_encode = msgspec.msgpack.Encoder(enc_hook=repr).encode
_decode = msgspec.msgpack.Decoder(Record).decode


@define(eq=False)
class Records:
    """The last ``most`` records. Ids end in the eight hex digits that ``door.request_ids`` counts."""

    most: int
    _ring: list[bytes | None] = field(factory=list)
    _newest: int = -1

    def add(self, record: Record) -> None:
        count = int(record.id[-8:], 16)
        slot = count % self.most
        if slot >= len(self._ring):
            self._ring.extend([None] * (slot + 1 - len(self._ring)))
        self._ring[slot] = _encode(record)
        self._newest = max(self._newest, count)

    def get(self, id: str) -> Record | None:
        try:
            packed = self._ring[int(id[-8:], 16) % self.most]
        except (ValueError, IndexError):
            return None
        record = _decode(packed) if packed is not None else None
        return record if record is not None and record.id == id else None

    def newest_first(self) -> Iterator[Record]:
        if self._newest < 0:
            return
        for back in range(min(self.most, self._newest + 1)):
            slot = (self._newest - back) % self.most
            packed = self._ring[slot] if slot < len(self._ring) else None
            if packed is not None:
                yield _decode(packed)

    def __len__(self) -> int:
        return sum(packed is not None for packed in self._ring)
