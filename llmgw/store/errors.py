"""What can be wrong with the store, in words for an operator; sqlite3's exceptions end at this border."""

import glob
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class StoreUnavailable(Exception):
    """The store can't be read or written now; nothing was changed (but: StoreUncertain). The text says what to do."""


class StoreAway(StoreUnavailable):
    """The database does not answer."""


class StoreFull(StoreUnavailable):
    """The disk has no room; what was acknowledged is safe, reads go on."""


class StoreUncertain(StoreUnavailable):
    """The store went away while it made a change lasting: it may have been made, whole, or not at all."""


class StoreTooNew(StoreUnavailable):
    """A newer llmgw has changed the schema; only it, or one newer still, may open the store."""


class StoreMoved(StoreUnavailable):
    """Everything in it went into another store, which is the one in use; the text says where to, and the ways on."""


class DataLocked(StoreUnavailable):
    """Another process holds the data directory."""

    def __init__(self, message: str, pid: int | None) -> None:
        super().__init__(message)
        self.pid = pid


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Every sqlite3 failure that is not our own mistake leaves as StoreUnavailable."""
    try:
        yield
    except (sqlite3.OperationalError, sqlite3.DatabaseError) as error:
        if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError | sqlite3.DataError):
            raise  # a broken truth, not a broken store
        raise _in_words(error, path) from error
    except OSError as error:
        raise StoreUnavailable(f"{path}: {error.strerror or error}") from error


def _in_words(error: sqlite3.Error, path: Path) -> StoreUnavailable:
    says = str(error)
    if "is full" in says:
        return StoreFull(f"{path}: the disk is full; free space there, nothing was changed")
    if "readonly" in says or "read-only" in says:
        return StoreUnavailable(f"{path} can't be written; make the file and its folder writable for this user")
    if "unable to open" in says:
        return StoreUnavailable(f"{path} can't be opened; check that its folder exists and is writable for this user")
    if "locked" in says or "busy" in says:
        return StoreUnavailable(f"{path} is locked by another program (sqlite3 shell, backup tool?); close it")
    if "malformed" in says or "not a database" in says:
        return StoreUnavailable(f"{path} is damaged ({says}); put back a backup{_copies(path)}")
    return StoreUnavailable(f"{path}: {says}")


def _copies(path: Path) -> str:
    """Those a migration made; most stores have none."""
    try:
        names = sorted(found.name for found in path.parent.glob(f"{glob.escape(path.name)}.before-*"))
    except OSError:
        names = []
    names = [name for name in names if not name.endswith(".part")]
    return f", or what was copied before an upgrade: {', '.join(names)}" if names else ""
