"""Replicas as rows: what an operator may ask of them in columns, the whole value beside it."""

from collections.abc import Iterable

import msgspec

from llmgw.core.replicas import Replica
from llmgw.store.face import Connection, Database

_encode = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder(Replica).decode


def every(conn: Connection) -> list[Replica]:
    """By name."""
    return [_read(doc) for (doc,) in conn.execute("select doc from replicas order by name")]


def save(db: Database, rows: Iterable[Replica]) -> None:
    values = [(row.name, row.model, str(row.phase), row.generation, _encode(row).decode()) for row in rows]
    db.conn.executemany(
        "insert into replicas (name, model, phase, generation, doc) values (?, ?, ?, ?, ?) on conflict (name) do update"
        " set model = excluded.model, phase = excluded.phase, generation = excluded.generation, doc = excluded.doc",
        values,
    )


def forget(db: Database, names: Iterable[str]) -> None:
    db.conn.executemany("delete from replicas where name = ?", [(name,) for name in names])
