"""``llmgw ctl restart``: a replica, or all of a model, replaced one after another."""

from urllib.parse import quote

import click

from llmgw.cli.ctl.keys import why_option
from llmgw.cli.ctl.session import JSON, CtlCommand, Session, not_empty
from llmgw.cli.ctl.show import print_json, say


@click.command("restart", cls=CtlCommand)
@click.argument("subject", metavar="MODEL|REPLICA", callback=not_empty)
@why_option
@click.pass_obj
def command(session: Session, subject: str, why: str) -> None:
    """Replace a replica, or every replica of a model one after another: the new one serves before the old one leaves.

    It is asked for when this returns, and takes its time; `llmgw ctl replicas --watch` shows it.
    """
    answer = session.post(f"/restart/{quote(subject, safe='')}", {"why": why})
    if session.output == JSON:
        print_json(answer)
        return
    for name in answer["replicas"]:
        click.echo(f"{name} will be replaced")
    say("next: llmgw ctl replicas --watch")
