"""``llmgw agent``: run this node's engines for a control plane."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
import trio
from attrs import evolve

from agent.inventory import Inventory
from llmgw.cli.agent_drain import drain
from llmgw.core.agent_settings import AgentSettings
from llmgw.telemetry.log import LogLimits

if TYPE_CHECKING:
    from llmgw.config import Config


@click.group("agent", invoke_without_command=True)
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
@click.pass_context
def command(
    ctx: click.Context,
    /,
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

    if ctx.invoked_subcommand is not None:
        return
    config = settings_of(file, servers, {"name": name, "data_dir": data_dir, "join_token": token})
    settings = config.agent
    if no_gpus:
        settings = evolve(settings, gpus=False)
    run_agent(settings, DriverChild() if settings.gpus else None, config.log)


command.add_command(drain)


def settings_of(file: Path | None, servers: tuple[str, ...], said: Mapping[str, str | None]) -> "Config":
    """Of ``[agent]`` in the file, and above it what was given on the command line."""
    from llmgw.config import ConfigError, load
    from llmgw.config.read import as_options

    options = {f"--{key}": (f"LLMGW_AGENT__{key.upper()}", value) for key, value in said.items() if value}
    try:
        config = load(file, as_options(os.environ, options))
    except ConfigError as error:
        for problem in error.problems:
            click.echo(str(problem), err=True)
        sys.exit(2)
    if servers:
        config = evolve(config, agent=evolve(config.agent, servers=tuple(map(server_address, servers))))
    return config


def server_address(text: str) -> str:
    """One a --server, as strictly as in a file: two with a comma between would be a name that nobody has."""
    from llmgw.config.addresses import split_address

    try:
        split_address(text)
    except ValueError as error:
        _fail(2, ValueError(f"--server: {error}"))
    return text


def run_agent(settings: AgentSettings, inventory: Inventory | None, log: LogLimits | None = None) -> None:
    """Until a signal ends it; what fails is a line and an exit code."""
    from agent.daemon import AgentDaemon, NoServers
    from agent.places import InUse, places
    from llmgw.tasks.systemd import Notify

    try:
        systemd = Notify.taken_from(os.environ, os.getpid())
        daemon = AgentDaemon(
            settings, places(settings, os.environ), inventory, log or LogLimits(), _say, systemd=systemd
        )
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
