"""The fence: only the process whose epoch is the store's may write what a leader writes."""

import sqlite3


class NotLeading(Exception):
    """Another process has begun a later epoch on this store."""


def fence(conn: sqlite3.Connection, epoch: int) -> None:
    """Inside the transaction of every write of a leader. Raises NotLeading; the transaction is then rolled back."""
    found = conn.execute("select epoch from leader_epoch where id = 1").fetchone()[0]
    if found != epoch:
        raise NotLeading(f"the store is at epoch {found}, this process at {epoch}")


def counted(conn: sqlite3.Connection, key: str, by: int) -> int:
    """Take ``by`` numbers of a counter (``generation``, ``replica_number``); the last of them."""
    conn.execute("update meta set value = cast(value as integer) + ? where key = ?", (by, key))
    return int(conn.execute("select value from meta where key = ?", (key,)).fetchone()[0])


def lift(conn: sqlite3.Connection, key: str, least: int) -> None:
    """A counter that is behind what the world has seen (a store put back) catches up."""
    conn.execute(
        "update meta set value = max(cast(value as integer), ?) where key = ?",
        (least, key),
    )


def secret(conn: sqlite3.Connection, key: str, fresh: str) -> str:
    """A secret of this store, made once."""
    conn.execute("insert or ignore into meta (key, value) values (?, ?)", (key, fresh))
    return str(conn.execute("select value from meta where key = ?", (key,)).fetchone()[0])
