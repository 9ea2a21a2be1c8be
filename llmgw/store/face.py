"""What every store can do, whatever lies beneath: SQLite and PostgreSQL wear the same face.

SQL in the row modules is what both understand: ``?`` for a value, ``on conflict … do``, no ``insert or …``,
no ``rowid``; a flag is 0 or 1, a time is seconds as a float, JSON is text.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from llmgw.store.place import Place

T = TypeVar("T")

# At the end of a select: the row stays as it was read until the transaction ends. On SQLite, which has one
# writer, it is the comment it looks like.
FOR_SHARE = "/* for share */"


class Rows(Protocol):
    """What a statement gave."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """Inside ``read`` or ``write``, and no longer: both have begun a transaction and will end it."""

    def execute(self, sql: str, values: Sequence[Any] = ..., /) -> Rows: ...

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> Any: ...


class Database(Protocol):
    """A connection that may write."""

    @property
    def conn(self) -> Connection: ...


class Written(Protocol):
    """What is asked and changed, whoever may do it. ``cluster_id`` never changes."""

    @property
    def cluster_id(self) -> str: ...

    async def write(self, change: Callable[[Any], T], *, abandon: bool = False) -> T:
        """Run a change in one transaction, alone among all writers of the store; durable when this returns.

        It may be run again from its beginning, when the first transaction came to nothing: what it does to anything
        but the database must bear that.

        A change that has begun is finished even when the caller is cancelled, so its outcome is known, unless
        StoreUncertain says that it is not. ``abandon``: the caller is let go at once when cancelled, whatever
        becomes of the change; for whoever has a fence in it. Raises StoreUnavailable.
        """
        ...

    async def read(self, question: Callable[[Any], T]) -> T:
        """Ask something of one committed state. Raises StoreUnavailable."""
        ...


class Store(Written, Protocol):
    """The only door. ``start`` is this process's number."""

    @property
    def place(self) -> Place: ...

    @property
    def start(self) -> int: ...

    async def beside(self, work: Callable[[], T]) -> T:
        """Other blocking work, on files that lie beside the store; finished once begun."""
        ...

    @property
    def warning(self) -> str:
        """What to say at the start; empty when nothing is wrong."""
        ...

    def advertise(self, admin_url: str) -> None:
        """Say in the lock file where our admin listener is, so that ctl on this machine finds it."""
        ...

    def close(self) -> None:
        """Blocks."""
        ...


def storable(text: str) -> str:
    """What both dialects can hold: PostgreSQL knows no NUL in a text, and neither knows half a surrogate pair."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
