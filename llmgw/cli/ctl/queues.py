"""``llmgw ctl queues``: who waits for which pool, and what became of those who waited."""

from collections.abc import Iterator, Mapping
from typing import Any

import click

from llmgw.cli.ctl.session import Session
from llmgw.cli.ctl.show import Column, drawn, listed
from llmgw.cli.ctl.watching import WatchCommand, shown

COLUMNS = (
    Column("MODEL", "model"),
    Column("BAND", "band"),
    Column("TENANT", "tenant"),
    Column("WAITING", "waiting"),
    Column("OLDEST", "oldest_s", "seconds"),
    Column("BYTES", "bytes"),
    Column("SERVED", "served"),
    Column("MEAN", "wait_mean_s", "seconds"),
    Column("LONGEST", "wait_longest_s", "seconds"),
    Column("REFUSED", "refused"),
)
SEATS = (
    Column("BAND", "band"),
    Column("WAITING", "waiting"),
    Column("OF", "seats_max"),
    Column("BYTES", "bytes"),
    Column("OF", "bytes_max"),
)
ALL = "(all)"


@click.command("queues", cls=WatchCommand)
@click.argument("model", required=False)
@click.pass_obj
def command(session: Session, model: str | None, watch: float | None, count: int | None) -> None:
    """Who waits, by pool, band and tenant, and what became of those who waited.

    SERVED, MEAN and LONGEST are of requests that waited and were let through; those that went at once are
    not counted here. Bands that nobody ever waited in are left out, and stand in the JSON.
    """
    shown(session, watch, count, lambda: session.get("/queues", model=model), _drawn)


def _drawn(answer: Any) -> str:
    rows = [row for queue in listed(answer, "queues") for row in _rows(queue)]
    held = [band for band in answer.get("bands", []) if band.get("waiting")]
    texts = [drawn(rows, COLUMNS) if rows else "nobody waits, and nobody has waited"]
    if held:
        texts.append("what the bands may hold, over all pools:\n" + drawn(held, SEATS))
    return "\n\n".join(texts)


def _rows(queue: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A band's tenants, and their sum where there are several."""
    tenants = queue.get("tenants", [])
    names = {"model": queue.get("model"), "band": queue.get("band")}
    if len(tenants) > 1:
        yield {**queue, "tenant": ALL}
    yield from ({**names, **tenant} for tenant in tenants)
