"""``llmgw ctl apply``: a config file's models and limits, into the running gateway."""

from collections.abc import Mapping
from typing import Any, TextIO

import click

from llmgw.cli.ctl.keys import why_option
from llmgw.cli.ctl.session import JSON, CtlCommand, Session
from llmgw.cli.ctl.show import formed, print_json, say


@click.command("apply", cls=CtlCommand)
@click.argument("file", type=click.File(encoding="utf-8"))
@why_option
@click.pass_obj
def command(session: Session, file: TextIO, why: str) -> None:
    """Give the running gateway the models and limits of a config file; no request is dropped.

    A file with a problem changes nothing (exit code 2). Its secrets (@/path, @name) are read by the gateway.
    `llmgw ctl diff FILE` says before what would change.
    """
    answer = session.post("/apply", {"toml": text_of(file), "file": file.name} | ({"why": why} if why else {}))
    if session.output == JSON:
        print_json(answer)
    else:
        print_applied(answer)


def text_of(file: TextIO) -> str:
    try:
        return file.read()
    except UnicodeDecodeError as error:
        raise click.BadParameter(f"{file.name} is not UTF-8 text ({error})") from error


def print_applied(answer: Mapping[str, Any]) -> None:
    changes = answer.get("changes") or []
    click.echo(f"revision {formed(answer.get('revision'))}: {counted(len(changes))}")
    print_changes(answer)
    for warning in answer.get("warnings") or []:
        say(f"warning: {formed(warning)}")


def print_changes(answer: Mapping[str, Any]) -> None:
    for change in answer.get("changes") or []:
        click.echo(f"  - {formed(change)}")
    for stays in answer.get("stays") or []:
        click.echo(f"  = {formed(stays)}")


def counted(changes: int) -> str:
    return "nothing changed" if not changes else "1 change" if changes == 1 else f"{changes} changes"
