"""``llmgw check-config``: what is wrong with a config file, before it is used."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import click

from llmgw.cli.failure import Exit, printable
from llmgw.config import Config, ConfigError, Problem, describe, load
from llmgw.config.example import example
from llmgw.core.engine_spec import Want
from llmgw.nodes.certificates import Files
from llmgw.store.place import place


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
    yield f"  agents {_agents(config)}"
    wants = {want.model: want for want in config.wants}
    for model in config.fleet.models.values():
        names = f" (also {', '.join(model.aliases)})" if model.aliases else ""
        served = [f"{e.id} ({e.engine})" for e in model.endpoints]
        served += [_under_agents(wants[model.name])] if model.name in wants else []
        others = "".join(f", then {fallback.model}" for fallback in model.fallback)
        yield f"  {model.name}{names}: {', '.join(served) or 'nothing'}{others}"


def _agents(config: Config) -> str:
    """Without a certificate nothing listens for them; without one in the config it is the data directory's."""
    chain = Files(place(config.store, os.environ).data_dir / "certs").chain()
    if config.agents.tls_cert or chain.exists():
        return f"on {config.agents.listen}"
    return f"off: no certificate ({chain}; `llmgw certs init` makes it)"


def _under_agents(want: Want) -> str:
    spec = want.spec
    if want.least == want.most:
        replicas = _count(want.most, "replica") if want.most else "no replicas"
    else:
        replicas = f"{want.least} to {want.most} replicas"
    gpus = _count(spec.gpus, "GPU") if spec.gpus else "no GPU"
    each = " each" if want.most > 1 and spec.gpus and spec.shards == 1 else ""
    shards = f", {spec.shards} shards of {gpus}" if spec.shards > 1 else f", {gpus}{each}"
    return f"{replicas} under agents ({spec.preset}{shards})"


def _scheme(certificate: str) -> str:
    return "https" if certificate else "http"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _as_json(problem: Problem) -> dict[str, str]:
    return {"file": problem.file, "key": problem.key, "what": problem.what, "what_to_do": problem.what_to_do}
