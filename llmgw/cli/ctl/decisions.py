"""``llmgw ctl decisions``: where replicas were placed lately, and where they could not be."""

import click

from llmgw.cli.ctl.session import JSON, CtlCommand, Session
from llmgw.cli.ctl.show import Column, listed, say, show

COLUMNS = (
    Column("WHEN", "at", "time"),
    Column("WHAT", "kind"),
    Column("REPLICA", "subject"),
    Column("MODEL", "model"),
    Column("VERDICT", "verdict"),
)


@click.command("decisions", cls=CtlCommand)
@click.argument("subject", required=False, metavar="[MODEL|REPLICA]")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@click.pass_obj
def command(session: Session, subject: str | None, limit: int) -> None:
    """Placements, latest first: those that were made and those that failed.

    `llmgw ctl explain placement REPLICA` tells the last one of a replica in full.
    """
    answer = session.get("/decisions", subject=subject, limit=limit)
    rows = listed(answer, "decisions")
    show(session, answer, rows, COLUMNS)
    if not rows and session.output != JSON:
        say(f"nothing was decided about {subject}" if subject else "nothing was decided yet")
