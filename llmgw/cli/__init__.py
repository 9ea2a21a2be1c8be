"""The command ``llmgw``: which commands there are, and how it fails."""

import os
import sys
from typing import Any

import click

from llmgw import __version__
from llmgw.cli.lazy import LazyGroup

COMMANDS = {
    "server": ("llmgw.cli.server", "Run the gateway."),
    "agent": ("llmgw.cli.agent", "Run engines on this node for a control plane."),
    "store": ("llmgw.cli.store", "Move the store to another database, back it up, restore it."),
    "certs": ("llmgw.cli.certs", "Certificates for the agents' listener."),
    "check-config": ("llmgw.cli.check_config", "Read a config file and say what is wrong with it."),
    "import": ("llmgw.cli.importing", "Turn another gateway's config into llmgw.toml."),
    "ctl": ("llmgw.cli.ctl", "Ask and tell a running gateway: keys, requests, models, endpoints."),
    "console": ("llmgw.cli.console", "Watch and run a cluster in the terminal."),
    "demo": ("llmgw.cli.demo", "Three simulated engines and a gateway, to look at."),
    "sim": ("llmgw.cli.sim", "Simulated engines."),
    "completion": ("llmgw.cli.completion", "Print what makes your shell complete llmgw."),
}


class Main(LazyGroup):
    """Every failure is one line and an exit code; LLMGW_DEBUG=1 shows where it came from."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **kwargs)
        except Exception as error:
            if os.environ.get("LLMGW_DEBUG"):
                raise
            says = " ".join(str(error).split()) or "failed"
            click.echo(f"llmgw: {says} ({type(error).__name__}; LLMGW_DEBUG=1 shows where)", err=True)
            sys.exit(1)


@click.group(cls=Main, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="llmgw")
def main() -> None:
    """One OpenAI-compatible address in front of a few GPU machines."""
