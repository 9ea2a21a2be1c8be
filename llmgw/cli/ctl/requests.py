"""``llmgw ctl requests``: what was asked lately, and how it went."""

import json
import time
from collections.abc import Mapping
from typing import Any

import click

from llmgw.cli.ctl.session import JSON, CtlCommand, Session
from llmgw.cli.ctl.show import Column, listed, say, show, table
from llmgw.cli.failure import Exit, Failure

COLUMNS = (
    Column("WHEN", "at", "time"),
    Column("REQUEST", "id"),
    Column("TENANT", "tenant"),
    Column("MODEL", "model_shown"),
    Column("ENDPOINT", "endpoint"),
    Column("OUTCOME", "outcome"),
    Column("STATUS", "status"),
    Column("WAIT", "wait_s", "seconds"),
    Column("FIRST", "ttft_s", "seconds"),
    Column("TOTAL", "total_s", "seconds"),
    Column("IN", "prompt_tokens"),
    Column("OUT", "completion_tokens"),
    Column("TRIES", "tries_shown"),
)
RUNNING = (
    Column("REQUEST", "id"),
    Column("TENANT", "tenant"),
    Column("BAND", "band"),
    Column("MODEL", "model"),
    Column("PHASE", "phase"),
    Column("ENDPOINT", "endpoint"),
    Column("AGE", "age_s", "seconds"),
    Column("WAITED", "waited_s", "seconds"),
    Column("FIRST TOKEN", "first_token_age_s", "age"),
    Column("TOKENS", "tokens"),
)
LIMIT_MAX = 1000


@click.command("requests", cls=CtlCommand)
@click.option("--running", is_flag=True, help="Those that run now, the oldest first; `llmgw ctl cancel ID` ends one.")
@click.option("--endpoint", help="With --running: those that are there.")
@click.option("--slow", is_flag=True, help="Over 10 s, or its first token after 2 s.")
@click.option("--failed", is_flag=True, help="What ended badly, clients that left aside.")
@click.option("--tenant")
@click.option("--model", help="As asked for, or as answered by.")
@click.option("--limit", type=click.IntRange(1, LIMIT_MAX), default=50, show_default=True)
@click.option("--watch", is_flag=True, help="Go on and print new ones as they end; Ctrl-C stops.")
@click.option("--every", type=click.FloatRange(0.05), default=1.0, hidden=True)
@click.pass_obj
def command(session: Session, /, watch: bool, every: float, running: bool, endpoint: str | None, **asked: Any) -> None:
    """Recent requests, newest first. `llmgw ctl explain request ID` says why one went as it did."""
    if running:
        _running(session, asked, endpoint)
        return
    if endpoint:
        raise click.UsageError("--endpoint goes with --running")
    if watch:
        _watch(session, every, asked)
        return
    answer = session.get("/requests", **_params(asked))
    rows = [_row(r) for r in listed(answer, "requests")]
    show(session, answer, rows, COLUMNS)
    if not rows and session.output != JSON:
        narrowed = any(value for name, value in asked.items() if name != "limit")
        say("none of the requests that are remembered match" if narrowed else "no request is remembered")


def _running(session: Session, asked: Mapping[str, Any], endpoint: str | None) -> None:
    said = [f"--{name}" for name in ("slow", "failed", "tenant") if asked.get(name)]
    if said:
        raise click.UsageError(f"{said[0]} is of requests that have ended, --running of those that have not")
    answer = session.get("/requests/running", model=asked["model"], endpoint=endpoint, limit=asked["limit"])
    rows = listed(answer, "requests")
    show(session, answer, rows, RUNNING)
    if not rows and session.output != JSON:
        say("no request runs")


def _watch(session: Session, every: float, asked: Mapping[str, Any]) -> None:
    """Oldest first, each once."""
    seen: set[str] = set()
    while True:
        found = listed(session.get("/requests", **_params(asked)), "requests")
        fresh = [r for r in reversed(found) if r["id"] not in seen]
        seen = {r["id"] for r in found}
        if session.output == JSON:
            for request in fresh:
                click.echo(json.dumps(request, ensure_ascii=False))
        elif fresh:
            table([_row(r) for r in fresh], COLUMNS)
        time.sleep(every)


def _params(asked: Mapping[str, Any]) -> dict[str, Any]:
    return {name: "true" if value is True else value for name, value in asked.items()}


def _row(request: Mapping[str, Any]) -> dict[str, Any]:
    if "id" not in request:
        raise Failure("a request without an id came back", Exit.UNREACHABLE, "is ctl older than the gateway?")
    tries = request.get("tries")
    asked, model = request.get("asked") or "", request.get("model") or ""
    shown = f"{asked} → {model}" if asked and model and asked != model else model or asked
    return {**request, "model_shown": shown, "tries_shown": len(tries) if isinstance(tries, list) else tries}
