"""Who listens on a port: an engine's own processes, or somebody else who would get its key."""

import os
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTEN = "0A"


class Listener(Enum):
    NOBODY = "nobody"  # or nobody yet
    OURS = "ours"
    STRANGER = "stranger"


def listening() -> dict[int, frozenset[int]]:
    """Port -> inodes of the sockets that listen on it."""
    found: dict[int, set[int]] = {}
    for table in TABLES:
        for port, inode in _rows(table):
            found.setdefault(port, set()).add(inode)
    return {port: frozenset(inodes) for port, inodes in found.items()}


def _rows(table: Path) -> Iterator[tuple[int, int]]:
    try:
        lines = table.read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return
    for line in lines:
        part = line.split()
        if part[3] == _LISTEN:
            yield int(part[1].rpartition(":")[2], 16), int(part[9])


def inodes_of(pids: Iterable[int]) -> frozenset[int]:
    """Of the sockets these processes hold."""
    return frozenset(inode for pid in pids for inode in _sockets(pid))


def _sockets(pid: int) -> Iterator[int]:
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        try:
            target = os.readlink(f"{folder}/{name}")
        except OSError:
            continue
        if target.startswith("socket:["):
            yield int(target[8:-1])


def who(port: int, all_listening: dict[int, frozenset[int]], held: frozenset[int]) -> Listener:
    inodes = all_listening.get(port, frozenset())
    if not inodes:
        return Listener.NOBODY
    return Listener.OURS if inodes <= held else Listener.STRANGER
