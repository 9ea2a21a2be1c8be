"""``llmgw agent``: run this node's engines for a control plane."""

import os
import sys
from pathlib import Path

import click
import trio
from attrs import evolve

from agent.inventory import Inventory
from llmgw.core.agent_settings import AgentSettings
from llmgw.tasks.sockets import split_address
from llmgw.telemetry.log import LogLimits


@click.command("agent")
@click.option("--config", "-c", "file", type=click.Path(dir_okay=False, path_type=Path), envvar="LLMGW_CONFIG",
              help="A config file; of it [agent] and [log] are read.")  # fmt: skip
@click.option(
    "--server", "servers", multiple=True, help="host:port of a control plane's agent listener; may be repeated."
)
@click.option(
    "--join", "token", help="@FILE with what `llmgw ctl nodes invite` printed, mode 0600; for the first start."
)
@click.option("--name", help="This node's name; default: the host's.")
@click.option("--data-dir", type=click.Path(file_okay=False), help="Where engines are written down.")
@click.option("--no-gpus", is_flag=True, help="A node of memory and cores.")
def command(
    file: Path | None,
    servers: tuple[str, ...],
    token: str | None,
    name: str | None,
    data_dir: str | None,
    no_gpus: bool,
) -> None:
    """Run engines here for the control plane until SIGTERM or ^C. The engines go on when the agent ends.

    Exit codes: 0 stopped as asked, 1 failed, 2 bad config, 3 another agent works in this folder.
    """
    from agent.driver_child import DriverChild
    from llmgw.config import ConfigError, load
    from llmgw.config.read import as_options

    said = {"name": name, "data_dir": data_dir, "join_token": token}
    options = {f"--{key}": (f"LLMGW_AGENT__{key.upper()}", value) for key, value in said.items() if value}
    environ = as_options(os.environ, options)
    try:
        config = load(file, environ)
    except ConfigError as error:
        for problem in error.problems:
            click.echo(str(problem), err=True)
        sys.exit(2)
    settings = config.agent
    if servers:
        settings = evolve(settings, servers=tuple(map(_server, servers)))
    if no_gpus:
        settings = evolve(settings, gpus=False)
    run_agent(settings, DriverChild() if settings.gpus else None, config.log)


def _server(text: str) -> str:
    try:
        split_address(text)
    except ValueError as error:
        _fail(2, ValueError(f"agent.servers: {error}"))
    return text


def run_agent(settings: AgentSettings, inventory: Inventory | None, log: LogLimits | None = None) -> None:
    """Until a signal ends it; what fails is a line and an exit code."""
    from agent.daemon import AgentDaemon, NoServers
    from agent.places import InUse, places

    try:
        daemon = AgentDaemon(settings, places(settings, os.environ), inventory, log or LogLimits(), _say)
    except (NoServers, ValueError) as error:
        _fail(2, error)
    try:
        trio.run(daemon.run)
    except* InUse as group:
        _fail(3, group)
    except* (OSError, ValueError) as group:
        _fail(1, group)


def _say(line: str) -> None:
    click.echo(line, err=True)


def _fail(code: int, error: BaseException) -> None:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    click.echo(f"llmgw: {error}", err=True)
    sys.exit(code)
