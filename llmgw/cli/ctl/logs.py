"""``llmgw ctl logs``: the last an engine wrote, from the node where it runs."""

from urllib.parse import quote

import click

from llmgw.cli.ctl.session import JSON, CtlCommand, Session, not_empty
from llmgw.cli.ctl.show import lines, print_json, say, spanned
from llmgw.cli.failure import Failure

BYTES_MAX = 1024**2


@click.command("logs", cls=CtlCommand)
@click.argument("replica", callback=not_empty)
@click.option("--shard", type=click.IntRange(0, 1024), default=0, show_default=True, help="Its rank.")
@click.option("--bytes", "most", type=click.IntRange(1, BYTES_MAX), default=65536, show_default=True, help="The last.")
@click.pass_obj
def command(session: Session, replica: str, shard: int, most: int) -> None:
    """The end of an engine's log, asked of its node now; where it comes from is told on standard error.

    If the node can't answer, what it sent last by itself is shown, with its age. A replica that has no place now,
    as between two tries, is shown by its last incarnation: NAME.g3.r0 is rank 0 of the third.
    """
    told = session.get(f"/replicas/{quote(replica, safe='')}/logs", shard=str(shard), bytes=most)
    error, age, text = told.get("error") or "", told.get("age_s"), told.get("text") or ""
    where = told["instance"] + (f" on {told['node']}" if told.get("node") else "")
    if error and not text:
        raise Failure(f"{where}: {error}", hint="its log is on the node, in the agent's data directory")
    if session.output == JSON:
        print_json(told)
        return
    aged = "it has written nothing yet" if not text else "nobody knows how old its last line is"
    aged = f"its last line is {spanned(age)} old" if age is not None else aged
    say(f"{where}: {error}; this was kept of it, {aged}" if error else f"{where}: {aged}")
    click.echo(lines(text), nl=not text.endswith("\n"))
