"""``llmgw check-config`` as a person and as a script meet it."""

import json

import pytest
from click.testing import CliRunner

from llmgw.cli import main

GOOD = '[[models]]\nname = "m"\n[[models.endpoints]]\nurl = "http://h:1"\napi_key = "sk-1"\n'


def run(*arguments, **environ):
    environ = {"STATE_DIRECTORY": "/nowhere", **environ}
    return CliRunner().invoke(main, ["check-config", *map(str, arguments)], env=environ)


def test_a_good_file_is_fine(tmp_path):
    file = tmp_path / "llmgw.toml"
    file.write_text(GOOD.replace('"m"', '"m"\naliases = ["n"]\nfallback = ["spare"]') + '[[models]]\nname = "spare"\n')
    file.chmod(0o600)

    result = run(file)

    assert (result.exit_code, result.stdout.splitlines()) == (
        0,
        [
            f"{file}: fine, 2 models and 1 endpoint",
            "  clients on http://127.0.0.1:7440",
            "  operators on http://127.0.0.1:7442",
            "  agents off: no certificate (/nowhere/certs/agents.pem; `llmgw certs init` makes it)",
            "  m (also n): h:1 (vllm), then spare",
            "  spare: nothing",
        ],
    )
    assert result.stderr.startswith(f"warning: {file}:models[1].endpoints: nothing serves this model")


@pytest.mark.parametrize(
    ("replicas", "engine", "says"),
    [
        ("2", "gpus = 2", "2 replicas under agents (vllm, 2 GPUs each)"),
        ("1", "gpus = 1", "1 replica under agents (vllm, 1 GPU)"),
        ("0", "gpus = 1", "no replicas under agents (vllm, 1 GPU)"),
        ("{min = 1, max = 4}", "gpus = 1", "1 to 4 replicas under agents (vllm, 1 GPU each)"),
        ("{min = 0, max = 4}", "gpus = 1", "0 to 4 replicas under agents (vllm, 1 GPU each)"),
        ("2", 'preset = "sim"', "2 replicas under agents (sim, no GPU)"),
        ("2", "gpus = 8\nshards = 2", "2 replicas under agents (vllm, 2 shards of 8 GPUs)"),
    ],
)
def test_what_agents_shall_run_is_said_in_numbers(tmp_path, replicas, engine, says):
    file = tmp_path / "llmgw.toml"
    file.write_text(f'[[models]]\nname = "n"\nreplicas = {replicas}\n[models.engine]\n{engine}\n')

    assert f"  n: {says}\n" in run(file).stdout


def test_a_static_endpoint_and_replicas_serve_one_model(tmp_path):
    file = tmp_path / "llmgw.toml"
    file.write_text(GOOD + '[models.engine]\npreset = "sim"\n')

    assert "  m: h:1 (vllm), 1 replica under agents (sim, no GPU)\n" in run(file).stdout


def test_where_agents_connect_is_said_once_there_is_a_certificate(tmp_path):
    file = tmp_path / "llmgw.toml"
    file.write_text(GOOD + '[agents]\nlisten = "0.0.0.0:7000"\n')
    certificates = tmp_path / "certs"
    certificates.mkdir()
    (certificates / "agents.pem").write_text("")

    assert "  agents on 0.0.0.0:7000\n" in run(file, STATE_DIRECTORY=str(tmp_path)).stdout


def test_a_bad_file_is_2_and_a_line_a_problem(tmp_path):
    file = tmp_path / "llmgw.toml"
    file.write_text('[relay]\ntotl = 1\n"\\u001b[2J" = 1\n')

    result = run(file)

    assert result.exit_code == 2
    assert result.stderr.splitlines()[0] == f"{file}:relay.totl: there is no such setting, did you mean 'total'?"
    assert "\x1b" not in result.output


def test_the_environment_counts(tmp_path):
    file = tmp_path / "llmgw.toml"
    file.write_text(GOOD)

    result = run(file, LLMGW_RELAY__TOTAL="never")

    assert result.exit_code == 2
    assert "environment:LLMGW_RELAY__TOTAL: 'never' is no duration" in result.stderr


def test_a_variable_with_one_underscore_too_few_is_warned_of(tmp_path):
    file = tmp_path / "llmgw.toml"
    file.write_text(GOOD)
    file.chmod(0o600)
    others = dict.fromkeys(("LLMGW_CONFIG", "LLMGW_ADMIN_URL", "LLMGW_ADMIN_TOKEN", "LLMGW_DEBUG", "RELAY_TOTAL"), "x")

    result = run(file, LLMGW_RELAY_TOTAL="5min", LLMGW_ADMIN_TLS_CERT="/x", **others)

    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        "warning: environment:LLMGW_ADMIN_TLS_CERT: nobody reads it, did you mean LLMGW_ADMIN__TLS_CERT?",
        "warning: environment:LLMGW_RELAY_TOTAL: nobody reads it, did you mean LLMGW_RELAY__TOTAL?",
    ]


def test_json_is_for_scripts_and_shows_no_secret(tmp_path):
    file = tmp_path / "llmgw.toml"
    file.write_text(GOOD)
    file.chmod(0o644)

    good = json.loads(run(file, "-o", "json").stdout)
    bad = run(tmp_path / "missing", "-o", "json")

    assert good["ok"] is True
    assert good["warnings"][0]["key"] == "models[0].endpoints[0].api_key"
    assert good["config"]["models"][0]["endpoints"][0]["api_key"] == "***"
    assert bad.exit_code == 2
    assert json.loads(bad.stdout)["problems"][0]["file"] == str(tmp_path / "missing")


def test_without_a_file_it_says_what_to_do():
    result = run()

    assert result.exit_code == 2
    assert "--example" in result.stderr
