"""Usage rows that wait on disk while the store is away: one JSON array a line, up to a size.

Written again is harmless (a request is one row), so a crash between storing and removing loses nothing.
"""

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from attrs import define, field


@define(eq=False)
class Spool:
    path: Path
    size_max: int
    lost: int = field(default=0, init=False)  # rows there was no room for, or that came back unreadable

    def put(self, rows: Sequence[tuple[Any, ...]]) -> bool:
        """Whether the rows are on disk now: all of them or none. Blocks."""
        text = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
        before = self.size
        if before + len(text) > self.size_max:
            return False
        try:
            with open(self.path, "ab", opener=_private) as out:
                out.write(text)
        except OSError:
            self._cut(before)
            return False
        return True

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def batches(self, most: int, row: Any) -> Iterator[list[Any]]:
        """Everything in it, in order, as ``row`` (a type). A line that a crash cut short is skipped and counted."""
        decode = msgspec.json.Decoder(row).decode
        with self.path.open("rb") as lines:
            while batch := list(islice(lines, most)):
                yield [found for line in batch if (found := self._decoded(decode, line)) is not None]

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)

    def _decoded(self, decode: Any, line: bytes) -> Any:
        try:
            return decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.lost += 1
            return None

    def _cut(self, size: int) -> None:
        """Take half-written rows back. What can't be taken back is a line the reader skips."""
        if self.path.exists():
            with open(self.path, "r+b") as file:
                file.truncate(size)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
