"""``llmgw ctl status``: what the gateway says of itself."""

import click

from llmgw.cli.ctl.session import CtlCommand, Session
from llmgw.cli.ctl.show import Column, show


@click.command("status", cls=CtlCommand)
@click.pass_obj
def command(session: Session) -> None:
    """Version, readiness, what is in flight."""
    answer = session.get("/status")
    rows = [{"name": name, "value": value} for name, value in answer.items()]
    show(session, answer, rows, (Column("WHAT", "name"), Column("VALUE", "value")))
