"""Placements as they were decided, successes as well as failures, the latest of them."""

import json
import zlib
from typing import Any

from attrs import frozen

from llmgw.store.face import Connection, Database


@frozen
class Decision:
    """``told`` is the whole explanation, as plain values."""

    at: float
    kind: str  # "placed", "unplaceable"
    subject: str
    model: str
    verdict: str
    told: Any = None
    id: int = 0


def add(db: Database, decision: Decision, most: int) -> None:
    # 200 nodes of 8 GPUs make 300 KB of words that repeat.
    doc = zlib.compress(json.dumps(decision.told).encode(), 1)
    db.conn.execute(
        "insert into decisions (at, kind, subject, model, verdict, doc) values (?, ?, ?, ?, ?, ?)",
        (decision.at, decision.kind, decision.subject, decision.model, decision.verdict, doc),
    )
    db.conn.execute("delete from decisions where id <= (select max(id) from decisions) - ?", (most,))


def recent(conn: Connection, limit: int, subject: str = "") -> list[Decision]:
    """The latest first, without what was told; ``subject``: a replica or a model."""
    rows = conn.execute(
        "select at, kind, subject, model, verdict, id from decisions where ? in ('', subject, model)"
        " order by id desc limit ?",
        (subject, limit),
    )
    return [Decision(at, kind, name, model, verdict, None, id) for at, kind, name, model, verdict, id in rows]


def latest(conn: Connection, subject: str) -> Decision | None:
    """The last one about a replica, else about a model, whole."""
    row = conn.execute(
        "select at, kind, subject, model, verdict, doc, id from decisions where subject = ? or model = ?"
        " order by subject = ? desc, id desc limit 1",
        (subject, subject, subject),
    ).fetchone()
    if row is None:
        return None
    at, kind, name, model, verdict, doc, id = row
    return Decision(at, kind, name, model, verdict, json.loads(zlib.decompress(doc)), id)
