"""``llmgw ctl drains``: what is drained, and how far that has got."""

from collections.abc import Mapping
from typing import Any

import click

from llmgw.cli.ctl.drain_shown import counted, is_over, time_left, waits
from llmgw.cli.ctl.session import Session
from llmgw.cli.ctl.show import Column, drawn, listed
from llmgw.cli.ctl.targeting import Subject
from llmgw.cli.ctl.watching import WatchCommand, shown

DRAINS = (
    Column("SUBJECT", "subject"),
    Column("STATE", "drain.state"),
    Column("LEFT", "left_shown"),
    Column("WAITS ON", "waits_shown"),
    Column("SINCE", "at", "time"),
    Column("BY", "by"),
    Column("WHY", "why"),
)


@click.command("drains", cls=WatchCommand)
@click.pass_obj
def command(session: Session, watch: float | None, count: int | None) -> None:
    """Every node and endpoint that is drained, or will be.

    LEFT: what is still there, and the time until the grace is over. WAITS ON: of one that is over, how it ended.
    """
    shown(session, watch, count, lambda: session.get("/drains"), _drawn)


def _drawn(answer: Any) -> str:
    found = listed(answer, "drains")
    return drawn([_row(one) for one in found], DRAINS) if found else "nothing is drained"


def _row(one: Mapping[str, Any]) -> dict[str, Any]:
    drain = one["drain"]
    number, processes = len(drain["left"]), len(drain["processes"])
    there = ""
    if not Subject(one["subject"]).is_endpoint and (number or processes):
        there = counted(number, "replica") if number else counted(processes, "shard")
    left = "" if is_over(drain) else time_left(drain).removesuffix(" left")
    waits_shown = drain["said"] if is_over(drain) else waits(drain)
    return {**one, "left_shown": ", ".join(filter(None, [there, left])), "waits_shown": waits_shown}
