"""The control planes that share a store, as rows: each raises the count in its own."""

from collections.abc import Iterable

from llmgw.core.lease_facts import Addresses
from llmgw.core.standbys import Signed
from llmgw.store.face import Connection, Database


def sign(db: Database, holder: str, at: Addresses) -> None:
    """What an earlier process of the same place left is gone with it."""
    db.conn.execute(
        "delete from control_planes where name = ? and admin = ? and holder <> ?", (at.name, at.admin, holder)
    )
    db.conn.execute(
        "insert into control_planes (holder, beats, name, client, admin, agents) values (?, 1, ?, ?, ?, ?)"
        " on conflict (holder) do update set beats = control_planes.beats + 1, name = excluded.name,"
        " client = excluded.client, admin = excluded.admin, agents = excluded.agents",
        (holder, at.name, at.client, at.admin, at.agents),
    )


def forget(db: Database, rows: Iterable[Signed]) -> None:
    """Unless they were signed again since they were read."""
    for row in rows:
        db.conn.execute("delete from control_planes where holder = ? and beats = ?", (row.holder, row.beats))


def leave(db: Database, holder: str) -> None:
    db.conn.execute("delete from control_planes where holder = ?", (holder,))


def every(conn: Connection) -> list[Signed]:
    rows = conn.execute("select holder, beats, name, client, admin, agents from control_planes order by holder")
    return [Signed(holder, beats, Addresses(*at)) for holder, beats, *at in rows]
