"""``llmgw ctl models``: what clients may ask for."""

from collections.abc import Mapping
from typing import Any

import click

from llmgw.cli.ctl.session import CtlCommand, Session
from llmgw.cli.ctl.show import Column, listed, show

COLUMNS = (
    Column("MODEL", "name"),
    Column("ALIASES", "aliases"),
    Column("FALLBACK", "fallback_shown"),
    Column("ENDPOINTS", "endpoints"),
    Column("USABLE", "usable"),
    Column("DESIRED", "desired_shown"),
    Column("SERVING", "replicas.serving"),
    Column("IN FLIGHT", "in_flight"),
    Column("FULL", "saturation", "share"),
)


@click.command("models", cls=CtlCommand)
@click.pass_obj
def command(session: Session) -> None:
    """Models, their other names, how many endpoints answer for them, and how many replicas agents shall and do run.

    A model without DESIRED has static endpoints alone.
    """
    answer = session.get("/models")
    show(session, answer, [_row(model) for model in listed(answer, "models")], COLUMNS)


def _row(model: Mapping[str, Any]) -> dict[str, Any]:
    fallback = [one.get("model") for one in model.get("fallback", [])]
    return {**model, "fallback_shown": fallback, "desired_shown": _desired(model.get("replicas") or {})}


def _desired(replicas: Mapping[str, Any]) -> str:
    if not replicas:
        return ""
    return f"{replicas['desired']}" + (" (scaled)" if replicas.get("scaled") is not None else "")
