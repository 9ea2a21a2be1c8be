"""``llmgw store``: move a whole store, put it into a file, take it out of one."""

import json
import os
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from llmgw.cli.failure import Exit, Failure, printable
from llmgw.cli.ownership import as_its_folder

TOLD_EVERY_S = 2.0
FILES = frozenset({".db", ".sqlite", ".sqlite3"})  # a path that ends otherwise, and is no file yet, is a folder's

said_json = click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
config = click.option("--config", "-c", type=click.Path(dir_okay=False, path_type=Path), envvar="LLMGW_CONFIG",
                      help="The store of this config file, where none is named.")  # fmt: skip


@click.group(name="store")
def command() -> None:
    """Move the store from one database to another, back it up, restore it.

    A store is named by a PostgreSQL URL, by an SQLite file or its folder, or by "@FILE" or "@CREDENTIAL" with a URL
    in it: a password on a command line can be read by everybody on the machine.

    Exit codes: 0 done, 1 refused or failed (nothing half done is ever used), 2 bad usage, 3 a control plane runs.
    """


@command.command()
@click.option("--from", "source", metavar="STORE", help="Where the rows are.")
@click.option("--to", "target", metavar="STORE", required=True, help="Where they go: an empty store.")
@config
@said_json
def migrate(source: str | None, target: str, config: Path | None, output: str) -> None:
    """Copy everything in one store into another, empty one, and compare.

    Stop every control plane first: what one still writes would be missing. Keys, tokens and nodes stay what they are,
    none is made again; the new store begins a term above every one of the old. An interrupted copy goes on where it
    was when the same command is run again, and no control plane starts on half a store. The old store says from then
    on where everything went: no control plane starts on it any more, and it can be moved again.
    """
    from llmgw.store.moving import leave, move

    old, new = _place(source, config, "--from"), _place(target, None, "--to")
    if (old.url, old.database.resolve()) == (new.url, new.database.resolve()):
        raise Failure("--from and --to are the same store", Exit.USAGE)
    with _failures(), _holding(old, fill=False) as here, _holding(new, fill=True) as there:
        moved = move(here, there, _telling(output), lambda: leave(here, there, _at(time.time())))
        said = {"from": here.shown, "to": there.shown, **_sums(moved.sums), "term": _term(moved.term)}
    url = f"to {there.shown} (its password and all)" if new.url else f"to sqlite:///{new.database.absolute()}"
    hint = f"now set [store] url {url}, keep data_dir, and start `llmgw server`"
    _say(said, output, f"moved to {there.shown}, compared row by row; {hint}")


@command.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--from", "source", metavar="STORE", help="The store; without it the config's.")
@click.option("--replace", is_flag=True, help="A backup of that name may be there: the new one takes its place.")
@config
@said_json
def backup(file: Path, source: str | None, replace: bool, config: Path | None, output: str) -> None:
    """Put one committed state of a store into FILE, while control planes go on writing.

    The file is of no dialect: it can be restored into SQLite and PostgreSQL. It is checksummed, readable by its owner
    alone, and has its name once it is whole. Keep it as safe as the store.
    """
    from llmgw.store.holding import reading
    from llmgw.store.portable import write

    _refuse_place_of(file, replace)
    with _failures(), reading(_place(source, config, "--from")) as here:
        sums = write(here, file, _telling(output))
        said = {"from": here.shown, "file": str(file), **_sums(sums), "term": _term(here.term)}
    _say(said, output, f"{file}: a whole backup of {here.shown}, {file.stat().st_size} bytes")


@command.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--to", "target", metavar="STORE", help="The store, which must be empty; without it the config's.")
@config
@said_json
def restore(file: Path, target: str | None, config: Path | None, output: str) -> None:
    """Fill an empty store from FILE, once every row in it has been checked.

    What happened after the backup is gone: keys made since are unknown, keys revoked since are valid again. Agents
    that have seen a later term are led again once the control plane has lifted its own above it, which it does.
    """
    from llmgw.store.moving import move
    from llmgw.store.portable import Backup
    from llmgw.store.schema import MIGRATIONS

    with _failures():
        backup = Backup.read(file, len(MIGRATIONS))
        with _holding(_place(target, config, "--to"), fill=True) as there:
            moved = move(backup, there, _telling(output))
            said = {"file": str(file), "to": there.shown, **_sums(moved.sums), "term": _term(moved.term)}
    _say(
        said,
        output,
        f"{there.shown} is what it was at {_at(backup.made_at)}, compared row by row; start `llmgw server`",
    )


def _place(named: str | None, config: Path | None, option: str) -> Any:
    """Where a store lies that was named, else the config's, else the one that `llmgw server` would open."""
    from llmgw.config import ConfigError, load
    from llmgw.config.problems import Refused
    from llmgw.config.secrets import secret_of
    from llmgw.store.errors import StoreUnavailable
    from llmgw.store.limits import StoreLimits
    from llmgw.store.opening import check_url
    from llmgw.store.place import Place, place

    try:
        if named is None:
            return place(load(config, os.environ).store, os.environ)
        secret = secret_of(named, os.environ)
        if secret is None:
            raise Failure("the name of a store is empty", Exit.USAGE)
        if "://" in secret.reveal():
            found = place(StoreLimits(url=secret), os.environ, option)
            check_url(found, option)
            return found
        path = Path(secret.reveal()).expanduser()
        file = path if path.is_file() or path.suffix in FILES else path / "llmgw.db"
        return Place(file.parent, file)
    except Refused as refused:
        raise Failure(refused.what, Exit.USAGE, refused.what_to_do) from None
    except ConfigError as error:
        raise Failure(f"{config or 'the environment'} has problems", Exit.USAGE, "", "",
                      tuple(map(str, error.problems))) from None  # fmt: skip
    except StoreUnavailable as error:
        raise Failure(str(error), Exit.USAGE) from None


@contextmanager
def _holding(where: Any, fill: bool) -> Iterator[Any]:
    """What is made in a service's data directory can be read by the service, also after a copy that broke off."""
    from llmgw.store.holding import holding

    try:
        with holding(where, fill) as end:
            yield end
    finally:
        as_its_folder(path for path in (*_beside(where.database), where.database_lock) if path.exists())


def _refuse_place_of(file: Path, replace: bool) -> None:
    """Before anything is read: where the backup can't go."""
    if not file.absolute().parent.is_dir():
        raise Failure(
            f"there is no folder {file.absolute().parent}", hint="make it, or name another place for the backup"
        )
    if not file.exists():
        return
    if not zipfile.is_zipfile(file):
        raise Failure(f"{file} is there, and is no backup", hint="name another place for the backup")
    if not replace:
        raise Failure(f"{file} is there already", hint="name another place for the backup, or add --replace")


def _at(wall: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall))


def _beside(database: Path) -> list[Path]:
    """The file of a store, its write-ahead log, and copies of it."""
    there = database.parent
    return [path for path in there.iterdir() if path.name.startswith(database.name)] if there.is_dir() else []


@contextmanager
def _failures() -> Iterator[None]:
    from llmgw.store.errors import DataLocked, StoreUnavailable

    try:
        yield
    except DataLocked as error:
        hint = "what it still writes would be missing" if "stop" in str(error) else "stop it first"
        raise Failure(str(error), Exit.RUNNING, hint) from None
    except StoreUnavailable as error:
        raise Failure(str(error)) from None
    except OSError as error:
        where = str(error.filename or "").removesuffix(".part")
        raise Failure(f"{where}: {error.strerror}" if where else str(error), hint="name a place with room that you may"
                      " write to") from None  # fmt: skip


def _telling(output: str) -> Callable[[Any], None]:
    """A line a table, and one now and then for a large one; not among JSON."""
    last = time.monotonic()

    def tell(progress: Any) -> None:
        nonlocal last
        now = time.monotonic()
        if progress.done or now - last > TOLD_EVERY_S:
            last = now
            state = "" if progress.done else " so far"
            click.echo(f"{progress.table}: {progress.rows} rows{state}", err=True)

    return tell if output == "table" else lambda _: None


def _sums(sums: Mapping[str, Any]) -> dict[str, Any]:
    return {"tables": [{"name": name, "rows": sum.rows, "sha256": sum.sha256} for name, sum in sums.items()]}


def _term(term: tuple[int, int]) -> dict[str, int]:
    return {"n": term[0], "epoch": term[1]}


def _say(said: Mapping[str, Any], output: str, line: str) -> None:
    if output == "json":
        click.echo(json.dumps(said, indent=2), file=sys.stdout)
    else:
        click.echo(printable(line))
