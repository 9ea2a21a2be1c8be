"""The shape of the store, as numbered migrations; the number lives in ``PRAGMA user_version``.

A migration is never changed once released: the next one is added. Each runs in one transaction with its
number, after a copy of the file was made. From number 4 on each has its twin in ``postgres_schema``.
"""

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

from sqlite_utils import Database

from llmgw import __version__
from llmgw.store.errors import StoreTooNew
from llmgw.store.transaction import transaction

Migration = Callable[[Database], None]


def one(db: Database) -> None:
    """Version 0.1: keys, operators, audit, usage, accounts."""
    db.table("meta").create({"key": str, "value": str}, pk="key")
    db.table("leader_epoch").create({"id": int, "epoch": int}, pk="id")
    db.table("leader_epoch").insert({"id": 1, "epoch": 0})
    db.table("tenants").create({"name": str, "created_at": float}, pk="name", not_null={"created_at"})
    _keys(db)
    _operators(db)
    _requests(db)


def _keys(db: Database) -> None:
    columns = {"id": str, "digest": bytes, "shown": str, "tenant": str, "band": str, "models": str, "note": str}
    times = {"created_at": float, "expires_at": float, "revoked_at": float}
    db.table("keys").create(
        columns | times,
        pk="id",
        not_null={*columns, "created_at"} - {"id"},
        foreign_keys=[("tenant", "tenants", "name")],
    )
    db.table("keys").create_index(["digest"], unique=True)
    db.table("meta").insert({"key": "keys_revision", "value": "0"})


def _operators(db: Database) -> None:
    token = {"name": str, "digest": bytes, "role": str, "created_at": float, "created_by": str}
    db.table("admin_tokens").create(token, pk="name", not_null=set(token) - {"name"})
    db.table("admin_tokens").create_index(["digest"], unique=True)
    db.table("meta").insert({"key": "tokens_revision", "value": "0"})
    said = {"at": float, "who": str, "role": str, "what": str, "subject": str, "why": str}
    db.table("audit").create({"id": int} | said | {"before": str, "after": str}, pk="id", not_null=set(said))


def _requests(db: Database) -> None:
    # Plain SQL: the ledger is the one table whose size and speed matter, so it has no rowid beside its key.
    db.conn.execute(
        """
        create table usage (
            request_id text primary key, at real not null, tenant text not null, key_id text not null,
            band text not null, model text not null, endpoint text not null, route text not null,
            outcome text not null, status integer not null,
            prompt_tokens integer not null, completion_tokens integer not null, cached_tokens integer not null,
            estimated integer not null, duration_s real not null, ttft_s real, attempts integer not null
        ) without rowid
        """
    )
    db.table("usage").create_index(["at"])
    db.table("usage").create_index(["tenant", "at"])
    db.table("accounts").create(
        {"start": int, "model": str, "band": str, "tenant": str, "epoch": int, "counts": str, "accounts": str},
        pk=("start", "model", "band", "tenant", "epoch"),
        not_null={"counts", "accounts"},
    )


def two(db: Database) -> None:
    """Version 0.3: nodes and what they run."""
    _nodes(db)
    _cluster(db)


def _cluster(db: Database) -> None:
    desired = {"at": float, "who": str, "why": str, "source": str, "models": str}
    db.table("desired").create({"revision": int} | desired, pk="revision", not_null=set(desired))
    scale = {"model": str, "replicas": int, "at": float, "who": str, "why": str}
    db.table("scales").create(scale, pk="model", not_null=set(scale) - {"model"})
    replica = {"name": str, "model": str, "phase": str, "generation": int, "doc": str}
    db.table("replicas").create(replica, pk="name", not_null=set(replica) - {"name"})
    told = {"at": float, "kind": str, "subject": str, "model": str, "verdict": str, "doc": bytes}
    db.table("decisions").create({"id": int} | told, pk="id", not_null=set(told))
    db.table("decisions").create_index(["subject", "id"])
    event = {"at": float, "kind": str, "subject": str, "sentence": str, "data": str}
    db.table("events").create({"seq": int} | event, pk="seq", not_null=set(event))
    db.table("meta").insert_all([{"key": "generation", "value": "0"}, {"key": "replica_number", "value": "0"}])


def _nodes(db: Database) -> None:
    # Plain SQL for the defaults: `sqlite-utils` quotes them.
    db.conn.execute(
        """
        create table nodes (
            name text primary key, credential blob not null unique, joined_at real not null, joined_with text not null,
            labels text not null, address text not null, boot text not null, version text not null,
            target text not null default 'schedulable', target_by text not null default '', target_at real,
            target_why text not null default '', seen_at real, given_up_at real,
            replaced blob, removed_at real, removed_why text not null default ''
        )
        """
    )
    times = {"created_at": float, "expires_at": float, "revoked_at": float}
    columns = {"id": str, "digest": bytes, "created_by": str, "uses_max": int, "uses": int}
    db.table("join_tokens").create(columns | times, pk="id", not_null={*columns, *times} - {"id", "revoked_at"})
    db.table("meta").insert({"key": "nodes_revision", "value": "0"})


def three(db: Database) -> None:
    """Version 0.4: what was asked of nodes, and of static endpoints."""
    db.conn.execute("alter table nodes add column drain text not null default ''")
    db.table("held_out").create({"id": str, "doc": str}, pk="id", not_null={"doc"})


def four(db: Database) -> None:
    """Version 0.5: what a store on PostgreSQL has as well. A start is counted apart from the epoch."""
    db.conn.execute("alter table leader_epoch add column n integer not null default 0")
    db.conn.execute("alter table leader_epoch add column nonce text not null default ''")
    stored = "select cast(value as integer) from meta where key = 'term_n'"
    db.conn.execute(f"update leader_epoch set n = coalesce(({stored}), 0)")
    db.conn.execute("delete from meta where key = 'term_n'")
    db.conn.execute("insert into meta (key, value) select 'starts', cast(epoch as text) from leader_epoch where id = 1")


def five(db: Database) -> None:
    """Version 0.6: the control planes that share a store. On SQLite there is one, which writes nothing here."""
    texts = dict.fromkeys(("name", "client", "admin", "agents"), str)
    columns = {"holder": str, "beats": int, **texts}
    db.table("control_planes").create(columns, pk="holder", not_null={*columns} - {"holder"})


MIGRATIONS: Sequence[Migration] = (one, two, three, four, five)


def migrate(db: Database, path: Path, migrations: Sequence[Migration] = MIGRATIONS, version: str = __version__) -> None:
    """Bring a store up to date. Raises StoreTooNew, or sqlite3's errors; a failed step leaves the file as it was."""
    have: int = db.conn.execute("pragma user_version").fetchone()[0]
    if have > len(migrations):
        raise StoreTooNew(f"{path} was written by a newer llmgw: run llmgw {_needs(db)} or newer, or put back a copy")
    for number, step in enumerate(migrations[have:], start=have + 1):
        if have:  # a new file has nothing to lose
            copy(db.conn, path.with_name(f"{path.name}.before-{number}"))
        _apply(db, step, number, version)


def copy(conn: sqlite3.Connection, to: Path) -> None:
    """A whole copy under its final name, or none: a crash half-way leaves only ``….part``."""
    part = to.with_name(to.name + ".part")
    part.unlink(missing_ok=True)
    part.touch(mode=0o600)
    target = sqlite3.connect(part)
    try:
        conn.backup(target)
    finally:
        target.close()
    part.replace(to)


def _apply(db: Database, step: Migration, number: int, version: str) -> None:
    with transaction(db):
        step(db)
        db.table("meta").upsert({"key": "needs_version", "value": version}, pk="key")
        db.conn.execute(f"pragma user_version = {number:d}")


def _needs(db: Database) -> str:
    found = db.conn.execute("select value from meta where key = 'needs_version'").fetchone()
    return str(found[0]) if found else "a later version"
