"""What can be wrong with PostgreSQL, in words for an operator; psycopg's exceptions end at this border."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors

from llmgw.store.errors import StoreAway, StoreFull, StoreUnavailable

AWAY = "PostgreSQL at {where} is away ({says})"
# By SQLSTATE, or its first two characters: what an operator reads.
_WORDS = {
    "28": "{where} refuses the login: {says}; check user and password in store.url, and pg_hba.conf there",
    "3D000": "{where} has no such database; there, as an administrator: create database NAME owner USER",
    "42501": "{where}: {says}; as an administrator, in that database: alter database NAME owner to USER, "
    "or grant create, usage on schema public to USER",
    "53300": "{where} has no connection left for us: {says}; raise max_connections there, or close others",
    "25006": "{where} is read-only now; list all its hosts in store.url, so that the writable one is found",
    "55P03": "another control plane is writing to {where}, or something there holds a lock; it is tried again",
    "57014": "{where} was too slow: {says}",
    "40": "{where}: other writers were in the way ({says}); try again",
}
_AGAIN = ("40", "08", "57P", "25006", "25P03")
# A pooler in front that knows no sessions; the texts are PgBouncer's.
_POOLER = (
    "unsupported startup parameter",
    "pgbouncer",
    "query_wait_timeout",
    "pooling mode",
    "no more connections allowed",
)
POOLED = (
    "{where} is behind a pooler in transaction mode, where sessions mean nothing; "
    "name PostgreSQL itself in store.url, or a pooler in session mode"
)
_NO_WRITABLE = ("session is read-only", "server is in hot standby mode", "read-write")


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Every failure that is not our own mistake leaves as StoreUnavailable."""
    try:
        yield
    except psycopg.Error as error:
        if is_mistake(error):
            raise  # a broken truth, not a broken store
        raise in_words(error, where) from error


def is_mistake(error: psycopg.Error) -> bool:
    """Of ours: a broken constraint, a wrong statement. Not the store's, nor an administrator's."""
    if isinstance(error, errors.InsufficientPrivilege | psycopg.OperationalError):
        return False
    return isinstance(error, psycopg.IntegrityError | psycopg.ProgrammingError | psycopg.DataError)


def is_lost(error: BaseException, conn: psycopg.Connection[object]) -> bool:
    """The connection is of no use any more, or leads to a server that takes no writes."""
    return conn.closed or conn.broken or isinstance(error, errors.ReadOnlySqlTransaction | errors.AdminShutdown)


def came_to_nothing(error: psycopg.Error) -> bool:
    """Other transactions were in the way, or the connection ended before the commit, or led to a server that no more
    takes writes: the same may be tried again, elsewhere. (Who lost the answer to a commit raises StoreUncertain.)"""
    state = error.sqlstate
    if isinstance(error, psycopg.OperationalError) and state is None:
        return True
    return state is not None and state.startswith(_AGAIN)


def in_words(error: psycopg.Error, where: str) -> StoreUnavailable:
    says = short(error)
    if isinstance(error, errors.DiskFull):
        return StoreFull(f"{where}: the disk of PostgreSQL is full; free space there, nothing was changed")
    if any(text in str(error).lower() for text in _POOLER):
        return StoreUnavailable(f"{POOLED.format(where=where)} ({says})")
    # A failed connection has no SQLSTATE, only the server's own words.
    state = error.sqlstate or _state_in(str(error))
    words = _WORDS.get(state) or _WORDS.get(state[:2])
    if words is None:
        return StoreAway(AWAY.format(where=where, says=says))
    return StoreUnavailable(words.format(where=where, says=says))


def _state_in(text: str) -> str:
    lower = text.lower()
    if "password authentication failed" in lower or "no password supplied" in lower or "no pg_hba.conf entry" in lower:
        return "28"
    if "database" in lower and "does not exist" in lower:
        return "3D000"
    if "role" in lower and ("does not exist" in lower or "not permitted to log in" in lower):
        return "28"
    if "permission denied for database" in lower:
        return "42501"
    if "too many" in lower or "remaining connection slots" in lower:
        return "53300"
    if any(words in lower for words in _NO_WRITABLE):
        return "25006"
    return ""


def short(error: BaseException) -> str:
    """The first line that says something; psycopg lists every host it tried."""
    lines = [line.strip(" -") for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    told = next((line for line in lines if "FATAL:" in line), lines[0])
    return told.rpartition("FATAL:")[2].strip() or told
