"""Which gateway ``llmgw console`` opens, and how it ends where it can't."""

import sys
from types import ModuleType

import click
import pytest
from click.testing import CliRunner

from console.widgets.tones import THEMES
from llmgw.cli import console, main
from llmgw.cli.ctl.contexts import Contexts, Named


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """Where a console was opened, instead of drawing it."""
    for name in ("LLMGW_ADMIN_URL", "LLMGW_ADMIN_TOKEN", "LLMGW_CONFIG", "XDG_DATA_HOME", "LLMGW_STORE__URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    found, app = [], ModuleType("console.app")
    app.run = lambda where, read_only, theme: found.append((where, read_only, theme)) or ""
    monkeypatch.setitem(sys.modules, "console.app", app)
    monkeypatch.setattr(console, "is_terminal", lambda: True)
    return found


def llmgw(*words, **env):
    return CliRunner().invoke(main, ["console", *words], env=env)


def test_what_is_said_on_the_command_line_is_where_it_opens(opened):
    done = llmgw("--url", "https://gw-1:7442/,https://gw-2:7442", "--token", "t", "--read-only")

    assert done.exit_code == 0, done.output
    [(where, read_only, _theme)] = opened
    assert (where.urls, where.token, where.ca, read_only) == (
        ("https://gw-1:7442", "https://gw-2:7442"),
        "t",
        None,
        True,
    )


def test_without_a_word_it_opens_on_the_context_in_use(opened):
    contexts = Contexts.read()
    contexts.named, contexts.current = {"prod": Named("https://gw-1:7442", "secret")}, "prod"
    contexts.write()

    assert llmgw().exit_code == 0
    assert (opened[0][0].urls, opened[0][0].token, opened[0][1]) == (("https://gw-1:7442",), "secret", False)


def test_a_token_is_read_from_a_file_and_not_from_the_environment_then(opened, tmp_path):
    (tmp_path / "token").write_text("from-file\n")

    llmgw("--url", "http://gw:7442", "--token-file", str(tmp_path / "token"), LLMGW_ADMIN_TOKEN="from-env")

    assert opened[0][0].token == "from-file"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ((), 6, "no gateway runs here"),
        (("--data-dir", "{tmp}"), 6, "no gateway runs on"),
        (("--context", "x"), 4, "no context is called 'x'"),
        (("--url", "gw"), 2, "is no admin URL"),
        (("--url", "http://gw", "--token", "t", "--token-file", "f"), 2, "exclude each other"),
        (("--url", "http://gw", "--token-file", "{tmp}/none"), 2, "token file"),
        (("--url", "http://gw", "--token", "t", "--ca", "{tmp}/none"), 2, "check --ca"),
    ],
)
def test_where_it_can_not_open_it_ends_as_ctl_does(opened, tmp_path, words, code, says):
    done = llmgw(*(word.format(tmp=tmp_path) for word in words))

    assert (done.exit_code, opened) == (code, [])
    assert says in done.stderr


def test_why_it_ended_by_itself_is_said_and_is_a_failure(opened, monkeypatch):
    monkeypatch.setattr(sys.modules["console.app"], "run", lambda *_: "no valid admin token was sent")

    done = llmgw("--url", "http://gw:7442", "--token", "t")

    assert (done.exit_code, done.stderr) == (1, "llmgw: no valid admin token was sent\n")


def test_without_a_terminal_it_says_what_to_use_instead(opened, monkeypatch):
    monkeypatch.undo()

    done = llmgw("--url", "http://gw:7442", "--token", "t")

    assert done.exit_code == 2
    assert "ssh -t" in done.stderr
    assert "llmgw ctl" in done.stderr


def test_where_it_is_not_installed_it_says_how_to_get_it(opened, monkeypatch):
    monkeypatch.setattr(console, "is_installed", lambda: False)

    done = llmgw("--url", "http://gw:7442", "--token", "t")

    assert done.exit_code == 1
    assert "pip install 'llmgw[console]'" in done.stderr


def test_the_console_has_the_options_of_ctl():
    ctl = main.get_command(click.Context(main), "ctl")
    options = {name for one in ctl.params for name in one.opts} - {"-o", "--output"}

    assert options | {"--read-only", "--theme"} == {name for one in console.command.params for name in one.opts}


def test_the_themes_that_are_offered_are_those_that_there_are():
    (theme,) = (one for one in console.command.params if one.name == "theme")

    assert list(theme.type.choices) == list(THEMES)


def test_a_terminal_that_can_not_draw_is_told_and_not_drawn_on(opened):
    done = llmgw("--url", "http://gw:7442", "--token", "t", TERM="dumb")

    assert (done.exit_code, opened) == (2, [])
    assert "TERM=dumb" in done.output
    assert "llmgw ctl" in done.output
