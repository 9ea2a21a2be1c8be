"""Join tokens as rows; only digests of their secrets."""

from llmgw.core.joining import JoinTokenRecord
from llmgw.store.face import Connection, Database

COLUMNS = "id, digest, created_at, created_by, expires_at, revoked_at, uses_max, uses"


def every(conn: Connection) -> list[JoinTokenRecord]:
    rows = conn.execute(f"select {COLUMNS} from join_tokens order by created_at, id")
    return [JoinTokenRecord(*row) for row in rows]


def find(conn: Connection, id: str) -> JoinTokenRecord | None:
    row = conn.execute(f"select {COLUMNS} from join_tokens where id = ?", (id,)).fetchone()
    return None if row is None else JoinTokenRecord(*row)


def add(db: Database, token: JoinTokenRecord) -> None:
    db.conn.execute(
        f"insert into join_tokens ({COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?)",
        (token.id, token.digest, token.created_at, token.created_by, token.expires_at, token.revoked_at,
         token.uses_max, token.uses),
    )  # fmt: skip


def use(db: Database, id: str) -> None:
    db.conn.execute("update join_tokens set uses = uses + 1 where id = ?", (id,))


def revoke(db: Database, id: str, at: float) -> None:
    db.conn.execute("update join_tokens set revoked_at = ? where id = ? and revoked_at is null", (at, id))


def forget(db: Database, before: float) -> None:
    """Tokens that were over before then."""
    db.conn.execute("delete from join_tokens where expires_at < ? or revoked_at < ?", (before, before))
