"""Operators' tokens as rows; like keys, only their digests."""

from llmgw.core.identity import Role, TokenRecord
from llmgw.store.face import Connection, Database

COLUMNS = "name, digest, role, created_at, created_by"


def revision(conn: Connection) -> int:
    return int(conn.execute("select value from meta where key = 'tokens_revision'").fetchone()[0])


def raise_revision(conn: Connection) -> int:
    conn.execute("update meta set value = cast(cast(value as bigint) + 1 as text) where key = 'tokens_revision'")
    return revision(conn)


def every(conn: Connection) -> list[TokenRecord]:
    rows = conn.execute(f"select {COLUMNS} from admin_tokens order by created_at, name")
    return [TokenRecord(name, digest, Role(role), at, by) for name, digest, role, at, by in rows]


def add(db: Database, token: TokenRecord) -> None:
    row = (token.name, token.digest, str(token.role), token.created_at, token.created_by)
    db.conn.execute(f"insert into admin_tokens ({COLUMNS}) values (?, ?, ?, ?, ?)", row)


def remove(db: Database, name: str) -> None:
    db.conn.execute("delete from admin_tokens where name = ?", (name,))
