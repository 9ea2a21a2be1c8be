"""Static endpoints that operators took out of service, as rows."""

import sqlite3

import msgspec
from sqlite_utils import Database

from llmgw.core.endpoint_drain import HeldOut


def every(conn: sqlite3.Connection) -> list[HeldOut]:
    return [msgspec.json.decode(doc, type=HeldOut) for (doc,) in conn.execute("select doc from held_out order by id")]


def save(db: Database, held: HeldOut) -> None:
    db.conn.execute(
        "insert into held_out (id, doc) values (?, ?) on conflict (id) do update set doc = excluded.doc",
        (held.id, msgspec.json.encode(held).decode()),
    )


def release(db: Database, id: str) -> None:
    db.conn.execute("delete from held_out where id = ?", (id,))
