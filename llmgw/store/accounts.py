"""What five minutes of one pool, band and tenant were like: counts, and up to 50 whole accounts."""

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from attrs import frozen
from sqlite_utils import Database


@frozen
class Account:
    """``start``: wall-clock seconds, a multiple of 300. ``counts`` and ``accounts`` are JSON values."""

    start: int
    model: str
    band: str
    tenant: str
    counts: dict[str, Any]
    accounts: list[dict[str, Any]]


def save(db: Database, accounts: Sequence[Account]) -> None:
    """Saved again, an account replaces itself; one of another start of the process stands beside it."""
    db.conn.executemany(
        "insert or replace into accounts (start, model, band, tenant, epoch, counts, accounts)"
        " values (?, ?, ?, ?, (select epoch from leader_epoch), ?, ?)",
        [(a.start, a.model, a.band, a.tenant, json.dumps(a.counts), json.dumps(a.accounts)) for a in accounts],
    )


def shadows_between(conn: sqlite3.Connection, since: float, until: float) -> list[tuple[str, str, str, Any]]:
    """Model, band, tenant and what is said of the shadow, of every span that begins in [since, until)."""
    rows = conn.execute(
        "select model, band, tenant, json_extract(counts, '$.shadow') from accounts"
        " where start >= ? and start < ? and json_extract(counts, '$.shadow') is not null",
        (since, until),
    )
    return [(model, band, tenant, json.loads(shadow)) for model, band, tenant, shadow in rows]


def between(conn: sqlite3.Connection, since: float, until: float, model: str = "", limit: int = 1000) -> list[Account]:
    """Spans that begin in [since, until), of one model or all; latest first."""
    rows = conn.execute(
        "select start, model, band, tenant, counts, accounts from accounts"
        " where start >= ?1 and start < ?2 and (?3 = '' or model = ?3) order by start desc limit ?4",
        (since, until, model, limit),
    )
    return [
        Account(start, model, band, tenant, json.loads(counts), json.loads(accounts))
        for start, model, band, tenant, counts, accounts in rows
    ]
