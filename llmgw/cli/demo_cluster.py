"""``llmgw demo --cluster``: a control plane, two nodes with simulated GPUs, a model of two replicas, a death, a drain.

Traffic runs throughout. One engine is killed; the other answers for both until the next generation serves. Then a
node is taken out of service: what runs there serves elsewhere first.
"""

import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from llmgw.cli.demo_context import context
from llmgw.cli.demo_processes import Processes, ctl, folder, make_key, openai_client, say
from llmgw.cli.failure import Exit, Failure
from llmgw.nodes.certificates import Files, write

MODEL = "demo-model"
NODES = 2
REPLICAS = 2
SERVES_WITHIN_S = 30.0
ENDS_WITHIN_S = 15.0
WORKERS = 4
FIRST_PORT = 21_000
PORTS_EACH = 50


def show(once: bool, port: int, wanted: Path | None) -> None:
    with folder(wanted) as place, Processes(place) as processes:
        base_url, admin_url = processes.gateway(_config(place, port))
        try:
            _begin(place, processes, base_url, admin_url, once)
        finally:
            _end_engines(place)


def _begin(place: Path, processes: Processes, base_url: str, admin_url: str, once: bool) -> None:
    say("control", f"{base_url}  (admin {admin_url}, files in {place})")
    _nodes(place, processes)
    _wait(place, lambda: len(_serving(place)) == REPLICAS, f"{REPLICAS} replicas serve")
    for one in _replicas(place):
        shard = one["shards"][0]
        say("replica", f"{one['name']} on {shard['node']}, GPU {shard['gpus'][0]}, process {shard['pid']}")
    say("why", str(ctl(place, "explain", "placement", _replicas(place)[0]["name"])["verdict"]))
    key = make_key(place)
    with _traffic(base_url, key) as answers:
        _kill_one(place, answers)
        _drain_one(place)
    say("traffic", f"{answers['answered']} requests answered, {answers['failed']} failed")
    if not once:
        with context(admin_url, place / "data") as words:
            _stay(place, base_url, key, words, processes)


def _kill_one(place: Path, answers: Counter[str]) -> None:
    _wait(place, lambda: answers["answered"] >= 20, "traffic runs")
    victim = _replicas(place)[0]
    since = _last_event(place)
    say("kill -9", f"{victim['name']}, process {victim['shards'][0]['pid']}")
    os.kill(victim["shards"][0]["pid"], signal.SIGKILL)
    _wait(place, lambda: _is_next(place, victim), f"{victim['name']} serves again")
    for event in ctl(place, "events", "--since", str(since))["events"]:
        if event["subject"] == victim["name"]:
            say("event", event["sentence"])


def _drain_one(place: Path) -> None:
    _wait(place, lambda: len(_serving(place)) == REPLICAS, f"{REPLICAS} replicas serve")
    node = _replicas(place)[0]["shards"][0]["node"]
    for move in ctl(place, "drain", node, "--dry-run")["plan"]["moves"]:
        say("dry run", f"{move['replica']} would go to {', '.join(move['to'])}")
    say("drain", f"llmgw ctl drain {node} -m 'new fans'")
    ctl(place, "drain", node, "-m", "new fans")
    _wait(place, lambda: _drain(place, node)["left_s"] is None, f"{node} is drained")
    say("drained", _drain(place, node)["said"])
    ctl(place, "uncordon", node, "-m", "fans are in")


def _drain(place: Path, node: str) -> dict[str, Any]:
    (found,) = (one["drain"] for one in ctl(place, "drains")["drains"] if one["subject"] == node)
    told: dict[str, Any] = found
    return told


def _is_next(place: Path, before: dict[str, Any]) -> bool:
    now = next((one for one in _replicas(place) if one["name"] == before["name"]), None)
    return now is not None and now["serving"] and now["generation"] > before["generation"]


def _nodes(place: Path, processes: Processes) -> None:
    server = processes.announced("gateway", "agents: ")
    token = place / "join.token"
    write(token, str(ctl(place, "nodes", "invite")["token"]).encode(), 0o600)
    for number in range(1, NODES + 1):
        first = FIRST_PORT + number * PORTS_EACH
        processes.start(
            f"node-{number}", "sim", "node", "--dir", str(place / f"node-{number}"), "--name", f"node-{number}",
            "--server", server, "--join", f"@{token}", "--gpus", "2", "--ports", f"{first}-{first + PORTS_EACH - 1}",
        )  # fmt: skip
    say("nodes", f"{NODES} agents with 2 simulated GPUs each, joined with one token")


def _config(place: Path, port: int) -> Path:
    import datetime

    from llmgw.nodes.certificates import make_ca, make_server

    files, now = Files(place / "data" / "certs"), datetime.datetime.now(datetime.UTC)
    if not files.ca.exists():
        make_ca(files, now)
        make_server(files, "agents", ["127.0.0.1"], now)
    engine = [sys.executable, "-m", "llmgw", "sim", "engine"]
    file = place / "llmgw.toml"
    file.write_text(
        f"""[server]
listen = "127.0.0.1:{port}"
name = "gw-1"
balancer_pause = 0  # nobody balances in front of a demo

[admin]
listen = "127.0.0.1:0"

[agents]
listen = "127.0.0.1:0"

[log]
requests = false

[replica]
healthy_min = "2s"  # nobody watches a demo for long

[[models]]
name = "{MODEL}"
replicas = {REPLICAS}

[models.engine]
preset = "sim"
executable = [{", ".join(f'"{word}"' for word in engine)}]
gpus = 1
gpu_memory = "20GiB"
""",
        encoding="utf-8",
    )
    return file


@contextmanager
def _traffic(base_url: str, key: str) -> Iterator[Counter[str]]:
    """Short questions, one after another, from a few clients at once."""
    answers: Counter[str] = Counter()
    stop = threading.Event()

    def ask() -> None:
        client = openai_client(base_url, key).with_options(max_retries=0)
        while not stop.is_set():
            try:
                client.chat.completions.create(
                    model=MODEL, max_tokens=4, messages=[{"role": "user", "content": "Still there?"}]
                )
                answers["answered"] += 1
            except Exception as error:
                answers["failed"] += 1
                say("failed", f"{type(error).__name__}: {error}")
            stop.wait(0.02)

    workers = [threading.Thread(target=ask, daemon=True) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    try:
        yield answers
    finally:
        stop.set()
        for worker in workers:
            worker.join(10)


def _stay(place: Path, base_url: str, key: str, words: str, processes: Processes) -> None:
    """``words``: what opens the console here."""
    llmgw = f"{sys.executable} -m llmgw ctl --data-dir {place / 'data'}"
    in_use = next((shard["node"] for one in _replicas(place) for shard in one["shards"]), "node-1")
    click.echo("\nIt stays up. Try it from another terminal:\n")
    for asked in (
        "nodes",
        "replicas",
        f"drain {in_use} --dry-run",
        f"explain placement {MODEL} --what-if gpus=2",
        "events --follow",
    ):
        click.echo(f"  {llmgw} {asked}")
    click.echo(f"\nclients: {base_url}, key {key}")
    click.echo(f"\nThe console opens with:\n\n  {sys.executable} -m llmgw console {words}".rstrip())
    click.echo("\nPress Ctrl-C to stop everything.")
    try:
        processes.wait()
    except KeyboardInterrupt:
        click.echo("\nstopping")


def _end_engines(place: Path) -> None:
    """Agents leave their engines running when they end, so the engines go first."""
    try:
        ctl(place, "scale", MODEL, "0")
        _wait(place, lambda: not _replicas(place), "every engine has ended", ENDS_WITHIN_S)
    except Failure as failure:
        click.echo(f"llmgw: {failure}", err=True)
    from sim.node import end_engines

    for number in range(1, NODES + 1):
        end_engines(place / f"node-{number}")


def _replicas(place: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ctl(place, "replicas")["replicas"]
    return found


def _serving(place: Path) -> list[dict[str, Any]]:
    return [one for one in _replicas(place) if one["serving"]]


def _last_event(place: Path) -> int:
    events = ctl(place, "events", "--limit", "1")["events"]
    return int(events[-1]["seq"]) if events else 0


def _wait(place: Path, until: Callable[[], bool], what: str, within_s: float = SERVES_WITHIN_S) -> None:
    deadline = time.monotonic() + within_s
    while not until():
        if time.monotonic() > deadline:
            raise Failure(f"after {within_s:g} s it is not so that {what}; logs are in {place}", Exit.FAILED)
        time.sleep(0.2)
