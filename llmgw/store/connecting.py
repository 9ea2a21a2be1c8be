"""One connection to PostgreSQL: where it leads, what it may cost in time, and whether the other end will do."""

import os
import socket
from typing import Any

import psycopg
from attrs import field, frozen
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from llmgw.core.secret import Secret
from llmgw.store.dialect import values_as_in_sqlite
from llmgw.store.errors import StoreUnavailable
from llmgw.store.place import URL, is_ambiguous, without_password
from llmgw.store.postgres_errors import POOLED, translated

OLDEST = 140000  # PostgreSQL 14; it tells a client when it turns read-only
Raw = psycopg.Connection[tuple[Any, ...]]

# What the URL doesn't say otherwise. A server that vanished without a word is found within seconds.
DEFAULTS = {
    "target_session_attrs": "read-write",
    "connect_timeout": "2",
    "tcp_user_timeout": "3000",
    "keepalives_idle": "2",
    "keepalives_interval": "1",
    "keepalives_count": "3",
}


# Changes with a crash and with a standby that takes over, after both of which a transaction's number may be given again
# to another one. Statistics are begun anew after a crash, and survive a clean restart.
INCARNATION = (
    "substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) || ' ' || coalesce((select stats_reset from"
    " pg_stat_bgwriter)::text, '')"
)
ENCODED = "percent-encode them there: @ as %40, / as %2F, # as %23, ? as %3F, % as %25"
LIKE = "write postgresql://user:password@host,other-host/database, special characters as %40"


@frozen
class Timeouts:
    """Milliseconds, kept by the server; 0 is none."""

    statement: int = 3000
    lock: int = 1500
    idle_in_transaction: int = 2000


QUICK = Timeouts()
MIGRATING = Timeouts(statement=0, lock=60_000, idle_in_transaction=60_000)
COPYING = Timeouts(statement=0, lock=10_000, idle_in_transaction=0)


@frozen
class Target:
    """``shown`` has no password in it."""

    conninfo: str = field(repr=False)
    shown: str

    @classmethod
    def of(cls, url: Secret, role: str = "server", field: str = URL) -> "Target":
        """``field``: where it was written. Raises StoreUnavailable for a URL that libpq does not understand, or not
        as it was meant."""
        said = url.reveal()
        shown = without_password(said)
        if is_ambiguous(said):
            raise StoreUnavailable(f"{field}: {shown} has an @ or a / in its user or password; {ENCODED}")
        try:
            given = conninfo_to_dict(said)
        except psycopg.ProgrammingError:  # its text may repeat the password
            raise StoreUnavailable(f"{field}: {shown} is no URL of PostgreSQL; {LIKE}") from None
        name = {"application_name": f"llmgw {role} {socket.gethostname()}:{os.getpid()}"[:63]}
        return cls(make_conninfo("", **{**DEFAULTS, **name, **given, "client_encoding": "utf8"}), shown)


def connect(target: Target, timeouts: Timeouts = QUICK) -> Raw:
    """Blocks. The server that answers is writable, new enough and holds text as UTF-8. Raises StoreUnavailable."""
    with translated(target.shown):
        conn = psycopg.connect(target.conninfo, autocommit=True, prepare_threshold=None, context=values_as_in_sqlite())
        try:
            _check(conn, target)
            _settle(conn, timeouts)
        except BaseException:
            conn.close()
            raise
    return conn


def _check(conn: Raw, target: Target) -> None:
    found = conn.info.server_version
    if found < OLDEST:
        have, need = found // 10000, OLDEST // 10000
        raise StoreUnavailable(f"{target.shown} is PostgreSQL {have}; llmgw needs {need} or newer")
    encoding = conn.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StoreUnavailable(
            f"{target.shown} keeps its text as {encoding}; make a database with encoding 'UTF8' template template0"
        )


def _settle(conn: Raw, timeouts: Timeouts) -> None:
    """By SET rather than in the startup packet, which a pooler refuses. A commit that was answered is on disk."""
    conn.execute(
        f"set statement_timeout = {timeouts.statement:d}; set lock_timeout = {timeouts.lock:d};"
        f" set idle_in_transaction_session_timeout = {timeouts.idle_in_transaction:d};"
        " select set_config('synchronous_commit', 'on', false) where current_setting('synchronous_commit') = 'off'"
    )


def is_read_only(conn: Raw) -> bool:
    """As the server told last, which costs no question: it tells by itself when that changes."""
    told = (conn.info.parameter_status(name) for name in ("in_hot_standby", "default_transaction_read_only"))
    return "on" in told


def refuse_pooler(one: Raw, other: Raw, target: Target) -> None:
    """Two sessions have two backends, and keep them. Raises StoreUnavailable."""
    before = _backend(one)
    other.execute("begin")
    try:
        if _backend(other) == before or _backend(one) != before:
            raise StoreUnavailable(POOLED.format(where=target.shown))
    finally:
        other.execute("rollback")


def _backend(conn: Raw) -> int:
    row = conn.execute("select pg_backend_pid()").fetchone()
    assert row is not None
    return int(row[0])
