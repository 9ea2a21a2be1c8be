"""``llmgw ctl endpoints``: who answers, and what is known of them."""

import click

from llmgw.cli.ctl.session import CtlCommand, Session
from llmgw.cli.ctl.show import Column, listed, show

COLUMNS = (
    Column("ENDPOINT", "id"),
    Column("MODEL", "model"),
    Column("STATE", "state"),
    Column("HEALTH", "health"),
    Column("BREAKER", "breaker"),
    Column("IN FLIGHT", "in_flight"),
    Column("FULL", "saturation", "share"),
    Column("RUNNING", "running"),
    Column("WAITING", "waiting"),
    Column("KV", "kv", "share"),
    Column("SEEN", "sample_age_s", "age"),
    Column("URL", "url"),
    Column("WHY", "why"),
)


@click.command("endpoints", cls=CtlCommand)
@click.option("--model", help="Only this model's, by any of its names.")
@click.pass_obj
def command(session: Session, model: str | None) -> None:
    """Every endpoint, whether it may be sent requests, and why not."""
    answer = session.get("/endpoints", model=model)
    show(session, answer, listed(answer, "endpoints"), COLUMNS)
