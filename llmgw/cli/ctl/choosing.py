"""Which gateway is meant: options that ``ctl`` and the console share."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click
from click.core import ParameterSource

C = TypeVar("C", bound=Callable[..., Any])
NAMES_ONE = frozenset({"context", "config", "data_dir", "url"})

OPTIONS = (
    click.option("--context", metavar="NAME", help="A gateway from `ctl context list`."),
    click.option(
        "--url", metavar="URL[,URL]", envvar="LLMGW_ADMIN_URL", show_envvar=True,
        help="Its admin listener; of several control planes all of them, and whoever leads is asked.",
    ),
    click.option(
        "--token", metavar="TOKEN", envvar="LLMGW_ADMIN_TOKEN", show_envvar=True, help="An admin token, or @FILE."
    ),
    click.option("--token-file", metavar="FILE", help="The file that holds the admin token."),
    click.option("--ca", metavar="FILE", help="PEM bundle to check the admin listener's certificate with."),
    click.option(
        "--config", metavar="FILE", envvar="LLMGW_CONFIG", show_envvar=True, help="llmgw.toml of a gateway here."
    ),
    click.option("--data-dir", metavar="DIR", help="Data directory of a gateway on this machine."),
)  # fmt: skip


def gateway_options(command: C) -> C:
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def said_options(ctx: click.Context, options: Mapping[str, str | None]) -> dict[str, str | None]:
    """What counts of them. A gateway named on the command line is meant: what the environment says of another one is
    left aside.
    """
    said = {name for name in options if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    counts = {name: value for name, value in options.items() if name in said or not said & NAMES_ONE}
    file = counts.pop("token_file", None)
    if file is None:
        return counts
    if "token" in said:
        raise click.UsageError("--token and --token-file exclude each other")
    return {**counts, "token": f"@{file}"}
