"""`ps` shows a command line to everybody on the machine, so nothing that is read or run shows a join token there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHOWN = [
    ROOT / "README.md",
    *(ROOT / "docs").glob("*.md"),
    *(file for file in (ROOT / "deploy").rglob("*") if file.is_file()),
    ROOT / "llmgw" / "cli" / "demo_cluster.py",
]
GIVEN = re.compile(r"""(?:--join(?:[ =]|", )f?["']?|join_token = f?["'])(?P<first>[^\s"'`;,)])""")


@pytest.mark.parametrize("file", [f for f in SHOWN if GIVEN.search(f.read_text())], ids=lambda f: f.name)
def test_a_join_token_is_given_as_a_file(file):
    given = [found for found in GIVEN.finditer(file.read_text()) if found["first"] != "@"]
    assert not given, [found.group() for found in given]


def test_the_places_that_give_one_are_found():
    found = {file.name for file in SHOWN if GIVEN.search(file.read_text())}
    assert found >= {"README.md", "migrate.md", "llmgw-agent.service", "demo_cluster.py"}
