"""``llmgw ctl pools``: how full each pool is, and what makes it so."""

from collections.abc import Mapping
from typing import Any

import click

from llmgw.cli.ctl.session import Session
from llmgw.cli.ctl.show import Column, drawn, formed, listed
from llmgw.cli.ctl.watching import WatchCommand, shown

ENDPOINTS = (
    Column("ENDPOINT", "id"),
    Column("FULL", "saturation", "share"),
    Column("BY", "decides"),
    Column("LOAD", "parts.load", "share"),
    Column("QUEUE", "parts.queue", "share"),
    Column("KV", "parts.kv", "share"),
    Column("OURS", "ours_shown"),
    Column("OTHERS", "others"),
    Column("CAPACITY", "capacity_shown"),
    Column("ENGINE", "engine_shown"),
    Column("SEEN", "sample_age_s", "age"),
    Column("WHY", "why_shown"),
)


@click.command("pools", cls=WatchCommand)
@click.argument("model", required=False)
@click.pass_obj
def command(session: Session, model: str | None, watch: float | None, count: int | None) -> None:
    """How full each pool is, which bands wait, and what makes its endpoints full.

    A band goes at once while its pool is less full than its ceiling. LOAD, QUEUE and KV are shares of what
    makes an endpoint full; the largest, named under BY, is how full it is. OURS: in flight there, +granted
    and on the way, /its max_in_flight. ENGINE: what it said of itself when it was SEEN.
    """
    shown(session, watch, count, lambda: session.get("/pools", model=model), _drawn)


def _drawn(answer: Any) -> str:
    pools = listed(answer, "pools")
    bands = list(dict.fromkeys(band["band"] for pool in pools for band in pool.get("bands", [])))
    columns = (
        Column("MODEL", "model"),
        Column("MODE", "mode"),
        Column("FULL", "saturation", "share"),
        Column("WAIT", "waiting"),
        *(Column(band.upper(), f"band.{band}") for band in bands),
        Column("WHY", "why"),
    )
    texts = [drawn([_row(pool) for pool in pools], columns)]
    for pool in pools:
        if endpoints := pool.get("endpoints"):
            head = f"{pool['model']}:\n" if len(pools) > 1 else ""
            texts.append(head + drawn([_endpoint(one) for one in endpoints], ENDPOINTS))
    return "\n\n".join(texts)


def _row(pool: Mapping[str, Any]) -> dict[str, Any]:
    nowhere = pool.get("saturation") is None
    return {**pool, "band": {band["band"]: _band(band, nowhere) for band in pool.get("bands", [])}}


def _band(band: Mapping[str, Any], nowhere: bool) -> str:
    """ "90%, 3 wait": its ceiling, and what a newcomer meets."""
    floor = f" floor {formed(band['floor'], 'share')}" if band.get("floor") else ""
    waiting = band.get("waiting") or 0
    if waiting:
        now = f"{waiting} wait"
    elif band.get("at_once"):
        now = "at once"
    else:
        now = "refused" if nowhere else "would wait"
    return f"{formed(band.get('ceiling'), 'share')}{floor}, {now}"


def _endpoint(one: Mapping[str, Any]) -> dict[str, Any]:
    busy = f"it asked for a pause of another {one['busy_for_s']:.1f} s" if one.get("busy_for_s") else ""
    granted = f"+{one['granted']}" if one.get("granted") else ""
    most = f"/{one['max_in_flight']}" if one.get("max_in_flight") is not None else ""
    how = str(one.get("capacity_how") or "").partition(" ")[0].rstrip(":")
    said = {what: one.get(name) for what, name in (("run", "running"), ("wait", "waiting"))}
    return {
        **one,
        "why_shown": one.get("why") or busy or one.get("sample_why") or "",
        "ours_shown": f"{one.get('in_flight')}{granted}{most}",
        "capacity_shown": f"{one['capacity']} {how}" if one.get("capacity") is not None else "",
        "engine_shown": ", ".join(f"{count} {what}" for what, count in said.items() if count is not None),
    }
