"""``llmgw ctl explain``: the gateway's own account of why something happened."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import click

from llmgw.cli.ctl.session import JSON, CtlGroup, Session, not_empty
from llmgw.cli.ctl.show import Column, print_json, table
from llmgw.cli.ctl.targeting import SUBJECT, Subject
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
    _explained(session, f"/explain/queue/{quote(model, safe='')}")


@command.command()
@click.argument("subject", metavar="MODEL|REPLICA", callback=not_empty)
@click.option("--what-if", "what_ifs", multiple=True, metavar="SUPPOSED",
              help="gpus=2, gpu_memory=40GiB, 'without node-3', 'with node-3', …; repeat for more.")  # fmt: skip
@click.pass_obj
def placement(session: Session, subject: str, what_ifs: tuple[str, ...]) -> None:
    """Where a replica runs and why there, or why it fits nowhere: every candidate, every reason, the scores.

    Of a REPLICA with a place: as it was decided. Of a MODEL, or with --what-if: the same question asked now,
    about the world as it is or as it is supposed. Nothing is changed.
    """
    _explained(session, f"/explain/placement/{quote(subject, safe='')}", what_if=", ".join(what_ifs))


@command.command()
@click.argument("node", callback=not_empty)
@click.pass_obj
def node(session: Session, node: str) -> None:
    """Why a node gets new replicas, or none; what runs there, and what speaks against its GPUs."""
    _explained(session, f"/explain/node/{quote(node, safe='')}")


@command.command()
@click.pass_obj
def leader(session: Session) -> None:
    """Why this control plane leads, or another one does, or nobody; what would change it."""
    _explained(session, "/explain/leader")


@command.command()
@click.argument("node", callback=not_empty)
@click.argument("gpu", callback=not_empty)
@click.pass_obj
def gpu(session: Session, node: str, gpu: str) -> None:
    """Who has a GPU's memory, what speaks against it, and what clears that.

    GPU is its index, its UUID or the beginning of it.
    """
    _explained(session, f"/explain/gpu/{quote(node, safe='')}/{quote(gpu, safe='')}")


@command.command()
@click.argument("subject", metavar=SUBJECT, callback=not_empty)
@click.pass_obj
def drain(session: Session, subject: str) -> None:
    """What a drain waits on and why, replica by replica; of one that nobody asked for, what it would do."""
    Subject(subject).check()
    _explained(session, f"/explain/drain/{quote(subject, safe='')}")


def _explained(session: Session, path: str, **params: str) -> None:
    explanation = session.get(path, **params)
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
            "reasons": "; ".join(c.get("reasons") or []) or ("chosen" if c.get("chosen") else ""),
            "scores": {name: f"{score:.3f}" for name, score in c.get("scores", {}).items()},
        }
        for c in candidates
    ]
    click.echo()
    columns = [Column("CANDIDATE", "name"), *(Column(s.upper(), f"scores.{s}") for s in scorers)]
    table(rows, [*columns, Column("WHY", "reasons")])
