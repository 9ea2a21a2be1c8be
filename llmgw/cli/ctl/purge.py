"""``llmgw ctl purge``: wait no more for a replica that does not stop."""

from collections.abc import Mapping
from typing import Any

import click

from llmgw.cli.ctl.keys import why_option
from llmgw.cli.ctl.session import JSON, CtlCommand, Session, not_empty
from llmgw.cli.ctl.show import listed, print_json, say
from llmgw.cli.ctl.targeting import replica_path
from llmgw.cli.failure import printable


@click.command("purge", cls=CtlCommand)
@click.argument("replica", callback=not_empty)
@click.option("--yes", is_flag=True, help="Do not ask.")
@why_option
@click.pass_obj
def command(session: Session, replica: str, yes: bool, why: str) -> None:
    """Forget a replica that is to stop and does not: the drain and the replacements that wait for it go on.

    What is left of it belongs to nobody from then on: its node shows it, and somebody has to end it there.
    """
    path, nodes = f"{replica_path(replica)}/purge", _nodes(session, replica)
    if not yes:
        on = f" on {', '.join(sorted(set(nodes.values())))}" if nodes else ""
        what = printable(f"purge {replica}? what is left of it{on} stays, and nobody waits for it any more")
        click.confirm(what, abort=True, err=True)
    answer = session.post(path, {"reason": why})
    if session.output == JSON:
        print_json(answer)
        return
    _print(answer, nodes)


def _nodes(session: Session, replica: str) -> dict[str, str]:
    """Where each of its shards is."""
    found = listed(session.get("/replicas", model=replica), "replicas")
    shards = [shard for one in found if one["name"] == replica for shard in one["shards"]]
    return {str(shard["id"]): str(shard["node"]) for shard in shards}


def _print(answer: Mapping[str, Any], nodes: Mapping[str, str]) -> None:
    left = answer["left"]
    if not left:
        click.echo(printable(f"{answer['replica']} is purged; nothing of it runs any more"))
        return
    click.echo(printable(f"{answer['replica']} is purged; left of it {'is' if len(left) == 1 else 'are'}"))
    for id in left:
        how = "it has ended, its GPU memory is not back" if id in answer["memory"] else "it may still run"
        click.echo(printable(f"  {id}" + (f" on {nodes[id]}" if id in nodes else "") + f": {how}"))
    for node in sorted({nodes[id] for id in left if id in nodes}):
        say(_do(node, all(id in answer["memory"] for id in left if nodes.get(id) == node)))


def _do(node: str, memory: bool) -> str:
    if memory:
        return f"`llmgw ctl nodes show {node}` shows its GPUs; a reset of the GPU or a reboot of {node} brings it back"
    return f"`llmgw ctl nodes show {node}` shows its processes; end them there, or reboot {node}"
