"""``llmgw check-config``: what is wrong with a config file, before it is used."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import click

from llmgw.cli.failure import Exit, printable
from llmgw.config import Config, ConfigError, Problem, describe, load
from llmgw.config.example import example


@click.command(name="check-config")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--example", "show_example", is_flag=True, help="Print a file with every setting and its default.")
def command(file: Path | None, output: str, show_example: bool) -> None:
    """Read FILE as the server would, environment included, and print file:key: what is wrong, what to do.

    The exit code is 0 for a file that works, warnings or not, and 2 for one that does not.
    """
    if show_example:
        click.echo(example(), nl=False)
        return
    if file is None:
        raise click.UsageError("name a FILE, or ask for --example")
    try:
        config = load(file, os.environ)
    except ConfigError as error:
        _say_problems(error.problems, output)
        raise SystemExit(int(Exit.USAGE)) from None
    _say_fine(config, output)


def _say_problems(problems: tuple[Problem, ...], output: str) -> None:
    if output == "json":
        click.echo(json.dumps({"ok": False, "problems": [_as_json(p) for p in problems], "warnings": []}, indent=2))
        return
    for problem in problems:
        click.echo(printable(str(problem)), err=True)


def _say_fine(config: Config, output: str) -> None:
    if output == "json":
        warnings = [_as_json(warning) for warning in config.warnings]
        click.echo(json.dumps({"ok": True, "problems": [], "warnings": warnings, "config": describe(config)}, indent=2))
        return
    for warning in config.warnings:
        click.echo(f"warning: {printable(str(warning))}", err=True)
    for line in _summary(config):
        click.echo(printable(line))


def _summary(config: Config) -> Iterator[str]:
    models, endpoints = len(config.fleet.models), len(config.fleet.endpoints)
    yield f"{config.file}: fine, {_count(models, 'model')} and {_count(endpoints, 'endpoint')}"
    yield f"  clients on {_scheme(config.listen.tls_cert)}://{config.listen.listen}"
    yield f"  operators on {_scheme(config.admin.tls_cert)}://{config.admin.listen}"
    for model in config.fleet.models.values():
        names = f" (also {', '.join(model.aliases)})" if model.aliases else ""
        served = ", ".join(f"{e.id} ({e.engine})" for e in model.endpoints) or "nothing"
        others = "".join(f", then {fallback.model}" for fallback in model.fallback)
        yield f"  {model.name}{names}: {served}{others}"


def _scheme(certificate: str) -> str:
    return "https" if certificate else "http"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _as_json(problem: Problem) -> dict[str, str]:
    return {"file": problem.file, "key": problem.key, "what": problem.what, "what_to_do": problem.what_to_do}
