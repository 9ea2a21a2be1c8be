"""``llmgw ctl diff``: what applying a config file would do."""

from typing import TextIO

import click

from llmgw.cli.ctl.apply import print_changes, text_of
from llmgw.cli.ctl.session import JSON, CtlCommand, Session
from llmgw.cli.ctl.show import formed, print_json


@click.command("diff", cls=CtlCommand)
@click.argument("file", type=click.File(encoding="utf-8"))
@click.pass_obj
def command(session: Session, file: TextIO) -> None:
    """What `llmgw ctl apply FILE` would do: which engines are started anew, and what is only routed otherwise.

    Lines with - would change; lines with = are what operators scaled, which no file changes. Exit code 0 with
    and without changes, 2 for a file that would be refused.
    """
    answer = session.post("/apply", {"toml": text_of(file), "file": file.name, "dry": True})
    if session.output == JSON:
        print_json(answer)
        return
    changes, replaces, may_stop = (answer.get(name) or [] for name in ("changes", "replaces", "may_stop"))
    if not changes:
        click.echo("nothing would change")
    if replaces:
        click.echo(f"engines of {formed(replaces)} would be started anew")
    if may_stop:
        click.echo(f"running engines of {formed(may_stop)} would be stopped where a replacement waits for room")
    if changes and not replaces and not may_stop:
        click.echo("no engine would be started anew")
    print_changes(answer)
