"""What five minutes of one pool, band and tenant were like: counts, and up to 50 whole accounts."""

import json
from collections.abc import Sequence
from typing import Any

from attrs import frozen

from llmgw.store.face import Connection, Database


@frozen
class Account:
    """``start``: wall-clock seconds, a multiple of 300. ``counts`` and ``accounts`` are JSON values."""

    start: int
    model: str
    band: str
    tenant: str
    counts: dict[str, Any]
    accounts: list[dict[str, Any]]


def save(db: Database, accounts: Sequence[Account], start: int) -> None:
    """Saved again, an account replaces itself; one of another start (``Store.start``) stands beside it."""
    db.conn.executemany(
        "insert into accounts (start, model, band, tenant, epoch, counts, accounts)"
        " values (?, ?, ?, ?, ?, ?, ?)"
        " on conflict (start, model, band, tenant, epoch)"
        " do update set counts = excluded.counts, accounts = excluded.accounts",
        [(a.start, a.model, a.band, a.tenant, start, json.dumps(a.counts), json.dumps(a.accounts)) for a in accounts],
    )


def shadows_between(conn: Connection, since: float, until: float) -> list[tuple[str, str, str, Any]]:
    """Model, band, tenant and what is said of the shadow, of every span that begins in [since, until)."""
    rows = conn.execute(
        "select model, band, tenant, counts from accounts where start >= ? and start < ? and counts like ?",
        (since, until, '%"shadow"%'),
    )
    found = ((model, band, tenant, json.loads(counts).get("shadow")) for model, band, tenant, counts in rows)
    return [one for one in found if one[3] is not None]


def between(conn: Connection, since: float, until: float, model: str = "", limit: int = 1000) -> list[Account]:
    """Spans that begin in [since, until), of one model or all; latest first."""
    rows = conn.execute(
        "select start, model, band, tenant, counts, accounts from accounts"
        " where start >= ? and start < ? and ? in ('', model) order by start desc limit ?",
        (since, until, model, limit),
    )
    return [
        Account(start, model, band, tenant, json.loads(counts), json.loads(accounts))
        for start, model, band, tenant, counts, accounts in rows
    ]
