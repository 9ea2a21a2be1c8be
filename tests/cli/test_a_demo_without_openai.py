"""A demo that can't speak to its gateway says so before it starts anything."""

import sys

import pytest
from click.testing import CliRunner

from llmgw.cli import main


@pytest.mark.parametrize("words", [(), ("--cluster",)])
def test_what_is_missing_is_said_first(words, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "openai", None)
    done = CliRunner().invoke(main, ["demo", "--once", "--dir", str(tmp_path / "demo"), *words])
    assert done.exit_code == 1
    assert "the demo speaks through the openai package" in done.output
    assert "pip install openai" in done.output
    assert not (tmp_path / "demo").exists()
