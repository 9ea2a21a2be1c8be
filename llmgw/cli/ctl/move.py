"""``llmgw ctl move``: a replica to another node, its replacement first."""

import click

from llmgw.cli.ctl.keys import why_option
from llmgw.cli.ctl.session import JSON, CtlCommand, Session, not_empty
from llmgw.cli.ctl.show import print_json, say
from llmgw.cli.ctl.targeting import replica_path
from llmgw.cli.failure import printable


@click.command("move", cls=CtlCommand)
@click.argument("replica", callback=not_empty)
@click.option("--to", multiple=True, metavar="NODE", help="Where to; repeat for a replica of several nodes. "
              "Without: where placement puts it.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only say where it would go, and why there.")
@click.option("--cancel", is_flag=True, help="Take the move back: it stays where it is. By its name, or its "
              "replacement's.")  # fmt: skip
@why_option
@click.pass_obj
def command(session: Session, replica: str, to: tuple[str, ...], dry_run: bool, cancel: bool, why: str) -> None:
    """Bring a replica to other nodes: the new one serves before the old one leaves. All its shards go together.

    It is asked for when this returns, and takes its time; `llmgw ctl replicas --watch` shows it. Until its replacement
    has a place, asking again sends it elsewhere.
    """
    if cancel:
        if to or dry_run:
            raise click.UsageError("--cancel goes with neither --to nor --dry-run")
        _take_back(session, replica, why)
        return
    body = {"to": list(to), "reason": why} | ({"dry_run": True} if dry_run else {})
    answer = session.post(f"{replica_path(replica)}/move", body)
    if session.output == JSON:
        print_json(answer)
        return
    goes = "would go" if dry_run else "goes"
    where = ", ".join(answer["to"]) or "another node"
    click.echo(printable(f"{answer['replica']} {goes} to {where}" + (f": {answer['why']}" if answer["why"] else "")))
    if not dry_run:
        say("next: llmgw ctl replicas --watch")


def _take_back(session: Session, replica: str, why: str) -> None:
    answer = session.post(f"{replica_path(replica)}/move", {"cancel": True, "reason": why})
    if session.output == JSON:
        print_json(answer)
        return
    click.echo(printable(f"{answer['replica']} is not moved"))
    say("next: llmgw ctl replicas --watch")
