"""``llmgw certs``: a CA of our own, and what it signs for the listeners."""

import datetime
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import click

from llmgw.cli.failure import Exit, Failure
from llmgw.cli.ownership import as_its_folder
from llmgw.nodes.certificates import SERVER_DAYS, Files, NoCertificate, Shown, make_ca, make_server, renew, show

AGENTS = "agents"

folder = click.option(
    "--dir", "folder", type=click.Path(file_okay=False, path_type=Path), help="Default: certs in the data directory."
)
hosts = click.option(
    "--host", "hosts", multiple=True, help="A name or address agents use; may be repeated. Default: this host's."
)
days = click.option("--days", default=SERVER_DAYS, show_default=True, type=click.IntRange(1, 825), help="Its life.")


@click.group(name="certs")
def command() -> None:
    """Certificates for the agents' listener, and for the others if you like."""


@command.command()
@folder
@hosts
@days
def init(folder: Path | None, hosts: tuple[str, ...], days: int) -> None:
    """Make a CA and a certificate for the agents' listener. An existing CA is kept."""
    files = _files(folder)
    with_ca = files.ca.exists()
    try:
        if folder is None:  # the data directory is as private when it is made here as when the server makes it
            files.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not with_ca:
            make_ca(files, _now())
        if files.chain(AGENTS).exists() and not hosts:
            raise NoCertificate(f"{files.chain(AGENTS)} is there already: `llmgw certs renew`, or give --host")
        make_server(files, AGENTS, hosts or _own_names(), _now(), days)
        _let_the_service_read(files)
    except (NoCertificate, OSError) as error:
        raise Failure(str(error)) from None
    _say(files.chain(AGENTS), "" if with_ca else f"a CA was made: {files.ca}")
    click.echo(f"keep {files.ca_key} safe: with it anybody can pass for this control plane")
    click.echo("next: (re)start `llmgw server`, then `llmgw ctl nodes invite`")


@command.command(name="renew")
@folder
@click.option("--name", default=AGENTS, show_default=True, help="Which: what stands before .pem.")
def renew_command(folder: Path | None, name: str) -> None:
    """The same names, a new key, a new life. A running server takes it up within seconds and cuts no link."""
    files = _files(folder)
    try:
        renew(files, name, _now())
        _let_the_service_read(files)
    except (NoCertificate, OSError) as error:
        raise Failure(str(error)) from None
    _say(files.chain(name))


@command.command()
@folder
@click.argument("name")
@hosts
@days
def server(folder: Path | None, name: str, hosts: tuple[str, ...], days: int) -> None:
    """A certificate NAME.pem and NAME.key from the same CA, for [server] or [admin] tls_cert and tls_key."""
    files = _files(folder)
    if not name.replace("-", "").isalnum() or name in ("ca", AGENTS):
        raise Failure(f"{name!r} is no name for a new file here", Exit.USAGE, "write letters and digits, like admin")
    try:
        make_server(files, name, hosts or _own_names(), _now(), days)
        _let_the_service_read(files)
    except (NoCertificate, OSError) as error:
        raise Failure(str(error)) from None
    _say(files.chain(name))


@command.command(name="show")
@folder
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def show_command(folder: Path | None, output: str) -> None:
    """What is there, until when, and what is due. The exit code is 1 if something has expired."""
    files, now = _files(folder), time.time()
    found = list(_all(files))
    if not found:
        raise Failure(f"there are no certificates in {files.folder}", Exit.NOT_FOUND, "run `llmgw certs init`")
    if output == "json":
        click.echo(json.dumps({"certificates": [_as_json(one, now) for one in found]}, indent=2))
    else:
        for one in found:
            click.echo(f"{Path(one.file).name:12} {one.state(now):9} until {_day(one.ends_at)}  {_whose(one)}")
            if one.state(now) == "due" and not one.is_ca:
                click.echo(f"{'':12} due since {_day(one.renew_at)}: `llmgw certs renew --name {Path(one.file).stem}`")
    if any(one.state(now) == "expired" for one in found):
        raise SystemExit(int(Exit.FAILED))


def _files(folder: Path | None) -> Files:
    if folder is not None:
        return Files(folder.expanduser())
    from llmgw.config import ConfigError, load
    from llmgw.store.place import place

    file = os.environ.get("LLMGW_CONFIG")
    try:
        config = load(Path(file) if file else None, os.environ)
    except ConfigError as error:
        raise Failure(str(error.problems[0]), Exit.USAGE, "or give --dir") from None
    return Files(place(config.store, os.environ).data_dir / "certs")


def _let_the_service_read(files: Files) -> None:
    """A CA that an operator copied here too."""
    as_its_folder([files.folder, *files.folder.iterdir()])


def _own_names() -> tuple[str, ...]:
    name = socket.gethostname()
    return tuple(dict.fromkeys((name, socket.getfqdn(), "localhost", "127.0.0.1", "::1")))


def _all(files: Files) -> Iterator[Shown]:
    for file in sorted(files.folder.glob("*.pem")):
        try:
            yield show(file)
        except NoCertificate as error:
            raise Failure(str(error)) from None


def _say(file: Path, first: str = "") -> None:
    if first:
        click.echo(first)
    shown = show(file)
    click.echo(f"{file} is good until {_day(shown.ends_at)} for {', '.join(shown.names)}")


def _whose(one: Shown) -> str:
    return f"CA, {one.subject}" if one.is_ca else ", ".join(one.names)


def _as_json(one: Shown, now: float) -> dict[str, object]:
    return {
        "file": one.file,
        "subject": one.subject,
        "names": list(one.names),
        "is_ca": one.is_ca,
        "begins_at": one.begins_at,
        "ends_at": one.ends_at,
        "renew_at": one.renew_at,
        "state": one.state(now),
    }


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at))
