"""``llmgw ctl context``: the gateways ctl knows by name."""

import sys
from pathlib import Path

import click

from llmgw.cli.ctl.contexts import NAME, Contexts, Named, admin_urls
from llmgw.cli.ctl.session import JSON, CtlGroup, Session, revealed, sendable
from llmgw.cli.ctl.show import Column, print_json, table
from llmgw.cli.failure import Exit, Failure

COLUMNS = (Column("", "mark"), Column("CONTEXT", "name"), Column("URL", "url"), Column("TOKEN", "token"))


@click.group("context", cls=CtlGroup)
def command() -> None:
    """The gateways ctl knows by name, in ~/.config/llmgw/contexts.toml (readable by you alone)."""


@command.command()
@click.argument("name")
@click.option(
    "--url", required=True, metavar="URL[,URL]", help="Its admin listener, like https://gw-1:7442; of several all."
)
@click.option("--token", help="An admin token, @FILE, or - to read it from standard input. Without: asked for.")
@click.option("--ca", help="PEM bundle to check its certificate with.")
@click.option("--use/--no-use", default=None, help="Use it from now on; without: when it is the first.")
@click.pass_obj
def add(session: Session, name: str, url: str, token: str | None, ca: str | None, use: bool | None) -> None:
    """Remember a gateway; one of the same name is replaced."""
    if not NAME.fullmatch(name):
        raise Failure(f"{name!r} is no name for a context", Exit.USAGE, "letters, digits, dot, dash, underscore")
    contexts = Contexts.read()
    bundle = str(Path(ca).expanduser().absolute()) if ca else None  # it is used from any folder
    contexts.named[name] = Named(",".join(admin_urls(url)), _token(token), bundle)
    if use or (use is None and contexts.current is None):
        contexts.current = name
    contexts.write()
    _tell(session, contexts, name, "added, in use" if contexts.current == name else "added")


@command.command("list")
@click.pass_obj
def list_contexts(session: Session) -> None:
    """The contexts there are; * is in use."""
    contexts = Contexts.read()
    rows = [
        {
            "name": name,
            "url": each.url,
            "token": "yes" if each.token else "no",
            "mark": "*" if name == contexts.current else " ",
        }
        for name, each in sorted(contexts.named.items())
    ]
    if session.output == JSON:
        told = [{"name": r["name"], "url": r["url"], "token": r["token"] == "yes"} for r in rows]
        print_json({"contexts": told, "current": contexts.current})
        return
    table(rows, COLUMNS)


@command.command()
@click.argument("name")
@click.pass_obj
def use(session: Session, name: str) -> None:
    """Speak to this gateway from now on."""
    contexts = Contexts.read()
    contexts.find(name)
    contexts.current = name
    contexts.write()
    _tell(session, contexts, name, "in use")


@command.command()
@click.argument("name")
@click.pass_obj
def remove(session: Session, name: str) -> None:
    """Forget a gateway and its token."""
    contexts = Contexts.read()
    contexts.find(name)
    del contexts.named[name]
    if contexts.current == name:
        contexts.current = None
    contexts.write()
    _tell(session, contexts, name, "removed")


def _tell(session: Session, contexts: Contexts, name: str, what: str) -> None:
    if session.output == JSON:
        print_json({"context": name, "current": contexts.current})
    else:
        click.echo(f"{name} {what}")


def _token(token: str | None) -> str:
    if token == "-":
        return sendable(sys.stdin.readline().strip())
    if token is None and sys.stdin.isatty():
        token = click.prompt("token", hide_input=True, default="", show_default=False)
    return revealed(token or "")
