"""What a store says of itself: which cluster it is, how often it was started."""

import secrets
import time

from llmgw.store.errors import StoreUnavailable
from llmgw.store.face import Connection

COPYING = "copying"  # a key of meta while the store is half filled by `llmgw store migrate` or `restore`


def begin(conn: Connection, starts: bool, leads: bool) -> tuple[str, int]:
    """The cluster's id, and the number of this start, which no other start has. In a transaction.

    ``leads``: whoever starts begins an epoch; where several share the store the lease does that.
    """
    fresh = {"cluster_id": secrets.token_hex(16), "made_at": str(time.time())}
    conn.executemany("insert into meta (key, value) values (?, ?) on conflict do nothing", list(fresh.items()))
    if starts:
        refuse_half_filled(conn)
        raised = "cast(cast(value as bigint) + 1 as text)"
        conn.execute(f"update meta set value = {raised} where key = 'starts'")
    if starts and leads:
        conn.execute("update leader_epoch set epoch = epoch + 1, nonce = ? where id = 1", (secrets.token_hex(8),))
    return value(conn, "cluster_id"), int(value(conn, "starts"))


def refuse_half_filled(conn: Connection) -> None:
    """Raises StoreUnavailable."""
    if said := value(conn, COPYING):
        raise StoreUnavailable(f"a copy into this store ({said}) was interrupted: run that again, it goes on")


def value(conn: Connection, key: str, otherwise: str = "") -> str:
    row = conn.execute("select value from meta where key = ?", (key,)).fetchone()
    return otherwise if row is None else str(row[0])
