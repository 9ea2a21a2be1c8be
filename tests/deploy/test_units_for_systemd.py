"""The units in deploy/systemd/: systemd understands them, and only a shutdown drains."""

import re
import shutil
import subprocess
from configparser import RawConfigParser
from pathlib import Path

import pytest

from agent.draining import BEYOND_S
from llmgw.cli.agent_drain import drain
from llmgw.config.units import seconds_of

DEPLOY = Path(__file__).parents[2] / "deploy" / "systemd"
AGENT, DRAIN = DEPLOY / "llmgw-agent.service", DEPLOY / "llmgw-agent-drain.service"
REBOOT_S = 30 * 60.0  # systemd ends a reboot's job after this


def unit(file: Path) -> RawConfigParser:
    found = RawConfigParser(strict=False)
    found.optionxform = str
    found.read(file)
    return found


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze here")
@pytest.mark.parametrize("file", sorted(DEPLOY.glob("*.service")), ids=lambda file: file.name)
def test_systemd_finds_nothing_wrong(file, tmp_path):
    # All of them, so that each finds the others; the program is not installed where they expect it.
    for one in DEPLOY.glob("*.service"):
        (tmp_path / one.name).write_text(one.read_text().replace("/opt/llmgw/bin/llmgw", "/bin/true"))
    said = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / file.name)], capture_output=True, text=True, timeout=60
    )
    ours = [line for line in said.stderr.splitlines() if "llmgw" in line]
    assert (said.returncode, ours) == (0, [])


def test_a_restart_of_the_agent_stops_nothing_else():
    about = unit(DRAIN)["Unit"]
    assert "llmgw-agent.service" in about["After"]  # so it stops before the agent does
    bound = {"Requires", "Requisite", "BindsTo", "PartOf", "PropagatesStopTo", "StopPropagatedFrom", "Upholds"}
    assert not bound & set(about)
    assert "drain" not in AGENT.read_text()
    assert about["RefuseManualStop"] == "yes"
    assert "DefaultDependencies" not in about  # they are what a shutdown stops it by


def test_the_network_is_still_there():
    about = unit(DRAIN)["Unit"]
    assert "network-online.target" in about["After"]
    assert "network-online.target" in about["Wants"]


def test_systemd_waits_for_the_grace_and_for_what_comes_after_it():
    service = unit(DRAIN)["Service"]
    assert (service["Type"], service["RemainAfterExit"], service["ExecStart"]) == ("oneshot", "yes", "/bin/true")
    [grace] = re.findall(r"--grace (\S+)", service["ExecStop"])
    assert seconds_of(grace) + BEYOND_S < seconds_of(service["TimeoutStopSec"]) < REBOOT_S


def test_its_command_is_one_of_ours_and_uses_the_agents_own_folder():
    words = unit(DRAIN)["Service"]["ExecStop"].split()
    assert words[:3] == ["/opt/llmgw/bin/llmgw", "agent", "drain"]
    options = drain.make_context("drain", words[3:]).params
    started = unit(AGENT)["Service"]["ExecStart"].split()
    assert [str(options["file"]), options["data_dir"]] == [started[3], started[5]]
