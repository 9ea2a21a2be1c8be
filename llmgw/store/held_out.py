"""Static endpoints that operators took out of service, as rows."""

import msgspec

from llmgw.core.endpoint_drain import HeldOut
from llmgw.store.face import Connection, Database


def every(conn: Connection) -> list[HeldOut]:
    return [msgspec.json.decode(doc, type=HeldOut) for (doc,) in conn.execute("select doc from held_out order by id")]


def save(db: Database, held: HeldOut) -> None:
    db.conn.execute(
        "insert into held_out (id, doc) values (?, ?) on conflict (id) do update set doc = excluded.doc",
        (held.id, msgspec.json.encode(held).decode()),
    )


def release(db: Database, id: str) -> None:
    db.conn.execute("delete from held_out where id = ?", (id,))
