"""``llmgw ctl history``: the revisions of what was wanted."""

import click

from llmgw.cli.ctl.session import CtlCommand, Session
from llmgw.cli.ctl.show import Column, listed, show

COLUMNS = (
    Column("REVISION", "revision"),
    Column("WHEN", "at", "time"),
    Column("WHO", "who"),
    Column("SOURCE", "source"),
    Column("MODELS", "models"),
    Column("WHY", "why"),
)


@click.command("history", cls=CtlCommand)
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True)
@click.pass_obj
def command(session: Session, limit: int) -> None:
    """The models that were applied, revision by revision, latest first. `llmgw ctl rollback` goes back to one."""
    answer = session.get("/history", limit=limit)
    show(session, answer, listed(answer, "revisions"), COLUMNS)
