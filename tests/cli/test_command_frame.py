"""The command itself: quick, helpful, one line when it fails."""

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from llmgw import __version__
from llmgw.cli import COMMANDS, main
from llmgw.cli.ctl import COMMANDS as CTL

SLOW_TO_IMPORT = ("trio", "httpx", "rich", "sqlite_utils", "quart_trio", "hypercorn")


@pytest.mark.parametrize("words", [["--help"], ["ctl", "--help"], ["--version"]])
def test_help_imports_nothing_that_is_slow(words):
    """Shell completion runs the same code at every press of Tab."""
    code = f"import sys\nfrom llmgw.cli import main\ntry: main({words!r})\nexcept SystemExit: print(*sys.modules)"

    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert not [name for name in SLOW_TO_IMPORT if name in out.splitlines()[-1].split()]


def test_the_version_is_the_package_s():
    assert CliRunner().invoke(main, ["--version"]).stdout == f"llmgw, version {__version__}\n"


def test_every_command_that_is_listed_is_there_and_has_help():
    for path in [["ctl", name] for name in CTL] + [[name] for name in main.list_commands(click.Context(main))]:
        shown = CliRunner().invoke(main, [*path, "--help"])
        assert shown.exit_code == 0, (path, shown.output)
        assert len(shown.stdout) > 60


def test_every_leaf_of_ctl_takes_the_output_option():
    root = click.Context(main)
    ctl = main.get_command(root, "ctl")
    assert isinstance(ctl, click.Group)
    for name in CTL:
        command = ctl.get_command(root, name)
        leaves = command.commands.values() if isinstance(command, click.Group) else [command]
        for leaf in leaves:
            assert any("--output" in p.opts for p in leaf.params), (name, leaf.name)


def test_a_command_that_is_not_there_is_2():
    assert CliRunner().invoke(main, ["frobnicate"]).exit_code == 2
    assert set(COMMANDS) >= {"server", "ctl", "sim", "demo", "import", "check-config", "completion"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_given_its_completion(shell):
    shown = CliRunner().invoke(main, ["completion", shell])

    assert shown.exit_code == 0
    assert f"_LLMGW_COMPLETE={shell}_complete" in shown.stdout


def test_completion_knows_commands_below_commands():
    env = {"_LLMGW_COMPLETE": "bash_complete", "COMP_WORDS": "llmgw ctl ke", "COMP_CWORD": "2", "PATH": "/usr/bin:/bin"}

    code = "from llmgw.cli import main; main(prog_name='llmgw')"
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False).stdout

    assert out.split() == ["plain,keys"]


def test_what_nobody_thought_of_is_one_line_without_a_traceback(monkeypatch):
    def explode(_: object) -> None:
        raise ZeroDivisionError("two\nlines")

    monkeypatch.setattr(type(main), "get_command", lambda *_: click.Command("boom", callback=lambda: explode(0)))

    failed = CliRunner().invoke(main, ["boom"])

    assert failed.exit_code == 1
    assert failed.stderr == "llmgw: two lines (ZeroDivisionError; LLMGW_DEBUG=1 shows where)\n"


def test_a_server_without_keys_off_loopback_blames_the_option_that_asked_for_it(tmp_path):
    (tmp_path / "c.toml").write_text('[server]\nlisten = "0.0.0.0:7440"\n')

    refused = CliRunner().invoke(main, ["server", "--no-auth", "-c", str(tmp_path / "c.toml")])

    assert refused.exit_code == 2
    assert refused.stderr.startswith("command line:--no-auth: ")
    assert "LLMGW_" not in refused.stderr
