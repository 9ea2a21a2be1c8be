"""``llmgw server``: run the gateway."""

import os
import ssl
import sys
from pathlib import Path

import click
import trio


@click.command("server")
@click.option("--config", "-c", "file", type=click.Path(dir_okay=False, path_type=Path), envvar="LLMGW_CONFIG",
              help="The config file; without one: defaults and LLMGW_… variables.")  # fmt: skip
@click.option("--data-dir", type=click.Path(file_okay=False), help="Where the store and its lock lie.")
@click.option("--no-auth", is_flag=True, help="Serve without keys: for trials, on loopback only.")
def command(file: Path | None, data_dir: str | None, no_auth: bool) -> None:
    """Run the gateway until SIGTERM or ^C; SIGHUP reads the config file again.

    Exit codes: 0 stopped as asked, 1 failed, 2 bad config or a store that was moved elsewhere, 3 another one runs on
    this data directory or this store.
    """
    from llmgw.config import ConfigError, load
    from llmgw.config.read import as_options
    from llmgw.daemon import SOCKETS, Daemon
    from llmgw.nodes.certificates import NoCertificate
    from llmgw.store.errors import DataLocked, StoreMoved, StoreTooNew, StoreUnavailable
    from llmgw.store.place import place
    from llmgw.tasks.systemd import Notify, WrongSockets, activated

    options = {"--no-auth": ("LLMGW_SERVER__NO_AUTH", "true")} if no_auth else {}
    if data_dir:
        options["--data-dir"] = ("LLMGW_STORE__DATA_DIR", data_dir)
    environ = as_options(os.environ, options)
    try:
        config = load(file, environ)
    except ConfigError as error:
        for problem in error.problems:
            click.echo(str(problem), err=True)
        sys.exit(2)
    try:
        held = activated(os.environ, os.getpid(), SOCKETS)
        systemd = Notify.taken_from(os.environ, os.getpid())
    except (WrongSockets, ValueError) as error:
        click.echo(f"llmgw: from systemd: {error}", err=True)
        sys.exit(2)
    daemon = Daemon(
        config, place(config.store, environ), environ, file, say=lambda line: click.echo(line, err=True),
        systemd=systemd, held=held,
    )  # fmt: skip
    try:
        trio.run(daemon.run)
    except* DataLocked as group:
        _fail(3, group)
    except* StoreMoved as group:
        _fail(2, group)
    except* (OSError, ssl.SSLError, NoCertificate, StoreUnavailable, StoreTooNew) as group:
        _fail(1, group)


def _fail(code: int, group: BaseExceptionGroup[BaseException]) -> None:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    click.echo(f"llmgw: {error}", err=True)
    sys.exit(code)
