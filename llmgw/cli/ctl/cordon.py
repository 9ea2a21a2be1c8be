"""``llmgw ctl cordon``: nothing new lands on a node, and that is sure before it is said."""

import click

from llmgw.cli.ctl.keys import why_option
from llmgw.cli.ctl.session import CtlCommand, Session
from llmgw.cli.ctl.targeting import Subject, aim_each, named
from llmgw.core.drain import Target


@click.command("cordon", cls=CtlCommand)
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True, callback=named)
@why_option
@click.pass_context
def command(ctx: click.Context, nodes: tuple[Subject, ...], why: str) -> None:
    """Place nothing new on these nodes; what runs there stays. `llmgw ctl uncordon` takes it back.

    Exit code 5: nothing more is placed there, but a node has not answered yet and may still start what it is
    named with. Asking again does no harm.
    """
    for one in nodes:
        if one.is_endpoint:
            raise click.UsageError(f"an endpoint is drained, not cordoned: {one.command('drain')}")
    ctx.exit(aim_each(ctx.ensure_object(Session), nodes, Target.CORDONED, why))
