"""One change, whole or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlite_utils import Database


@contextmanager
def transaction(db: Database) -> Iterator[None]:
    """``BEGIN IMMEDIATE`` … ``COMMIT``. ``db.atomic()`` inside becomes a savepoint.

    sqlite-utils' own ``atomic()`` begins *deferred*: reading, then writing, in such a transaction fails at
    once with "database is locked" beside another writer, busy_timeout or not.
    """
    db.conn.execute("begin immediate")
    try:
        yield
        db.conn.execute("commit")
    except BaseException:
        # Disk full and the like have rolled back already.
        if db.conn.in_transaction:
            db.conn.execute("rollback")
        raise
