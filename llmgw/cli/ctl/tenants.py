"""``llmgw ctl tenants``: who pays."""

import click

from llmgw.cli.ctl.session import CtlCommand, Session
from llmgw.cli.ctl.show import Column, listed, show

COLUMNS = (Column("TENANT", "name"), Column("SINCE", "created_at", "time"))


@click.command("tenants", cls=CtlCommand)
@click.argument("list", type=click.Choice(["list"]), required=False, expose_value=False, metavar="[list]")
@click.pass_obj
def command(session: Session) -> None:
    """The tenants there are. `keys create --new-tenant` and `keys import` make them."""
    answer = session.get("/tenants")
    show(session, answer, listed(answer, "tenants"), COLUMNS)
