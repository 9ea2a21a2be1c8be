"""Nodes as rows. A removed one stays as a row, so that its credential is refused by name."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from attrs import evolve

from llmgw.core.drain import Drain
from llmgw.core.joining import NodeRecord
from llmgw.store.face import Connection, Database

COLUMNS = (
    "name, credential, joined_at, joined_with, labels, address, boot, version,"
    " target, target_by, target_at, target_why, seen_at, given_up_at, replaced, removed_at, removed_why, drain"
)


def revision(conn: Connection) -> int:
    return int(conn.execute("select value from meta where key = 'nodes_revision'").fetchone()[0])


def raise_revision(conn: Connection) -> int:
    conn.execute("update meta set value = cast(cast(value as bigint) + 1 as text) where key = 'nodes_revision'")
    return revision(conn)


def every(conn: Connection, removed: bool = False) -> list[NodeRecord]:
    """By name; ``removed``: those too."""
    where = "" if removed else "where removed_at is null"
    return [_record(row) for row in conn.execute(f"select {COLUMNS} from nodes {where} order by name")]


def find(conn: Connection, name: str) -> NodeRecord | None:
    """Removed or not."""
    row = conn.execute(f"select {COLUMNS} from nodes where name = ?", (name,)).fetchone()
    return None if row is None else _record(row)


def save(db: Database, node: NodeRecord) -> None:
    """A node that joined; what an operator asked of one of that name stays."""
    db.conn.execute(
        """
        insert into nodes (name, credential, joined_at, joined_with, labels, address, boot, version)
        values (?, ?, ?, ?, ?, ?, ?, ?)
        on conflict (name) do update set
            replaced = nodes.credential, credential = excluded.credential, joined_at = excluded.joined_at,
            joined_with = excluded.joined_with, labels = excluded.labels, address = excluded.address,
            boot = excluded.boot, version = excluded.version, removed_at = null, removed_why = ''
        """,
        (node.name, node.credential, node.joined_at, node.joined_with, json.dumps(dict(node.labels)), node.address,
         node.boot, node.version),
    )  # fmt: skip


def remove(db: Database, name: str, at: float, why: str) -> None:
    """What was asked of it goes with it: one that joins again under the name begins schedulable."""
    db.conn.execute(
        "update nodes set removed_at = ?, removed_why = ?, target = 'schedulable', target_by = '', target_at = null,"
        " target_why = '', drain = '', given_up_at = null where name = ?",
        (at, why, name),
    )


def saw(db: Database, name: str, at: float, hello: Mapping[str, Any]) -> None:
    """What its latest hello said: ``labels``, ``address``, ``boot``, ``version``."""
    db.conn.execute(
        "update nodes set seen_at = ?, labels = ?, address = ?, boot = ?, version = ?"
        " where name = ? and removed_at is null",
        (at, json.dumps(dict(hello["labels"])), hello["address"], hello["boot"], hello["version"], name),
    )


def seen(db: Database, times: Mapping[str, float]) -> None:
    """When each was heard last."""
    db.conn.executemany("update nodes set seen_at = ? where name = ?", [(at, name) for name, at in times.items()])


def give_up(db: Database, name: str, at: float | None) -> None:
    """From ``at`` on it is lost; None: it came back."""
    db.conn.execute("update nodes set given_up_at = ? where name = ?", (at, name))


def aim(db: Database, name: str, target: str, by: str, at: float | None, why: str, drain: Drain | None = None) -> None:
    """What an operator asks of it."""
    db.conn.execute(
        "update nodes set target = ?, target_by = ?, target_at = ?, target_why = ?, drain = ? where name = ?",
        (target, by, at, why, _written(drain), name),
    )


def note_drain(db: Database, name: str, drain: Drain) -> None:
    """How far its drain has got, as long as it is still asked for."""
    db.conn.execute(
        "update nodes set drain = ? where name = ? and target = 'drained' and drain != ''", (_written(drain), name)
    )


def _written(drain: Drain | None) -> str:
    return "" if drain is None else msgspec.json.encode(drain).decode()


def _record(row: tuple[Any, ...]) -> NodeRecord:
    name, credential, joined_at, joined_with, labels, *rest, drain = row
    read = msgspec.json.decode(drain, type=Drain) if drain else None
    return evolve(NodeRecord(name, credential, joined_at, joined_with, json.loads(labels), *rest), drain=read)
