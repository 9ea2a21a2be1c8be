"""What a store says of itself: which cluster it is, how often it was started, whether it is in use at all."""

import secrets
import time

from llmgw.store.errors import StoreMoved, StoreUnavailable
from llmgw.store.face import Connection

COPYING = "copying"  # a key of meta while the store is half filled by `llmgw store migrate` or `restore`
MOVED = "moved"  # a key of meta once `llmgw store migrate` took everything elsewhere: when, and where to


def begin(conn: Connection, where: str, starts: bool, leads: bool) -> tuple[str, int]:
    """The cluster's id, and the number of this start, which no other start has. In a transaction.

    ``leads``: whoever starts begins an epoch; where several share the store the lease does that.
    Raises StoreUnavailable for half a store, StoreMoved for one that was left.
    """
    refuse_not_in_use(conn, where)
    identify(conn)
    if starts:
        raised = "cast(cast(value as bigint) + 1 as text)"
        conn.execute(f"update meta set value = {raised} where key = 'starts'")
    if starts and leads:
        conn.execute("update leader_epoch set epoch = epoch + 1, nonce = ? where id = 1", (secrets.token_hex(8),))
    return value(conn, "cluster_id"), int(value(conn, "starts"))


def identify(conn: Connection) -> None:
    """A store that is new gets its cluster's id."""
    fresh = {"cluster_id": secrets.token_hex(16), "made_at": str(time.time())}
    conn.executemany("insert into meta (key, value) values (?, ?) on conflict do nothing", list(fresh.items()))


def refuse_not_in_use(conn: Connection, where: str) -> None:
    """Raises StoreUnavailable, StoreMoved."""
    if said := value(conn, COPYING):
        raise StoreUnavailable(f"a copy into this store ({said}) was interrupted: run that again, it goes on")
    if said := value(conn, MOVED):
        raise StoreMoved(
            f"{where} is not in use any more: it was moved {said}. Set [store] url to that; to come back, move that one"
            " into an empty store: llmgw store migrate --from THERE --to EMPTY"
        )


def value(conn: Connection, key: str, otherwise: str = "") -> str:
    row = conn.execute("select value from meta where key = ?", (key,)).fetchone()
    return otherwise if row is None else str(row[0])
