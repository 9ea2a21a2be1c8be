"""``llmgw ctl models``: what clients may ask for."""

import click

from llmgw.cli.ctl.session import CtlCommand, Session
from llmgw.cli.ctl.show import Column, listed, show

COLUMNS = (
    Column("MODEL", "name"),
    Column("ALIASES", "aliases"),
    Column("FALLBACK", "fallback_shown"),
    Column("ENDPOINTS", "endpoints"),
    Column("USABLE", "usable"),
    Column("IN FLIGHT", "in_flight"),
    Column("FULL", "saturation", "share"),
)


@click.command("models", cls=CtlCommand)
@click.pass_obj
def command(session: Session) -> None:
    """Models, their other names, and how many endpoints answer for them."""
    answer = session.get("/models")
    rows = [{**m, "fallback_shown": [f.get("model") for f in m.get("fallback", [])]} for m in listed(answer, "models")]
    show(session, answer, rows, COLUMNS)
