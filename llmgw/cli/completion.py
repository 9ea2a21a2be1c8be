"""``llmgw completion``: the lines a shell evaluates to complete our commands."""

import click
from click.shell_completion import get_completion_class

NAME = "llmgw"


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print what makes your shell complete llmgw.

    \b
    bash:  eval "$(llmgw completion bash)"                     in ~/.bashrc
    zsh:   eval "$(llmgw completion zsh)"                      in ~/.zshrc
    fish:  llmgw completion fish > ~/.config/fish/completions/llmgw.fish
    """
    completion = get_completion_class(shell)
    assert completion is not None
    root = ctx.find_root().command
    # The template itself: `source()` would start a bash to ask its version.
    found = completion(root, {}, NAME, f"_{NAME.upper()}_COMPLETE")
    click.echo(found.source_template % found.source_vars())
