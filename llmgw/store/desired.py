"""What was wanted, revision by revision, and what operators scaled over it."""

import json
from typing import Any

from attrs import frozen

from llmgw.store.face import Connection, Database

KEPT = 500  # revisions; older ones are forgotten


@frozen
class Revision:
    """``models``: the [[models]] as they were written, as plain values. ``source``: a file's name, or what did it."""

    revision: int
    at: float
    who: str
    why: str
    source: str
    models: list[dict[str, Any]]


@frozen
class Scale:
    """An operator's number of replicas, over what is written."""

    model: str
    replicas: int
    at: float
    who: str
    why: str = ""


def latest(conn: Connection) -> Revision | None:
    found = history(conn, 1)
    return found[0] if found else None


def number(conn: Connection) -> int:
    """Of the latest revision; 0: nothing was applied yet."""
    return int(conn.execute("select coalesce(max(revision), 0) from desired").fetchone()[0])


def history(conn: Connection, limit: int) -> list[Revision]:
    """The latest first."""
    rows = conn.execute(
        "select revision, at, who, why, source, models from desired order by revision desc limit ?", (limit,)
    )
    return [_revision(row) for row in rows]


def find(conn: Connection, revision: int) -> Revision | None:
    row = conn.execute(
        "select revision, at, who, why, source, models from desired where revision = ?", (revision,)
    ).fetchone()
    return None if row is None else _revision(row)


def add(db: Database, revision: Revision) -> None:
    """Again under one number, it replaces what may have been stored without the leader's knowing."""
    db.conn.execute(
        "insert into desired (revision, at, who, why, source, models) values (?, ?, ?, ?, ?, ?)"
        " on conflict (revision) do update set at = excluded.at, who = excluded.who, why = excluded.why,"
        " source = excluded.source, models = excluded.models",
        (revision.revision, revision.at, revision.who, revision.why, revision.source, json.dumps(revision.models)),
    )
    db.conn.execute("delete from desired where revision <= ?", (revision.revision - KEPT,))


def scales(conn: Connection) -> list[Scale]:
    rows = conn.execute("select model, replicas, at, who, why from scales order by model")
    return [Scale(*row) for row in rows]


def scale(db: Database, said: Scale) -> None:
    db.conn.execute(
        "insert into scales (model, replicas, at, who, why) values (?, ?, ?, ?, ?) on conflict (model) do update"
        " set replicas = excluded.replicas, at = excluded.at, who = excluded.who, why = excluded.why",
        (said.model, said.replicas, said.at, said.who, said.why),
    )


def unscale(db: Database, model: str) -> None:
    db.conn.execute("delete from scales where model = ?", (model,))


def _revision(row: tuple[Any, ...]) -> Revision:
    revision, at, who, why, source, models = row
    return Revision(revision, at, who, why, source, json.loads(models))
