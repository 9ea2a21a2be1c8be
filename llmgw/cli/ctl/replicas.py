"""``llmgw ctl replicas``: what agents run of each model, and how it does."""

from collections.abc import Iterator, Mapping
from typing import Any

import click

from llmgw.cli.ctl.session import Session
from llmgw.cli.ctl.show import Column, drawn, listed
from llmgw.cli.ctl.watching import WatchCommand, shown

REPLICAS = (
    Column("REPLICA", "name"),
    Column("MODEL", "model"),
    Column("STATE", "state"),
    Column("GEN", "generation"),
    Column("NODES", "nodes_shown"),
    Column("SHARDS", "shards_shown"),
    Column("PORTS", "ports_shown"),
    Column("IN FLIGHT", "in_flight"),
    Column("AGE", "age_s", "span"),
    Column("WHY", "why_shown"),
)
SHARDS = (
    Column("REPLICA", "replica"),
    Column("RANK", "rank"),
    Column("NODE", "node"),
    Column("STATE", "state"),
    Column("PID", "pid_shown"),
    Column("PORTS", "ports_shown"),
    Column("GPUS", "gpus"),
    Column("GIB", "gpu_mib", "gib"),
    Column("AGE", "age_s", "span"),
    Column("WHY", "why"),
)


@click.command("replicas", cls=WatchCommand)
@click.argument("model", required=False)
@click.option("--shards", is_flag=True, help="A line for each shard: rank, process, ports, GPUs, what it says.")
@click.pass_obj
def command(session: Session, model: str | None, shards: bool, watch: float | None, count: int | None) -> None:
    """Replicas that agents run, of one MODEL or of all; a replica's own name shows that one.

    GEN is the incarnation: it rises with each start. SHARDS: how many run, of how many. AGE: in this state's
    phase. GIB, with --shards: memory measured on its GPUs.
    """
    shown(session, watch, count, lambda: session.get("/replicas", model=model), _shards if shards else _replicas)


def _replicas(answer: Any) -> str:
    found = listed(answer, "replicas")
    return drawn([_row(one) for one in found], REPLICAS) if found else NONE


def _shards(answer: Any) -> str:
    found = listed(answer, "replicas")
    return drawn([row for one in found for row in _shard_rows(one)], SHARDS) if found else NONE


NONE = "agents run no replicas; a model with [models.engine] has some (`llmgw ctl models`)"
RUNNING = {"loading", "ready", "leaving"}


def _row(one: Mapping[str, Any]) -> dict[str, Any]:
    shards = one.get("shards", [])
    up = sum(shard["state"] in RUNNING for shard in shards)
    return {
        **one,
        "generation": one.get("generation") or "",
        "nodes_shown": list(dict.fromkeys(shard["node"] for shard in shards)),
        "shards_shown": f"{up}/{len(shards)}" if shards else "",
        "ports_shown": _ports(shards[0]) if shards else "",
        "why_shown": _why(one),
    }


def _why(one: Mapping[str, Any]) -> str:
    replaces = f"replaces {one['replaces']}" if one.get("replaces") else ""
    outdated = "" if one.get("up_to_date", True) else "not as the config says now"
    return "; ".join(filter(None, [one.get("why"), replaces, outdated]))


def _shard_rows(one: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for shard in one.get("shards", []):
        yield {
            **shard,
            "replica": one["name"],
            "pid_shown": shard.get("pid") or "",
            "ports_shown": _ports(shard),
        }
    if not one.get("shards"):
        yield {"replica": one["name"], "state": one["state"], "age_s": one["age_s"], "why": _why(one)}


def _ports(shard: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {port}" for name, port in sorted((shard.get("ports") or {}).items()))
