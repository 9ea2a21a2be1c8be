"""``llmgw import``: another gateway's config as llmgw.toml."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import yaml

from llmgw.cli.failure import Exit, Failure
from llmgw.cli.import_litellm import Imported, imported
from llmgw.config import ConfigError, load

FILE_MAX = 4 * 1024**2


@click.group(name="import")
def command() -> None:
    """Turn another gateway's config into llmgw.toml."""


@command.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write here, not to the screen.")
@click.option("--force", is_flag=True, help="Overwrite what is there.")
def litellm(file: Path, output: Path | None, force: bool) -> None:
    """FILE is a LiteLLM proxy's config.yaml. What it could not carry is said on standard error and in comments."""
    result = imported(_parsed(file), file.name, os.environ)
    _prove(result)
    for note in result.notes:
        click.echo(note, err=True)
    if output is None:
        click.echo(result.text, nl=False)
        return
    _write(output, result.text, force)
    first = "put the keys where it says, then " if result.credentials else ""
    click.echo(f"{output} is written; next: {first}llmgw check-config {output}", err=True)


def _parsed(file: Path) -> object:
    with file.open("rb") as stream:
        content = stream.read(FILE_MAX + 1)
    if len(content) > FILE_MAX:
        raise Failure(f"{file} is longer than {FILE_MAX} bytes", Exit.USAGE, "name LiteLLM's config.yaml")
    try:
        return yaml.safe_load(content)
    except yaml.MarkedYAMLError as error:  # its whole text would show the line, and keys may stand there
        where = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise Failure(f"{file} is no YAML: {error.problem}{where}", Exit.USAGE) from None
    except (yaml.YAMLError, RecursionError, ValueError):
        raise Failure(f"{file} is no YAML", Exit.USAGE) from None


def _prove(result: Imported) -> None:
    """What is handed over loads, once every key is where the notes say."""
    try:
        with TemporaryDirectory() as folder:
            for name in result.credentials:
                (Path(folder) / name).write_text("to-be-put-here", encoding="ascii")
            load(None, {"CREDENTIALS_DIRECTORY": folder}, result.text)
    except ConfigError as error:
        problems = tuple(map(str, error.problems))
        raise Failure("what came out is no good config; please report this", problems=problems) from None


def _write(output: Path, text: str, force: bool) -> None:
    try:
        with output.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise Failure(f"{output} is there already", hint="choose another name, or --force") from None
    except OSError as error:
        raise Failure(f"{output} can't be written: {error.strerror}") from None
