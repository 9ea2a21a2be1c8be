"""``llmgw ctl tokens``: what operators show to the admin API."""

from urllib.parse import quote

import click

from llmgw.cli.ctl.keys import why_option
from llmgw.cli.ctl.session import JSON, CtlGroup, Session, not_empty
from llmgw.cli.ctl.show import Column, listed, print_json, say, show
from llmgw.core.identity import Role

COLUMNS = (
    Column("NAME", "name"),
    Column("ROLE", "role"),
    Column("CREATED", "created_at", "time"),
    Column("BY", "created_by"),
)


@click.group("tokens", cls=CtlGroup)
def command() -> None:
    """Operators' tokens: create, list, revoke.

    viewer reads, explanations and dry runs too; operator also acts: keys, configs, scaling, cancelling, cordons,
    drains, moves; admin also makes tokens and invites nodes.
    """


@command.command()
@click.argument("name", callback=not_empty)
@click.option("--role", type=click.Choice([str(r) for r in Role]), required=True)
@why_option
@click.pass_obj
def create(session: Session, name: str, role: str, why: str) -> None:
    """Make a token. It is printed once, alone, on standard output."""
    made = session.post("/tokens", {"name": name, "role": role} | ({"why": why} if why else {}))
    if session.output == JSON:
        print_json(made)
        return
    click.echo(made["token"])
    say(f"{name}: {role}. The token is not shown again.")


@command.command("list")
@click.pass_obj
def list_tokens(session: Session) -> None:
    """The tokens there are, by name."""
    answer = session.get("/tokens")
    show(session, answer, listed(answer, "tokens"), COLUMNS)


@command.command()
@click.argument("name", callback=not_empty)
@why_option
@click.pass_obj
def revoke(session: Session, name: str, why: str) -> None:
    """End a token; it is refused at once."""
    answer = session.delete(f"/tokens/{quote(name, safe='')}", why=why)
    if session.output == JSON:
        print_json(answer)
        return
    click.echo(f"{name} revoked")
