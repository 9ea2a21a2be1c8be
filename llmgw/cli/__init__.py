"""The command ``llmgw``: which commands there are. Each is imported only when it is called, so help is quick."""

import importlib
import importlib.util
import os
import sys
from typing import Any

import click

from llmgw import __version__

# Name -> module with a click command called ``command``, and its line in the help. One whose module is not
# part of this installation is not shown.
COMMANDS = {
    "server": ("llmgw.cli.server", "Run the gateway."),
    "check-config": ("llmgw.cli.check_config", "Read a config file and say what is wrong with it."),
    "import": ("llmgw.cli.importing", "Turn another gateway's config into llmgw.toml."),
    "ctl": ("llmgw.cli.ctl", "Ask and tell a running gateway: keys, requests, models, endpoints."),
    "demo": ("llmgw.cli.demo", "Three simulated engines and a gateway, to look at."),
    "sim": ("llmgw.cli.sim", "Simulated engines."),
    "completion": ("llmgw.cli.completion", "Print the lines that make your shell complete llmgw."),
}


class LazyGroup(click.Group):
    """A group that knows its commands' names and summaries without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, (module, _) in COMMANDS.items() if importlib.util.find_spec(module)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS or not importlib.util.find_spec(COMMANDS[cmd_name][0]):
            return None
        command = importlib.import_module(COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **kwargs)
        except Exception as error:
            if os.environ.get("LLMGW_DEBUG"):
                raise
            says = " ".join(str(error).split()) or type(error).__name__
            click.echo(f"llmgw: {says} ({type(error).__name__}; LLMGW_DEBUG=1 shows where)", err=True)
            sys.exit(1)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="llmgw")
def main() -> None:
    """One OpenAI-compatible address in front of a few GPU machines."""
