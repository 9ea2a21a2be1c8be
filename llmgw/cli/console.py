"""``llmgw console``: the operator console, on the gateway that ``llmgw ctl`` would ask."""

import importlib.util
import os
import ssl
import sys
from typing import Any

import click

from llmgw.cli.ctl.choosing import gateway_options, said_options
from llmgw.cli.ctl.contexts import admin_urls
from llmgw.cli.ctl.session import Listening, Session, nobody_runs
from llmgw.cli.failure import Exit, Failure


@click.command("console")
@gateway_options
@click.option("--read-only", is_flag=True, help="Show no actions, whatever the token's role.")
@click.option(
    "--theme",
    type=click.Choice(["dark", "light", "terminal", "high-contrast"]),
    default="dark",
    envvar="LLMGW_THEME",
    show_envvar=True,
    show_default=True,
    help="terminal: its own colours. NO_COLOR is heeded in each.",
)
@click.pass_context
def command(ctx: click.Context, /, read_only: bool, theme: str, **options: str | None) -> None:
    """Watch and run a cluster in the terminal.

    Which one: --url, else --context, else the context in use, else the gateway on this machine, found by its data
    directory. `?` shows the keys.
    """
    if not is_installed():
        raise Failure("the console is not part of this installation", Exit.FAILED, "pip install 'llmgw[console]'")
    if not is_terminal():
        raise Failure("the console needs a terminal", Exit.USAGE, "over SSH: ssh -t; for programs: llmgw ctl -o json")
    if os.environ.get("TERM") == "dumb":
        raise Failure("the console draws, and TERM=dumb can't", Exit.USAGE, "set TERM, or use llmgw ctl")
    where = _where(said_options(ctx, options))
    from console.app import run

    why = run(where, read_only, theme)
    if why:
        raise Failure(why)


def is_installed() -> bool:
    return importlib.util.find_spec("textual") is not None


def is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _where(options: dict[str, str | None]) -> Any:
    from console.feed.api import Where

    session = Session()
    session.choose(**options)
    found = session.find()
    if not isinstance(found, Listening):
        raise nobody_runs(found)
    for file in filter(None, (found.ca, found.also_ca)):
        _check(file)
    return Where(tuple(admin_urls(found.urls)), found.token, found.ca, found.also_ca)


def _check(ca: str) -> None:
    """What is wrong with it is said here, and not in the middle of a screen."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(ca)
    except OSError as error:
        raise Failure(f"{ca}: {error}", Exit.USAGE, "check --ca") from error
