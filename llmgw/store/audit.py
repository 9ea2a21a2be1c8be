"""What operators did: who, what, to what, why, before, after. Written in the transaction of the act itself."""

import json
from typing import Any

from attrs import frozen

from llmgw.store.face import Connection, Database


@frozen
class Act:
    """One operator's action; ``before`` and ``after`` are what an operator may see, never a secret."""

    at: float
    who: str
    role: str
    what: str  # "keys.create", "tokens.revoke", "apply", …
    subject: str
    why: str = ""
    before: Any = None
    after: Any = None


def note(db: Database, act: Act) -> None:
    db.conn.execute(
        "insert into audit (at, who, role, what, subject, why, before, after) values (?, ?, ?, ?, ?, ?, ?, ?)",
        (act.at, act.who, act.role, act.what, act.subject, act.why, json.dumps(act.before), json.dumps(act.after)),
    )


def recent(conn: Connection, limit: int = 100) -> list[Act]:
    """The latest first."""
    rows = conn.execute(
        "select at, who, role, what, subject, why, before, after from audit order by id desc limit ?", (limit,)
    )
    return [
        Act(at, who, role, what, subject, why, json.loads(before), json.loads(after))
        for at, who, role, what, subject, why, before, after in rows
    ]


def as_json(act: Act) -> dict[str, Any]:
    return {
        "at": act.at,
        "who": act.who,
        "role": act.role,
        "what": act.what,
        "subject": act.subject,
        "why": act.why,
        "before": act.before,
        "after": act.after,
    }
