"""What is too old to keep: removed a little at a time, so that nobody waits for it."""

import time
from collections.abc import Callable
from typing import NoReturn

import trio

from llmgw.store.errors import StoreUnavailable
from llmgw.store.face import Database, Store
from llmgw.store.limits import StoreLimits

EVERY_S = 600.0
A_LITTLE = 2000
BETWEEN_S = 0.1
AUDIT_KEPT = 100_000  # acts; years of them

_ACCOUNT = "start, model, band, tenant, epoch"
_OLD = {
    "usage": "delete from usage where request_id in (select request_id from usage where at < ? limit ?)",
    "accounts": f"delete from accounts where ({_ACCOUNT}) in (select {_ACCOUNT} from accounts where start < ? limit ?)",
    "audit": "delete from audit where id in (select id from audit where id <= (select max(id) from audit) - ? limit ?)",
}


async def keep_house(
    store: Store, limits: StoreLimits, accounts_keep_s: float, now: Callable[[], float] = time.time
) -> NoReturn:
    """Service. ``accounts_keep_s`` is the config's ``records.keep``."""
    while True:
        await tidy(store, limits, accounts_keep_s, now())
        await trio.sleep(EVERY_S)


async def tidy(store: Store, limits: StoreLimits, accounts_keep_s: float, now: float) -> int:
    """Rows removed. A store that is away is tidied another time."""
    bounds = {"accounts": now - accounts_keep_s, "audit": AUDIT_KEPT}
    if limits.usage_keep:
        bounds["usage"] = now - limits.usage_keep
    removed = 0
    for table, bound in bounds.items():
        try:
            removed += await _remove(store, _OLD[table], bound)
        except StoreUnavailable:
            break
    return removed


async def _remove(store: Store, statement: str, bound: float) -> int:
    def a_little(db: Database) -> int:
        return db.conn.execute(statement, (bound, A_LITTLE)).rowcount

    removed = 0
    while (some := await store.write(a_little)) > 0:
        removed += some
        await trio.sleep(BETWEEN_S)
    return removed
