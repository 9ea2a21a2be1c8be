"""What a config that was brought to a running process leaves in the audit, whoever brought it."""

from collections.abc import Sequence
from typing import Any

from llmgw.admin.services import Applied, Report
from llmgw.store.audit import Act, note
from llmgw.store.errors import StoreUnavailable
from llmgw.store.face import Store

PROBLEMS_SHOWN = 50


async def note_applied(store: Store, report: Report, act: Act, request_id: str = "") -> None:
    """It is in force or refused already, store or no store; an act that can't be audited is reported instead."""
    try:
        await store.write(lambda db: note(db, act))
    except StoreUnavailable as error:
        report(f"{act.what} by {act.who}, {act.subject}, unaudited: {error}", request_id, None)


def act_of(applied: Applied, at: float, who: str, role: str, what: str, why: str = "") -> Act:
    """Changes and problems name a secret by its key alone, so the audit may have them."""
    after: dict[str, Any]
    if applied.problems:
        subject, after = "refused", {"problems": first_of(applied.problems)}
    else:
        subject = f"revision {applied.revision}" if applied.changes else "nothing changed"
        after = {"revision": applied.revision, "changes": list(applied.changes)}
    return Act(at, who, role, what, subject, why, None, after)


def first_of(problems: Sequence[str]) -> list[str]:
    """A file may have a problem a line; nobody reads the thousandth."""
    more = len(problems) - PROBLEMS_SHOWN
    return [*problems[:PROBLEMS_SHOWN], *([f"and {more} more"] if more > 0 else [])]
