"""Where an agent asks, as it is said on its command line."""

import pytest
from click.testing import CliRunner

from llmgw.cli import main


@pytest.mark.parametrize("words", [("agent", "--data-dir"), ("sim", "node", "--dir")])
def test_two_addresses_in_one_are_refused(words, tmp_path):
    done = CliRunner().invoke(main, [*words, str(tmp_path), "--server", "gw-1:7443,gw-2:7443"])

    assert done.exit_code == 2
    assert "--server: 'gw-1:7443,gw-2:7443' is no address" in done.stderr
    assert list(tmp_path.iterdir()) == []
