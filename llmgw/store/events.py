"""What happened, numbered; the latest of it."""

import json
from collections.abc import Iterable
from typing import Any

from attrs import field, frozen

from llmgw.store.face import Connection, Database


@frozen
class Event:
    """``kind`` is one of a fixed set (``replica.started``); ``sentence`` is for people, ``data`` for programs."""

    seq: int
    at: float
    kind: str
    subject: str
    sentence: str
    data: dict[str, Any] = field(factory=dict)


def add(db: Database, events: Iterable[Event], most: int) -> None:
    values = [(e.seq, e.at, e.kind, e.subject, e.sentence, json.dumps(e.data)) for e in events]
    if not values:
        return
    db.conn.executemany(
        "insert into events (seq, at, kind, subject, sentence, data) values (?, ?, ?, ?, ?, ?) on conflict do nothing",
        values,
    )
    # By count, not by number: numbers are skipped at each start.
    db.conn.execute(
        "delete from events where seq <= (select seq from events order by seq desc limit 1 offset ?)", (most,)
    )


def latest(conn: Connection, limit: int) -> list[Event]:
    """In the order they happened."""
    rows = conn.execute("select seq, at, kind, subject, sentence, data from events order by seq desc limit ?", (limit,))
    return [Event(seq, at, kind, who, says, json.loads(data)) for seq, at, kind, who, says, data in rows][::-1]
