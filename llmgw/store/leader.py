"""The fence: only the process whose term is the store's may write what a leader writes."""

from llmgw.core.term import Term
from llmgw.store.face import FOR_SHARE, Connection, Database


class NotLeading(Exception):
    """Another process leads on this store, or nobody does."""


def fence(conn: Connection, term: Term) -> None:
    """Last in the transaction of every write of a leader. Raises NotLeading; the transaction is then rolled back."""
    found = conn.execute(
        f"select 1 from leader_epoch where id = 1 and n = ? and epoch = ? and nonce = ? {FOR_SHARE}",
        (term.n, term.epoch, term.nonce),
    )
    if found.fetchone() is None:
        raise NotLeading(f"the store is led under term {term_of(conn)}, and no more under {term}")


def term_of(conn: Connection) -> Term:
    """Of the latest leader. Its first part never falls."""
    n, epoch, nonce = conn.execute("select n, epoch, nonce from leader_epoch where id = 1").fetchone()
    return Term(int(n), int(epoch), nonce)


def counted(conn: Connection, key: str, by: int) -> int:
    """Take ``by`` numbers of a counter (``generation``, ``replica_number``); the last of them."""
    conn.execute("update meta set value = cast(cast(value as bigint) + ? as text) where key = ?", (by, key))
    return int(conn.execute("select value from meta where key = ?", (key,)).fetchone()[0])


def lift(db: Database, term: Term, above: Term, nonce: str) -> Term:
    """This leader's term becomes one above what an agent has seen; both parts. Raises NotLeading."""
    fence(db.conn, term)
    lifted = Term(max(term.n, above.n), max(term.epoch, above.epoch) + 1, nonce)
    db.conn.execute("update leader_epoch set n = ?, epoch = ?, nonce = ? where id = 1", (lifted.n, lifted.epoch, nonce))
    return lifted


def secret(conn: Connection, key: str, fresh: str) -> str:
    """A secret of this store, made once."""
    conn.execute("insert into meta (key, value) values (?, ?) on conflict (key) do nothing", (key, fresh))
    return str(conn.execute("select value from meta where key = ?", (key,)).fetchone()[0])
