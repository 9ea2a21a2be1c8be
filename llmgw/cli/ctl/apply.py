"""``llmgw ctl apply``: a config file's models and limits, into the running gateway."""

from typing import TextIO

import click

from llmgw.cli.ctl.session import JSON, CtlCommand, Session
from llmgw.cli.ctl.show import formed, print_json


@click.command("apply", cls=CtlCommand)
@click.argument("file", type=click.File(encoding="utf-8"))
@click.pass_obj
def command(session: Session, file: TextIO) -> None:
    """Give the running gateway the models and limits of a config file; no request is dropped.

    A file with a problem changes nothing (exit code 2). Its secrets (@/path, @name) are read by the gateway.
    """
    try:
        text = file.read()
    except UnicodeDecodeError as error:
        raise click.BadParameter(f"{file.name} is not UTF-8 text ({error})") from error
    answer = session.post("/apply", {"toml": text, "file": file.name})
    if session.output == JSON:
        print_json(answer)
        return
    changes = answer.get("changes") or []
    click.echo(f"revision {formed(answer.get('revision'))}: {_counted(len(changes))}")
    for change in changes:
        click.echo(f"  - {formed(change)}")


def _counted(changes: int) -> str:
    return "nothing changed" if not changes else "1 change" if changes == 1 else f"{changes} changes"
