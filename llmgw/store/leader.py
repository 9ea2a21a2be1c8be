"""The fence: only the process whose epoch is the store's may write what a leader writes."""

from llmgw.store.face import FOR_SHARE, Connection, Database


class NotLeading(Exception):
    """Another process has begun a later epoch on this store."""


def fence(conn: Connection, epoch: int) -> None:
    """Inside the transaction of every write of a leader. Raises NotLeading; the transaction is then rolled back."""
    found = conn.execute(f"select epoch from leader_epoch where id = 1 {FOR_SHARE}").fetchone()[0]
    if found != epoch:
        raise NotLeading(f"the store is at epoch {found}, this process at {epoch}")


def counted(conn: Connection, key: str, by: int) -> int:
    """Take ``by`` numbers of a counter (``generation``, ``replica_number``); the last of them."""
    conn.execute("update meta set value = cast(cast(value as bigint) + ? as text) where key = ?", (by, key))
    return int(conn.execute("select value from meta where key = ?", (key,)).fetchone()[0])


def term_n(conn: Connection) -> int:
    """The first part of a term; it never falls."""
    return int(conn.execute("select n from leader_epoch where id = 1").fetchone()[0])


def lift_epoch(db: Database, epoch: int, above: tuple[int, int]) -> tuple[int, int]:
    """This leader's term becomes one above what an agent has seen; both parts. Raises NotLeading."""
    fence(db.conn, epoch)
    n = max(term_n(db.conn), above[0])
    lifted = max(epoch, above[1]) + 1
    db.conn.execute("update leader_epoch set n = ?, epoch = ? where id = 1", (n, lifted))
    return n, lifted


def secret(conn: Connection, key: str, fresh: str) -> str:
    """A secret of this store, made once."""
    conn.execute("insert into meta (key, value) values (?, ?) on conflict (key) do nothing", (key, fresh))
    return str(conn.execute("select value from meta where key = ?", (key,)).fetchone()[0])
