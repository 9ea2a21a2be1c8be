"""``llmgw ctl cancel``: end one request that runs."""

from urllib.parse import quote

import click

from llmgw.cli.ctl.keys import short_why
from llmgw.cli.ctl.session import JSON, CtlCommand, Session, not_empty
from llmgw.cli.ctl.show import print_json
from llmgw.cli.failure import printable


@click.command("cancel", cls=CtlCommand)
@click.argument("id", callback=not_empty)
@click.option("-m", "--why", default="", callback=short_why, help="For the audit; the client is not told.")
@click.pass_obj
def command(session: Session, id: str, why: str) -> None:
    """End a request that runs; `llmgw ctl requests --running` lists them.

    Its client gets an error, or an error event where a stream has begun. It is not tried elsewhere.
    """
    answer = session.delete(f"/requests/{quote(id, safe='')}", why=why)
    if session.output == JSON:
        print_json(answer)
    else:
        click.echo(printable(f"{id} is ended"))
