"""``llmgw ctl uncordon``: a node may get replicas again, an endpoint requests; a drain is undone."""

import click

from llmgw.cli.ctl.keys import why_option
from llmgw.cli.ctl.session import CtlCommand, Session
from llmgw.cli.ctl.targeting import SUBJECT, Subject, aim_each, named
from llmgw.core.drain import Target


@click.command("uncordon", cls=CtlCommand)
@click.argument("subjects", metavar=f"{SUBJECT}...", nargs=-1, required=True, callback=named)
@why_option
@click.pass_context
def command(ctx: click.Context, subjects: tuple[Subject, ...], why: str) -> None:
    """Take back a cordon or a drain, also in the middle of it.

    Replicas that were about to leave serve on, and a replacement that nobody needs any more goes away. What has
    moved already stays where it is.
    """
    ctx.exit(aim_each(ctx.ensure_object(Session), subjects, Target.SCHEDULABLE, why))
