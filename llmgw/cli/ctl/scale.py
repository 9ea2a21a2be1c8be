"""``llmgw ctl scale``: another number of replicas than is written."""

from urllib.parse import quote

import click

from llmgw.cli.ctl.keys import why_option
from llmgw.cli.ctl.session import JSON, CtlCommand, Session, not_empty
from llmgw.cli.ctl.show import print_json


@click.command("scale", cls=CtlCommand)
@click.argument("model", callback=not_empty)
@click.argument("replicas", type=click.IntRange(0, 1000), metavar="N", required=False)
@click.option("--reset", is_flag=True, help="Back to what the config says.")
@why_option
@click.pass_obj
def command(session: Session, model: str, replicas: int | None, reset: bool, why: str) -> None:
    """Run N replicas of a model. It counts instead of what is written, also after an apply, until --reset.

    Fewer: those with the least in flight leave, and finish what they have.
    """
    if reset == (replicas is not None):
        raise click.UsageError("say how many, or --reset")
    answer = session.put(f"/models/{quote(model, safe='')}/scale", {"replicas": replicas, "why": why})
    if session.output == JSON:
        print_json(answer)
        return
    click.echo(f"{model}: {answer['replicas']} wanted" + (", as is written" if answer["scaled"] is None else ""))
