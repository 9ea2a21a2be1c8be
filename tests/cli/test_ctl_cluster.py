"""ctl for the cluster against the real admin app and control plane; nodes report without a network."""

import json
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import trio
from attrs import evolve
from click.testing import CliRunner

from llmgw.admin.services import Applied
from llmgw.cli import main
from llmgw.cli.ctl import logs, nodes
from llmgw.cli.ctl.session import Session
from llmgw.control.node_views import models_json
from llmgw.core.gpus import Evidence, Severity
from llmgw.core.replicas import Phase
from tests.cli import test_ctl_meets_admin as meets
from tests.cli.test_ctl_meets_admin import ctl
from tests.clusters import plane
from tests.populated import GPUS, MODEL, populated, reports

WITHIN_S = 20


class Clustered(meets.Gateway):
    """With two nodes that go on reporting."""

    agents = "0.0.0.0:7443"

    def ask(self, function, *args):
        """Something, inside the gateway's loop."""
        return trio.from_thread.run_sync(function, *args, trio_token=self.token)

    async def services(self, store):
        services = await super().services(store)
        self.plane = await plane(store)
        await populated(self.plane)
        trio.lowlevel.spawn_system_task(self.report)
        cluster = evolve(self.plane.services(), agent_address=lambda: self.agents)
        return evolve(services, cluster=cluster, apply=self.apply, models=self.models)

    async def report(self):
        while True:
            for name in GPUS:
                if self.plane.cluster.registry.nodes.get(name):
                    reports(self.plane, name)
            await trio.sleep(0.5)

    async def apply(self, text, by, file, why, dry):
        self.applied = (text, file, why, dry)
        if "bad" in text:
            return Applied(problems=(f"{file}:models: bad",))
        if "same" in text:
            return Applied(1, stays=("m: scaled to 5 by ann",))
        replaces = ("m",) if "anew" in text else ()
        may_stop = ("n",) if "stop" in text else ()
        warnings = ("f.toml is applied again",) if "elsewhere" in text else ()
        return Applied(2, ("m: something changes",), (), replaces, may_stop=may_stop, warnings=warnings)

    def models(self):
        return models_json(self.plane.cluster, [{"name": MODEL}, {"name": "static"}])


@pytest.fixture
def gateway(tmp_path, monkeypatch) -> Iterator[Clustered]:
    for name in ("LLMGW_ADMIN_URL", "LLMGW_ADMIN_TOKEN", "LLMGW_CONFIG", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    gateway = Clustered(tmp_path / "data")
    gateway.thread.start()
    assert gateway.ready.wait(10)
    yield gateway
    gateway.token.run_sync_soon(gateway.stop.set)
    gateway.thread.join(10)


def lines(shown):
    assert shown.exit_code == 0, shown.stderr
    return [line.split() for line in shown.stdout.splitlines()]


def program(gateway, *words):
    shown = ctl(gateway, *words, "-o", "json")
    assert shown.exit_code == 0, shown.stderr
    return json.loads(shown.stdout)


# -- nodes ---------------------------------------------------------------------------------------------------


def test_nodes_are_a_line_each_with_what_is_wrong_or_why_nothing_lands(gateway):
    shown = ctl(gateway, "nodes")

    head, first, second = shown.stdout.splitlines()
    assert head.split() == "NODE STATE TARGET GPUS MEMORY REPLICAS WHY SEEN AGENT".split()
    assert "1/2" in first
    assert "8.0 / 7.0 / 2.0 of 48.0" in first
    assert "GPU 1: xid 79: fallen off the bus; nothing lands here because full" in first
    assert "1/1" in second
    assert "nothing lands here because full: 1 of 1 GPUs claimed" in second
    assert second.split()[-1] == "0.3"


def test_the_ill_ones_alone_and_the_json_is_the_api_s(gateway):
    assert [n["name"] for n in program(gateway, "nodes", "--unhealthy")["nodes"]] == ["node-1"]
    assert [n["name"] for n in program(gateway, "nodes")["nodes"]] == ["node-1", "node-2"]
    assert len(lines(ctl(gateway, "nodes", "--unhealthy"))) == 2


def test_where_none_is_ill_that_is_said_instead_of_that_there_is_none(gateway):
    ctl(gateway, "nodes", "remove", "node-1", "--yes")

    assert ctl(gateway, "nodes", "--unhealthy").stdout == "every node is well (1 node)\n"
    assert program(gateway, "nodes", "--unhealthy")["nodes"] == []


def test_nodes_are_watched(gateway):
    watched = ctl(gateway, "nodes", "--watch", "0.05", "--count", "2", "-o", "json")

    assert [len(json.loads(line)["nodes"]) for line in watched.stdout.splitlines()] == [2, 2]


def test_one_node_is_shown_whole_and_what_others_wrote_moves_no_cursor(gateway):
    shown = ctl(gateway, "nodes", "show", "node-1")

    for text in (
        "node-1: ready, schedulable",
        "labels rack=a",
        "GPU  MODEL  USABLE  CLAIMED  OURS  FOREIGN  FREE  OF",
        "xid 79",
        "a reboot of the node",
        "python [31m",
        "foreign",
        "orphan old.g1.r0: no record of it; processes 4, 5",
        "no link",
    ):
        assert text in shown.stdout
    assert "\x1b" not in shown.stdout
    assert program(gateway, "nodes", "show", "node-1")["node"]["name"] == "node-1"


def test_a_node_that_is_not_there_is_4(gateway):
    for words in (["nodes", "show", "nodw-1"], ["nodes", "lost", "nodw-1", "-m", "x"], ["nodes", "remove", "nodw-1"]):
        asked = ctl(gateway, *words)
        assert (asked.exit_code, "did you mean 'node-" in asked.stderr) == (4, True), words


def test_options_of_the_list_do_not_go_with_a_command(gateway):
    assert ctl(gateway, "nodes", "--unhealthy", "show", "node-1").exit_code == 2
    assert ctl(gateway, "nodes", "--watch", "show", "node-1").exit_code == 2


def test_an_invitation_is_its_token_alone_on_standard_output_and_a_secret(gateway):
    made = ctl(gateway, "nodes", "invite", "--valid", "2h", "--uses", "2", "-m", "rack b")

    token = made.stdout.strip()
    assert token.startswith("llmgw-join-")
    assert "\n" not in token
    assert token not in made.stderr
    assert "It is a secret, and is not shown again" in made.stderr
    assert "for 2 nodes" in made.stderr
    [_, *listed] = lines(ctl(gateway, "nodes", "invitations"))
    assert token.split("-")[2] in [row[0] for row in listed]


@pytest.mark.parametrize(
    ("agents", "url", "told"),
    [
        ("10.1.2.3:7443", "http://127.0.0.1:7442", "--server 10.1.2.3:7443"),
        ("0.0.0.0:7443", "https://gw.example:7442", "--server gw.example:7443"),
        ("[::]:7443", "https://[fd00::1]:7442", "--server [fd00::1]:7443"),
        ("", "http://127.0.0.1:7442", "agents.listen has no certificate"),
    ],
)
def test_the_ready_made_command_names_where_another_machine_may_reach_the_server(agents, url, told):
    session = Session()
    session._api = SimpleNamespace(url=url)

    advice = nodes._advice({"record": {"id": "x", "uses_max": 0}}, nodes._server(session, agents), "24h")

    assert told in "\n".join(advice)


def test_a_listener_on_every_address_of_this_machine_is_told_by_its_name(gateway):
    assert f"--server {socket.gethostname()}:7443" in ctl(gateway, "nodes", "invite").stderr


@pytest.mark.parametrize("span", ["soon", "24", "0h", "-1h"])
def test_a_span_that_is_none_is_bad_usage(gateway, span):
    assert ctl(gateway, "nodes", "invite", f"--valid={span}").exit_code == 2


def test_an_invitation_is_revoked(gateway):
    id = ctl(gateway, "nodes", "invite").stdout.split("-")[2]

    assert ctl(gateway, "nodes", "revoke-invitation", id).stdout == f"{id} revoked\n"
    assert ctl(gateway, "nodes", "revoke-invitation", "nope").exit_code == 4


def test_a_node_is_removed_after_a_question_that_says_what_runs_on(gateway):
    no = ctl(gateway, "nodes", "remove", "node-2", stdin="n\n")
    assert (no.exit_code, "1 engine will run on there, unwatched: org-llama-" in no.stderr) == (1, True)
    assert len(program(gateway, "nodes")["nodes"]) == 2

    assert ctl(gateway, "nodes", "remove", "node-2", "-m", "sold", stdin="y\n").stdout == "node-2 removed\n"
    gone = ctl(gateway, "nodes", "remove", "node-1", "--yes", "-o", "json")
    assert json.loads(gone.stdout)["node"]["name"] == "node-1"
    assert "no nodes; one joins with" in ctl(gateway, "nodes").stdout
    assert ctl(gateway, "nodes", "--unhealthy").stdout == ctl(gateway, "nodes").stdout


def test_a_node_is_given_up(gateway):
    assert ctl(gateway, "nodes", "lost", "node-2", "-m", "fire").stdout == "node-2 is given up\n"
    assert "given up by an operator" in ctl(gateway, "nodes").stdout


# -- replicas ------------------------------------------------------------------------------------------------


def test_replicas_are_a_line_each_and_shards_too(gateway):
    head, first, second = lines(ctl(gateway, "replicas", MODEL))
    assert " ".join(head) == "REPLICA MODEL STATE GEN NODES SHARDS PORTS IN FLIGHT AGE WHY"
    assert first[:4] == ["org-llama-1", MODEL, "ready", "1"]
    assert first[5:8] == ["1/1", "http", "20001"]

    [_, *shards] = lines(ctl(gateway, "replicas", "--shards"))
    assert [row[0] for row in shards] == ["org-llama-1", "org-llama-2"]
    assert {row[7] for row in shards} <= {"GPU-a0", "GPU-b0"}
    assert [row[4] for row in shards] == ["101", "102"]
    assert second[0] == program(gateway, "replicas", "org-llama-2")["replicas"][0]["name"] == "org-llama-2"
    assert ctl(gateway, "replicas", "org/lama").exit_code == 4


def test_models_show_what_is_desired_and_what_serves(gateway):
    ctl(gateway, "scale", MODEL, "3")
    head, ours, static = lines(ctl(gateway, "models"))

    at = head.index("DESIRED")
    assert ours[at : at + 3] == ["3", "(scaled)", "2"]
    assert static[at : at + 2] == ["-", "-"]


def test_logs_are_text_with_their_age_beside_them_and_harmless(gateway):
    on = {one["shards"][0]["node"]: one["name"] for one in program(gateway, "replicas")["replicas"]}
    shown = ctl(gateway, "logs", on["node-1"])

    assert shown.stdout == "loading\n [2Jweights     done\n"
    assert f"{on['node-1']}.g" in shown.stderr
    assert "on node-1: node-1 has no link" in shown.stderr
    assert "this was kept of it, its last line is" in shown.stderr

    nothing = ctl(gateway, "logs", on["node-2"], "--bytes", "100")
    assert (nothing.exit_code, nothing.stdout) == (1, "")
    assert "node-2 has no link" in nothing.stderr
    assert ctl(gateway, "logs", on["node-1"], "--shard", "1").exit_code == 4
    assert ctl(gateway, "logs", "nope").exit_code == 4


def test_a_replica_without_a_place_is_shown_by_what_its_last_incarnation_wrote(gateway):
    on = {one["shards"][0]["node"]: one["name"] for one in program(gateway, "replicas")["replicas"]}
    rows = gateway.plane.cluster.rows
    for name in on.values():
        rows[name] = evolve(rows[name], phase=Phase.WAITING, shards=(), crashes=3, retry_at=2e9)

    kept = ctl(gateway, "logs", on["node-1"])

    assert (kept.exit_code, kept.stdout) == (0, "loading\n [2Jweights     done\n")
    assert kept.stderr.startswith(f"{on['node-1']}.g1.r0 on node-1: ")
    assert "; this was kept of it, its last line is " in kept.stderr
    assert kept.stderr.endswith(" s old\n")
    assert program(gateway, "logs", on["node-1"])["instance"] == f"{on['node-1']}.g1.r0"
    nothing = ctl(gateway, "logs", on["node-2"])
    assert (nothing.exit_code, "it has no place now" in nothing.stderr) == (4, True)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"text": "", "age_s": None, "error": ""}, "m-1.g3.r0 on n: it has written nothing yet\n"),
        ({"text": "boom", "age_s": None, "error": "gone"}, "gone; this was kept of it, nobody knows how old its last"),
        ({"text": "boom", "age_s": 240.0, "error": ""}, "m-1.g3.r0 on n: its last line is 4 min old\n"),
    ],
)
def test_an_age_that_is_not_known_is_not_that_there_is_nothing(answer, says):
    session = Session()
    session._api = SimpleNamespace(ask=lambda *_: {"instance": "m-1.g3.r0", "node": "n", **answer})

    shown = CliRunner().invoke(logs.command, ["m-1"], obj=session)

    assert (shown.exit_code, shown.stdout) == (0, answer["text"] + "\n")
    assert says in shown.stderr


def test_a_model_is_restarted_by_name_though_there_is_a_slash_in_it(gateway):
    shown = ctl(gateway, "restart", MODEL, "-m", "stuck")

    assert shown.stdout == "org-llama-1 will be replaced\norg-llama-2 will be replaced\n"
    assert program(gateway, "restart", "org-llama-1") == {"replicas": ["org-llama-1"]}
    assert ctl(gateway, "restart", "nope").exit_code == 4
    assert program(gateway, "audit")["audit"][1]["why"] == "stuck"


def test_a_model_is_scaled_and_reset(gateway):
    assert ctl(gateway, "scale", MODEL, "4", "-m", "a demo").stdout == f"{MODEL}: 4 wanted\n"
    assert ctl(gateway, "scale", MODEL, "--reset").stdout == f"{MODEL}: 2 wanted, as is written\n"
    for words in ([MODEL], [MODEL, "2", "--reset"], [MODEL, "-1"], [MODEL, "many"]):
        assert ctl(gateway, "scale", *words).exit_code == 2, words
    assert ctl(gateway, "scale", "nope", "1").exit_code == 4


# -- configs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("anew", "engines of m would be started anew\n  - m: something changes\n"),
        ("route", "no engine would be started anew\n  - m: something changes\n"),
        (
            "stop",
            "running engines of n would be stopped where a replacement waits for room\n  - m: something changes\n",
        ),
        (
            "anew, stop",
            "engines of m would be started anew\n"
            "running engines of n would be stopped where a replacement waits for room\n  - m: something changes\n",
        ),
        ("same", "nothing would change\n  = m: scaled to 5 by ann\n"),
    ],
)
def test_diff_says_what_restarts_and_what_only_reroutes(gateway, tmp_path, text, says):
    (tmp_path / "f.toml").write_text(text)

    shown = ctl(gateway, "diff", str(tmp_path / "f.toml"))

    assert (shown.exit_code, shown.stdout) == (0, says)
    assert gateway.applied == (text, str(tmp_path / "f.toml"), "", True)


def test_a_config_with_a_problem_is_2_for_diff_too(gateway, tmp_path):
    (tmp_path / "f.toml").write_text("bad")

    shown = ctl(gateway, "diff", str(tmp_path / "f.toml"))

    assert (shown.exit_code, "this config would be refused" in shown.stderr) == (2, True)


def test_apply_carries_its_reason(gateway, tmp_path):
    (tmp_path / "f.toml").write_text("route")

    assert ctl(gateway, "apply", str(tmp_path / "f.toml"), "-m", "growth").exit_code == 0
    assert gateway.applied[2:] == ("growth", False)
    assert program(gateway, "audit")["audit"][0]["why"] == "growth"


def test_what_will_be_undone_is_a_warning_beside_the_answer(gateway, tmp_path):
    (tmp_path / "f.toml").write_text("elsewhere")

    shown = ctl(gateway, "apply", str(tmp_path / "f.toml"))

    assert (shown.exit_code, shown.stdout) == (0, "revision 2: 1 change\n  - m: something changes\n")
    assert shown.stderr == "warning: f.toml is applied again\n"
    assert program(gateway, "apply", str(tmp_path / "f.toml"))["warnings"] == ["f.toml is applied again"]


def test_history_is_listed_and_gone_back_to(gateway):
    [head, row] = lines(ctl(gateway, "history"))
    assert (head[0], row[0], row[3], row[4]) == ("REVISION", "1", "start", "llmgw.toml")

    assert ctl(gateway, "rollback", "1", "-m", "worse").stdout == "revision 2: 1 change\n  - models of revision 1\n"
    assert ctl(gateway, "rollback", "9").exit_code == 4
    assert ctl(gateway, "rollback", "first").exit_code == 2


# -- explanations --------------------------------------------------------------------------------------------


def test_a_placement_is_explained_as_decided_and_supposed_and_by_its_old_name(gateway):
    told = ctl(gateway, "explain", "placement", "org-llama-1")
    assert "org-llama-1: goes to node-" in told.stdout
    assert "decided (" in told.stdout

    words = [MODEL, "--what-if", "gpu_memory=23GiB", "--what-if", "without node-2"]
    supposed, alias = (ctl(gateway, *path, *words) for path in (["explain", "placement"], ["explain-placement"]))
    assert "needs 23.0 GiB, free 14.0 (claimed 8.0, foreign 2.0)" in supposed.stdout
    assert "xid 79" in supposed.stdout
    assert alias.stdout == supposed.stdout
    assert program(gateway, "explain", "placement", MODEL)["verdict"].startswith("no node fits")

    assert ctl(gateway, "explain", "placement", "nope").exit_code == 4
    assert ctl(gateway, "explain", "placement", MODEL, "--what-if", "gpus").exit_code == 2


def test_nodes_and_gpus_are_explained(gateway):
    assert "it reported (" in ctl(gateway, "explain", "node", "node-1").stdout
    assert "  - a reboot of the node" in ctl(gateway, "explain", "gpu", "node-1", "1").stdout
    assert ctl(gateway, "explain", "node", "node-9").exit_code == 4
    assert ctl(gateway, "explain", "gpu", "node-1", "9").exit_code == 4


def test_the_command_that_clears_a_gpu_is_good_as_printed(gateway, monkeypatch):
    looked_at = Evidence(
        "row remap failed", Severity.EXCLUDED, "no spare rows", 1.0, 2.0, "an operator, once looked at"
    )
    monkeypatch.setitem(GPUS, "node-2", (evolve(GPUS["node-2"][0], evidence=(looked_at,)),))
    gateway.ask(reports, gateway.plane, "node-2")

    printed = program(gateway, "explain", "gpu", "node-2", "0")["next_command"]

    assert printed == "llmgw ctl gpus clear node-2 0 'row remap failed' -m WHY"
    assert ctl(gateway, *shlex.split(printed)[2:]).exit_code != 2


def test_decisions_are_listed(gateway):
    [head, *rows] = lines(ctl(gateway, "decisions", "org-llama-1"))

    assert head == "WHEN WHAT REPLICA MODEL VERDICT".split()
    assert {row[3] for row in rows} == {"org-llama-1"}
    none = ctl(gateway, "decisions", "nope")
    assert (none.exit_code, none.stderr) == (0, "nothing was decided about nope\n")


# -- events --------------------------------------------------------------------------------------------------


def test_events_are_a_line_each_and_narrowed(gateway):
    shown = ctl(gateway, "events", "--kind", "replica.started")

    assert [line.split()[3] for line in shown.stdout.splitlines()] == ["replica.started"] * 2
    assert (
        program(gateway, "events", "--subject", "org-llama-1", "--limit", "1")["events"][0]["subject"] == "org-llama-1"
    )
    last = program(gateway, "events")["last"]
    assert ctl(gateway, "events", "--since", str(last)).stdout == ""
    assert len(ctl(gateway, "events", "--since", str(last - 1)).stdout.splitlines()) == 1
    assert ctl(gateway, "events", "--count", "1").exit_code == 2


def test_a_list_that_was_cut_says_so(gateway):
    assert "up to" in ctl(gateway, "events", "--since", "0", "--limit", "1").stderr


def following(gateway, *words):
    command = [sys.executable, "-m", "llmgw", "ctl", "--data-dir", str(gateway.place.data_dir), "events", "--follow"]
    return subprocess.Popen([*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_following_prints_json_lines_as_they_happen_and_ctrl_c_is_0(gateway):
    with following(gateway, "-o", "json", "--limit", "1") as process:
        before = json.loads(process.stdout.readline())
        gateway.ask(gateway.plane.events.tell, "node.back", "node-1", "node-1 is \x1b[1mback")
        after = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        assert process.wait(WITHIN_S) == 0

    assert (after["seq"], after["sentence"]) == (before["seq"] + 1, "node-1 is \x1b[1mback")


def test_following_ends_after_so_many_and_prints_nothing_that_moves_a_cursor(gateway):
    last = program(gateway, "events")["last"]
    gateway.ask(gateway.plane.events.tell, "node.back", "node-1", "node-1 is \x1b[1mback")
    shown = ctl(gateway, "events", "--follow", "--since", str(last), "--count", "1")

    assert shown.exit_code == 0
    assert shown.stdout.endswith("node.back           node-1 is  [1mback\n")


def test_a_token_that_may_not_is_refused_and_not_asked_again(gateway):
    assert ctl(gateway, "--token", "nonsense", "events", "--follow").exit_code == 1


def test_where_no_gateway_runs_there_is_nobody_to_follow(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    command = ["ctl", "--data-dir", str(tmp_path), "events", "--follow"]

    assert CliRunner().invoke(main, command).exit_code == 6
