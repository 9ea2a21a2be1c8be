"""`llmgw agent drain` as a command: what it needs to know, and how it ends."""

import pytest
from click.testing import CliRunner

from agent import atomic, draining
from agent.membership import Joined
from agent.places import places
from agent.proc import boot_id
from llmgw.cli.agent import command
from llmgw.core.agent_settings import AgentSettings


@pytest.fixture
def folder(tmp_path):
    """Of a node that belongs to a cluster which is nowhere to be found."""
    found = places(AgentSettings(data_dir=str(tmp_path / "agent")), {})
    found.prepare()
    atomic.write_value(found.data / "node.json", Joined("c", "node-1", "credential", "token"))
    atomic.write(found.data / "ca.pem", b"")
    return found.data


def run(*words):
    return CliRunner().invoke(command, list(words), env={"LLMGW_CONFIG": ""})


def test_a_node_of_no_cluster_has_nothing_to_drain_and_a_shutdown_goes_on(tmp_path):
    ended = run("drain", "--data-dir", str(tmp_path / "none"))
    assert (ended.exit_code, ended.output) == (0, f"nothing to drain: {tmp_path}/none belongs to no cluster\n")
    assert not (tmp_path / "none").exists()


def test_without_a_control_plane_it_ends_with_6(folder, monkeypatch):
    monkeypatch.setattr(draining, "REACH_S", 0.2)
    ended = run("drain", "--data-dir", str(folder), "--server", "127.0.0.1:1")
    assert (ended.exit_code, "no control plane answers" in ended.output) == (6, True)


def test_it_takes_the_options_of_the_agent_too(folder, monkeypatch):
    monkeypatch.setattr(draining, "REACH_S", 0.2)
    ended = run("--data-dir", str(folder), "--server", "127.0.0.1:1", "drain")
    assert ended.exit_code == 6


def test_a_config_file_says_where_the_control_plane_is(folder, monkeypatch, tmp_path):
    monkeypatch.setattr(draining, "REACH_S", 0.2)
    file = tmp_path / "agent.toml"
    file.write_text(
        f'[agent]\nservers = ["127.0.0.1:1"]\ndata_dir = "{folder}"\njoin_token = "@/etc/llmgw/gone.token"\n'
    )
    assert run("drain", "--config", str(file)).exit_code == 6


def test_the_reason_and_the_boot_are_said_as_elsewhere(folder, monkeypatch):
    asked = []

    class Draining:
        def __init__(self, *said, **_):
            asked.append(said[3])

        async def run(self):
            return draining.Ended(draining.End.ASKED, "")

    monkeypatch.setattr(draining, "Draining", Draining)
    server = ("--data-dir", str(folder), "--server", "127.0.0.1:1")
    for words in (["-m", "fans"], ["--why", "fans"], ["--reason", "fans", "--boot", "b2"]):
        assert run("drain", *server, *words).exit_code == 0
    assert [(one.why, one.boot) for one in asked] == [("fans", boot_id()), ("fans", boot_id()), ("fans", "b2")]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "it is not said where the control plane is"),
        (["--server", "nonsense"], "--server: "),
        (["--server", "h:1", "--grace", "soon"], "no duration"),
        (["--server", "h:1", "--grace", "0"], "more than 0"),
        (["--server", "h:1", "--grace", "8d"], "longer than 7d"),
        (["--server", "h:1", "--at-deadline", "never"], "at-deadline"),
    ],
)
def test_what_makes_no_sense_ends_with_2(folder, words, says):
    ended = run("drain", "--data-dir", str(folder), *words)
    assert (ended.exit_code, says in ended.output) == (2, True), ended.output


def test_a_membership_that_is_garbage_ends_with_1(folder):
    (folder / "node.json").write_text("{")
    ended = run("drain", "--data-dir", str(folder), "--server", "h:1")
    assert (ended.exit_code, "can't be read" in ended.output) == (1, True)


def test_the_boot_is_the_kernels_unless_the_machine_is_simulated(monkeypatch):
    monkeypatch.setenv("LLMGW_SIM_BOOT", "another")
    assert boot_id.__wrapped__() == "another"
    monkeypatch.delenv("LLMGW_SIM_BOOT")
    assert len(boot_id.__wrapped__()) == 36
