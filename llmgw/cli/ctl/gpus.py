"""``llmgw ctl gpus``: what an operator may say of a GPU."""

from urllib.parse import quote

import click

from llmgw.cli.ctl.keys import short_why
from llmgw.cli.ctl.session import JSON, CtlGroup, Session, not_empty
from llmgw.cli.ctl.show import print_json
from llmgw.cli.failure import printable


@click.group("gpus", cls=CtlGroup)
def command() -> None:
    """GPUs that something speaks against; `ctl nodes show NODE` lists them, `ctl explain gpu NODE GPU` tells why."""


@command.command()
@click.argument("node", callback=not_empty)
@click.argument("gpu", callback=not_empty)
@click.argument("cause", callback=not_empty)
@click.option("-m", "--why", required=True, callback=short_why, help="What was looked at, for the audit.")
@click.pass_obj
def clear(session: Session, node: str, gpu: str, cause: str, why: str) -> None:
    """Say that a GPU is well again: what spoke against it until now counts no more. What comes anew does.

    GPU is its index or its UUID, CAUSE as it is shown: "xid 79", "hardware inspection".
    """
    path = f"/nodes/{quote(node, safe='')}/gpus/{quote(gpu, safe='')}/clear"
    answer = session.post(path, {"cause": cause, "why": why})
    if session.output == JSON:
        print_json(answer)
    else:
        click.echo(printable(f"{answer['gpu']} on {node}: {cause} is cleared"))
