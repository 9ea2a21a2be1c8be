"""``llmgw ctl rollback``: the models of an earlier revision, in force again."""

import click

from llmgw.cli.ctl.apply import print_applied
from llmgw.cli.ctl.keys import why_option
from llmgw.cli.ctl.session import JSON, CtlCommand, Session
from llmgw.cli.ctl.show import print_json


@click.command("rollback", cls=CtlCommand)
@click.argument("revision", type=click.IntRange(1))
@why_option
@click.pass_obj
def command(session: Session, revision: int, why: str) -> None:
    """Put the models of an earlier revision in force again, as a new revision. Limits stay as they are.

    `llmgw ctl history` lists them. The config file is not changed: on SQLite its models count again at the next start.
    """
    answer = session.post("/rollback", {"revision": revision} | ({"why": why} if why else {}))
    if session.output == JSON:
        print_json(answer)
    else:
        print_applied(answer)
