"""``llmgw ctl audit``: what operators did."""

import click

from llmgw.cli.ctl.session import CtlCommand, Session
from llmgw.cli.ctl.show import Column, listed, show

COLUMNS = (
    Column("WHEN", "at", "time"),
    Column("WHO", "who"),
    Column("ROLE", "role"),
    Column("WHAT", "what"),
    Column("SUBJECT", "subject"),
    Column("WHY", "why"),
)


@click.command("audit", cls=CtlCommand)
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@click.pass_obj
def command(session: Session, limit: int) -> None:
    """What operators did, latest first. -o json shows before and after."""
    answer = session.get("/audit", limit=limit)
    show(session, answer, listed(answer, "audit"), COLUMNS)
