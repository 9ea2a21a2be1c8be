"""One node in full, for people."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import click

from llmgw.cli.ctl.drain_shown import Status, is_over, progress
from llmgw.cli.ctl.show import Column, drawn, formed, spanned
from llmgw.cli.ctl.targeting import Subject
from llmgw.cli.failure import printable

GPUS = (
    Column("GPU", "index"),
    Column("MODEL", "model"),
    Column("USABLE", "usable"),
    Column("CLAIMED", "claimed_mib", "gib"),
    Column("OURS", "ours_mib", "gib"),
    Column("FOREIGN", "foreign_mib", "gib"),
    Column("FREE", "free_mib", "gib"),
    Column("OF", "total_mib", "gib"),
    Column("BUSY", "utilisation", "share"),
    Column("°C", "temperature_c"),
    Column("W", "power_w"),
    Column("READ", "read_age_s", "age"),
    Column("UUID", "uuid_shown"),
)
EVIDENCE = (
    Column("GPU", "gpu"),
    Column("CAUSE", "cause"),
    Column("SO", "severity"),
    Column("SAYS", "says"),
    Column("FIRST", "first_at", "time"),
    Column("LAST", "last_at", "time"),
    Column("TIMES", "count"),
    Column("CLEARS", "clears"),
)
CLAIMS = (
    Column("GPU", "gpu"),
    Column("CLAIMED BY", "instance"),
    Column("GIB", "mib", "gib"),
    Column("ALONE", "exclusive"),
)
PROCESSES = (
    Column("GPU", "gpu"),
    Column("PID", "pid"),
    Column("PROCESS", "name"),
    Column("GIB", "mib", "gib"),
    Column("OF", "instance_shown"),
)


def print_node(node: Mapping[str, Any], drain: Status | None = None) -> None:
    """``drain``: how far its drain has got."""
    for line in _lines(node, drain):
        click.echo(printable(line))
    for text in _tables(node):
        click.echo("\n" + text)
    for orphan in node.get("orphans", []):
        pids = ", ".join(map(str, orphan["pids"]))
        click.echo("\n" + printable(f"orphan {orphan['id']}: {orphan['why']}; processes {pids}"))


def _lines(node: Mapping[str, Any], drain: Status | None) -> Iterator[str]:
    agent, target, memory = node["agent"], node["target"], node["memory"]
    yield f"{node['name']}: {node['state']}, {target['target']}" + _by(target)
    if drain is not None:
        yield from _drain(node, drain)
    if node["trouble"]:
        yield f"  trouble: {node['trouble']}"
    if node.get("driver"):
        yield f"  GPU driver: {node['driver']}"
    nothing = node.get("nothing_lands_because")
    yield f"  nothing lands here because {nothing}" if nothing else "  replicas may land here"
    yield f"  heard {formed(node['heard_age_s'], 'age')}, {_link(agent)}"
    yield f"  agent {formed(agent['version'])}, joined {formed(agent['joined_at'], 'time')}"
    yield f"  address {formed(node['address'])}, labels {_labels(node['labels'])}"
    free, total, reserved = (formed(memory[f"{what}_mib"], "gib") for what in ("free", "total", "reserved"))
    yield f"  host memory: {free} GiB free of {total}, {reserved} kept for the system"
    if node["obeys"]["rev"] < node["obeys"]["sent"]:
        behind = f"{node['obeys']['behind_s']:.1f} s"
        yield f"  it has not taken in what it was told for {behind} (revision {node['obeys']['sent']})"
    yield f"  replicas: {formed(node['replicas'])}"
    yield f"  shards: {formed(node['shards'])}"


def _by(target: Mapping[str, Any]) -> str:
    if not target["by"]:
        return ""
    at = f"{formed(target['at'], 'time')} ({formed(time.time() - target['at'], 'age')})"
    return f" by {target['by']}, {at}" + (f": {target['why']}" if target["why"] else "")


def _drain(node: Mapping[str, Any], drain: Status) -> Iterator[str]:
    yield f"  drain: {progress(Subject(node['name']), drain)}"
    if is_over(drain):
        yield f"    {drain['said']}"
    for sentence in drain["waits_on"]:
        yield f"    {sentence}"


def _link(agent: Mapping[str, Any]) -> str:
    if agent["linked"]:
        return f"linked from {agent['peer'] or 'somewhere'} for {spanned(agent['link_age_s'] or 0.0)}"
    return "no link" + (f": {agent['last_end']}" if agent["last_end"] else "")


def _labels(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(labels.items())) or "-"


def _tables(node: Mapping[str, Any]) -> Iterator[str]:
    gpus = node["gpus"]
    if gpus:
        yield "GPUs, memory in GiB:\n" + drawn([_gpu(gpu) for gpu in gpus], GPUS)
    evidence = [{"gpu": gpu["index"], **one} for gpu in gpus for one in gpu["evidence"]]
    if evidence:
        yield "what speaks against them:\n" + drawn(evidence, EVIDENCE)
    claims = [{"gpu": gpu["index"], **one} for gpu in gpus for one in gpu["claims"]]
    if claims:
        yield drawn(claims, CLAIMS)
    processes = [
        {"gpu": gpu["index"], **one, "instance_shown": one["instance"] or "foreign"}
        for gpu in gpus
        for one in gpu["processes"]
    ]
    if processes:
        yield drawn(processes, PROCESSES)


def _gpu(gpu: Mapping[str, Any]) -> dict[str, Any]:
    part = f" (slice of {gpu['slice_of']})" if gpu["slice_of"] else " (cut into slices)" if gpu["sliced"] else ""
    return {**gpu, "uuid_shown": gpu["uuid"] + part}
