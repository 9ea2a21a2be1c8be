"""``llmgw agent drain``: take everything off this node before its machine shuts down."""

import os
from pathlib import Path
from typing import Any

import click
import trio

from llmgw.cli.failure import Exit, Failure
from llmgw.config.problems import Refused
from llmgw.config.units import seconds_of
from llmgw.core.agent_settings import AgentSettings
from llmgw.core.drain import AtDeadline

STOPS = "What could not go elsewhere by then is stopped, or kept."


def _duration(ctx: click.Context, param: click.Parameter, value: str) -> float:
    try:
        seconds = seconds_of(value)
    except Refused as error:
        raise click.BadParameter(str(error)) from None
    if seconds <= 0:
        raise click.BadParameter("must be more than 0")
    return seconds


@click.command("drain")
@click.option("--config", "-c", "file", type=click.Path(dir_okay=False, path_type=Path), envvar="LLMGW_CONFIG",
              help="As of `llmgw agent`.")  # fmt: skip
@click.option("--server", "servers", multiple=True, help="As of `llmgw agent`.")
@click.option("--data-dir", type=click.Path(file_okay=False), help="As of `llmgw agent`.")
@click.option("--grace", callback=_duration, default="10min", show_default=True, help="It is over after this.")
@click.option(
    "--at-deadline", type=click.Choice([str(one) for one in AtDeadline]), default="stop", show_default=True, help=STOPS
)
@click.option("--patience", callback=_duration, default="1min", show_default=True,
              help="Wait so long while all that is left has nowhere to go.")  # fmt: skip
@click.option("-m", "--why", "--reason", "why", default="", help="It is shown beside the node.")
@click.option("--boot", default="", help="As of `llmgw sim node`.  [default: this host's]")
@click.option("--no-wait", is_flag=True, help="Ask, and end.")
@click.pass_context
def drain(
    ctx: click.Context, /, file: Path | None, servers: tuple[str, ...], data_dir: str | None, **asked: Any
) -> None:
    """Ask the control plane to take everything off this node, replacement first, and follow how far it gets.

    For a unit that runs when the machine shuts down (deploy/systemd/llmgw-agent-drain.service). Nothing new lands
    here until the machine has booted again; then the node is what it was before by itself. ^C leaves the
    drain going on.

    Exit codes: 0 drained, or this node belongs to no cluster; 1 refused, failed, or undone meanwhile; 2 bad config or
    usage; 5 blocked: something is left that could not go elsewhere; 6 no control plane could be reached.
    """
    from llmgw.cli.agent import settings_of

    before = ctx.parent.params if ctx.parent is not None else {}
    settings = settings_of(
        file or before.get("file"),
        servers or before.get("servers", ()),
        {"data_dir": data_dir or before.get("data_dir")},
    ).agent
    _run(settings, **asked)


def _run(
    settings: AgentSettings, grace: float, at_deadline: str, patience: float, why: str, boot: str, no_wait: bool
) -> None:
    from agent.dialing import TlsDial
    from agent.draining import Draining, End, membership_in
    from agent.places import places
    from agent.proc import boot_id
    from llmgw.core.identity import WHY_MAX
    from llmgw.wire.agent_joining import GRACE_MAX_S, DrainAsked

    found = places(settings, os.environ)
    try:
        joined = membership_in(found)
    except (ValueError, OSError) as error:
        raise Failure(str(error)) from None
    if joined is None:
        click.echo(f"nothing to drain: {found.data} belongs to no cluster")
        return
    if not settings.servers:
        raise Failure("it is not said where the control plane is", Exit.USAGE, "give --server, or --config")
    if grace > GRACE_MAX_S:
        raise Failure("--grace is longer than 7d", Exit.USAGE)
    asked = DrainAsked(boot or boot_id(), grace, AtDeadline(at_deadline), why[:WHY_MAX])
    draining = Draining(
        settings, found, joined, asked, TlsDial(settings.server_name), click.echo, patience, waits=not no_wait
    )
    try:
        ended = trio.run(draining.run)
    except KeyboardInterrupt:
        raise Failure(f"the drain of {joined.node} goes on", hint="`llmgw ctl uncordon` ends it") from None
    if ended.how in (End.DRAINED, End.ASKED):
        click.echo(ended.said)
        return
    exits = {End.BLOCKED: Exit.BLOCKED, End.UNREACHABLE: Exit.UNREACHABLE}
    raise Failure(ended.said, exits.get(ended.how, Exit.FAILED))
