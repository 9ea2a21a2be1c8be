"""Keys and tenants as rows. Every change raises ``keys_revision``, which is how other snapshots learn of it."""

import json
from collections.abc import Iterable
from typing import Any

from llmgw.core.identity import Band, KeyRecord
from llmgw.store.face import Connection, Database

COLUMNS = "id, digest, shown, tenant, band, models, created_at, expires_at, revoked_at, note"


def revision(conn: Connection) -> int:
    return int(conn.execute("select value from meta where key = 'keys_revision'").fetchone()[0])


def raise_revision(conn: Connection) -> int:
    conn.execute("update meta set value = cast(cast(value as bigint) + 1 as text) where key = 'keys_revision'")
    return revision(conn)


def every(conn: Connection) -> list[KeyRecord]:
    return [_record(row) for row in conn.execute(f"select {COLUMNS} from keys order by created_at, id")]


def unrevoked(conn: Connection) -> tuple[list[KeyRecord], int]:
    """What a ring is made of, with the revision it belongs to."""
    rows = conn.execute(f"select {COLUMNS} from keys where revoked_at is null").fetchall()
    return [_record(row) for row in rows], revision(conn)


def matching(conn: Connection, text: str) -> list[KeyRecord]:
    """Keys whose id is the text, else those whose id or shown characters begin with it."""
    rows = conn.execute(f"select {COLUMNS} from keys where id = ?", (text,)).fetchall()
    if not rows:
        # substr, not like: nothing in the text is a wildcard.
        begins = "substr(id, 1, length(?)) = ? or substr(shown, 1, length(?)) = ?"
        rows = conn.execute(f"select {COLUMNS} from keys where {begins} order by created_at", (text,) * 4).fetchall()
    return [_record(row) for row in rows]


def by_digest(conn: Connection, digest: bytes) -> KeyRecord | None:
    row = conn.execute(f"select {COLUMNS} from keys where digest = ?", (digest,)).fetchone()
    return _record(row) if row else None


def add(db: Database, records: Iterable[KeyRecord]) -> None:
    db.conn.executemany(f"insert into keys ({COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", map(_row, records))


def revoke(db: Database, id: str, at: float) -> None:
    db.conn.execute("update keys set revoked_at = ? where id = ? and revoked_at is null", (at, id))


def tenants(conn: Connection) -> list[tuple[str, float]]:
    """Name and when it was made."""
    return conn.execute("select name, created_at from tenants order by name").fetchall()


def add_tenants(db: Database, names: Iterable[str], at: float) -> None:
    db.conn.executemany(
        "insert into tenants (name, created_at) values (?, ?) on conflict do nothing", [(n, at) for n in names]
    )


def _row(record: KeyRecord) -> tuple[object, ...]:
    models = json.dumps(sorted(record.models))
    what = (record.id, record.digest, record.shown, record.tenant, str(record.band), models)
    return (*what, record.created_at, record.expires_at, record.revoked_at, record.note)


def _record(row: tuple[Any, ...]) -> KeyRecord:
    id, hashed, shown, tenant, band, models, created, expires, revoked, note = row
    may_use = frozenset(json.loads(models))
    return KeyRecord(id, hashed, shown, tenant, Band(band), may_use, created, expires, revoked, note)
