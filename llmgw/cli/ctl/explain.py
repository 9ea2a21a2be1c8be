"""``llmgw ctl explain``: the gateway's own account of why something happened."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import click

from llmgw.cli.ctl.session import JSON, CtlGroup, Session, not_empty
from llmgw.cli.ctl.show import Column, print_json, table
from llmgw.cli.failure import printable


@click.group("explain", cls=CtlGroup)
def command() -> None:
    """Why something happened: facts with their ages, candidates, what would change it."""


@command.command()
@click.argument("id", callback=not_empty)
@click.option("--record", is_flag=True, help="Its record too: every time and every attempt.")
@click.pass_obj
def request(session: Session, id: str, record: bool) -> None:
    """Why a request went where it went, waited, failed or was slow. The id is in x-request-id."""
    path = f"/requests/{quote(id, safe='')}"
    explanation = session.get(f"{path}/explanation")
    told = session.get(path)["request"] if record else None
    if session.output == JSON:
        print_json({"explanation": explanation, "record": told} if record else explanation)
        return
    print_explanation(explanation)
    if told is not None:
        click.echo()
        table(
            [{"name": name, "value": value} for name, value in told.items()],
            (Column("FIELD", "name"), Column("VALUE", "value")),
        )


@command.command()
@click.argument("model", callback=not_empty)
@click.pass_obj
def queue(session: Session, model: str) -> None:
    """Why requests wait for a model, or whether they would: how full its pool is, and with what."""
    explanation = session.get(f"/explain/queue/{quote(model, safe='')}")
    if session.output == JSON:
        print_json(explanation)
    else:
        print_explanation(explanation)


def print_explanation(said: Mapping[str, Any]) -> None:
    click.echo(printable(f"{said['subject']}: {said['verdict']}"))
    for fact in said.get("because", []):
        age = fact.get("age_s")
        click.echo(printable(f"  - {fact['text']}" + (f" ({age:.1f} s ago)" if age is not None else "")))
    if candidates := said.get("candidates", []):
        _print_candidates(candidates)
    if changes := said.get("would_change_it", []):
        click.echo("\nwhat would change it:")
        for change in changes:
            click.echo(printable(f"  - {change}"))
    if said.get("next_command"):
        click.echo("\n" + printable(f"next: {said['next_command']}"))


def _print_candidates(candidates: list[Mapping[str, Any]]) -> None:
    scorers = list(dict.fromkeys(name for c in candidates for name in c.get("scores", {})))
    rows = [
        {
            "name": ("* " if c.get("chosen") else "  ") + str(c["name"]),
            "reasons": c.get("reasons") or ("chosen" if c.get("chosen") else ""),
            "scores": {name: f"{score:.3f}" for name, score in c.get("scores", {}).items()},
        }
        for c in candidates
    ]
    click.echo()
    columns = [Column("CANDIDATE", "name"), *(Column(s.upper(), f"scores.{s}") for s in scorers)]
    table(rows, [*columns, Column("WHY", "reasons")])
