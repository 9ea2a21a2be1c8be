"""Who may touch a data directory, or an SQLite file: one process, by an operating-system lock that dies with it."""

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

from attrs import define

from llmgw.store.errors import DataLocked, StoreUnavailable

# Whoever looks with ``held`` has the lock for an instant; it must not keep a daemon from starting.
PAUSES_S = (0.01, 0.03, 0.1)


@define(eq=False)
class DataLock:
    """Held until ``release`` or the end of the process, kill -9 included; SIGSTOP keeps it."""

    path: Path
    _fd: int
    _says: dict[str, Any]

    def say(self, **facts: Any) -> None:
        """Write beside our pid what others on this machine may want to know (``admin``: our admin URL)."""
        self._says.update(facts)
        text = json.dumps(self._says).encode()
        os.pwrite(self._fd, text, 0)
        os.ftruncate(self._fd, len(text))

    def release(self) -> None:
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1


def take(path: Path, of: Path | None = None) -> DataLock:
    """Raises DataLocked, naming the holder. The file stays when the lock goes: removing it would race.

    ``of``: what it guards; None: the folder it lies in.
    """
    try:
        # Python's descriptors are not inherited (PEP 446): an engine that had this one would keep the lock.
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreUnavailable(f"{path}: {error.strerror}; name a writable folder with --data-dir") from error
    if not _locked(fd):
        os.close(fd)
        pid = holder(path).get("pid")
        who = f"process {pid}" if pid else "another process"
        what = of or path.parent
        raise DataLocked(f"{what} is in use by {who}; stop it, or go through its admin API", pid) from None
    lock = DataLock(path, fd, {})
    lock.say(pid=os.getpid())
    return lock


def _locked(fd: int) -> bool:
    for pause_s in (*PAUSES_S, 0.0):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(pause_s)
        else:
            return True
    return False


def held(path: Path) -> bool:
    """Whether a process holds the lock now. Raises PermissionError: who may not look can't tell."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        raise
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def holder(path: Path) -> dict[str, Any]:
    """What the lock's holder says of itself: ``pid``, ``admin``; empty when nothing legible is there."""
    try:
        said = json.loads(path.read_bytes() or b"{}")
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}
