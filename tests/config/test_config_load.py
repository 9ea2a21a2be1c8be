"""How a config comes together: file, defaults, environment, secrets; and what a reload says."""

import os
import stat
from pathlib import Path

import pytest

from llmgw.config import Config, ConfigError, load, reload
from llmgw.config.read import as_options
from llmgw.core.fleet import Engine, Fallback, FallbackOn
from llmgw.core.secret import Secret

MODEL = '[[models]]\nname = "m"\n[[models.endpoints]]\nurl = "{url}"\n'


def private(path: Path, content: str) -> Path:
    path.write_text(content)
    path.chmod(0o600)
    return path


def problem_of(text: str, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as refused:
        load(None, environ or {}, text)
    (problem,) = refused.value.problems
    return str(problem)


def test_without_anything_there_are_the_defaults_and_a_warning():
    config = load(None, {})

    assert (config.listen, config.relay, config.store) == (Config().listen, Config().relay, Config().store)
    assert [warning.key for warning in config.warnings] == ["models"]


def test_the_environment_comes_before_the_file_and_the_file_before_the_defaults():
    text = '[relay]\ntotal = "10min"\nidle = "20s"\n'

    config = load(None, {"LLMGW_RELAY__TOTAL": "5min", "LLMGW_LOG__REQUESTS": "off", "LLMGW_DEBUG": "1"}, text)

    assert (config.relay.total, config.relay.idle, config.relay.dial) == (300.0, 20.0, 2.0)
    assert config.log.requests is False


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("LLMGW_SERVER__CORS_ORIGINS", "*", "environment variables hold scalars only"),
        ("LLMGW_MODELS__NAME", "a", "environment variables hold scalars only"),
        ("LLMGW_RELAY__TOTL", "1", "did you mean 'total'?"),
        ("LLMGW_RELY__TOTAL", "1", "did you mean 'relay'?"),
        ("LLMGW_RELAY__ATTEMPTS_MAX", "many", "'many' is no whole number"),
        ("LLMGW_LOG__REQUESTS", "maybe", "neither true nor false"),
        ("LLMGW_RELAY__IDLE", "2h", "(from LLMGW_RELAY__IDLE)"),
    ],
)
def test_a_variable_that_is_wrong_is_named(variable, value, says):
    problem = problem_of("", {variable: value})

    assert problem.startswith(f"environment:{variable}: ")
    assert says in problem


def test_a_secret_comes_from_a_private_file(tmp_path):
    key = private(tmp_path / "key", "sk-1\n")

    config = load(None, {}, MODEL.format(url="http://h:1") + f'api_key = "@{key}"')

    assert config.fleet.endpoints[0].api_key == Secret("sk-1")
    assert "sk-1" not in repr(config)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_a_secret_file_that_others_reach_is_refused(tmp_path, mode):
    key = private(tmp_path / "key", "sk-1")
    key.chmod(mode)

    assert f"run chmod 600 {key}" in problem_of(MODEL.format(url="http://h:1") + f'api_key = "@{key}"')


def test_a_secret_file_that_is_missing_empty_or_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path, says in [
        (tmp_path / "missing", "No such file"),
        (private(tmp_path / "empty", " \n"), "is empty"),
        (tmp_path / "pipe", "is no plain file"),
        (private(tmp_path / "long", "x" * 20_000), "is longer than"),
    ]:
        assert says in problem_of(f'[admin]\nmetrics_token = "@{path}"')


def test_a_credential_comes_from_the_service_managers_folder(tmp_path):
    (tmp_path / "metrics").write_text("tok\n")

    config = load(None, {"CREDENTIALS_DIRECTORY": str(tmp_path)}, '[admin]\nmetrics_token = "@metrics"')

    assert config.admin.metrics_token == Secret("tok")


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".."])
def test_a_credential_is_a_plain_name(tmp_path, name):
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path)}

    assert "no credential has such a name" in problem_of(f'[admin]\nmetrics_token = "@{name}"', environ)


def test_a_credential_without_its_folder_says_how_to_get_one():
    assert "LoadCredential=metrics:" in problem_of('[admin]\nmetrics_token = "@metrics"')


@pytest.mark.parametrize(
    ("written", "url", "identity"),
    [
        ("http://H:8000/v1/", "http://h:8000", "h:8000"),
        ("http://h:8000/", "http://h:8000", "h:8000"),
        ("HTTPS://api.example.com/v1", "https://api.example.com", "api.example.com:443"),
        ("http://h/openai/v1", "http://h/openai", "h:80"),
        ("http://[::1]:8000", "http://[::1]:8000", "::1:8000"),
        ("http://h/v10", "http://h/v10", "h:80"),
    ],
)
def test_a_url_is_kept_without_v1_and_names_its_endpoint(written, url, identity):
    (endpoint,) = load(None, {}, MODEL.format(url=written)).fleet.endpoints

    assert (endpoint.url, endpoint.id) == (url, identity)


def test_models_endpoints_and_fallbacks_are_read_whole():
    text = """
    [[models]]
    name = "org/big"
    aliases = ["default"]
    context_max = 32768
    fallback = ["small", {model = "tiny", on = ["429", "saturated"]}]
    [[models.endpoints]]
    id = "gpu-1"
    url = "http://10.0.0.5:8000"
    engine = "sglang"
    served_as = "/models/big"
    capacity = 64
    adapters = ["big-sql"]
    inject_usage = false
    [[models]]
    name = "small"
    aliases = ["tiny"]
    """
    config = load(None, {}, text)

    asked = config.fleet.resolve("big-sql")
    assert asked is not None
    assert asked.adapter == "big-sql"
    model, (endpoint,) = asked.model, asked.model.endpoints
    assert (model.name, model.aliases, model.context_max) == ("org/big", ("default",), 32768)
    rare = frozenset({FallbackOn.RATE_LIMITED, FallbackOn.SATURATED})
    assert model.fallback == (Fallback("small"), Fallback("tiny", rare))
    assert (endpoint.id, endpoint.engine, endpoint.engine_name) == ("gpu-1", Engine.SGLANG, "/models/big")
    assert (endpoint.capacity, endpoint.inject_usage, endpoint.model) == (64, False, "org/big")
    assert [warning.key for warning in config.warnings] == ["models[1].endpoints"]


def test_a_plain_key_in_a_file_for_all_is_warned_of(tmp_path):
    file = private(tmp_path / "llmgw.toml", MODEL.format(url="http://h:1") + 'api_key = "sk-1"')
    assert load(file, {}).warnings == ()

    file.chmod(file.stat().st_mode | stat.S_IROTH)

    assert [str(w) for w in load(file, {}).warnings] == [
        f"{file}:models[0].endpoints[0].api_key: a secret stands in a file that others can read, run chmod 600 {file}"
    ]


@pytest.mark.parametrize("content", [b"\xff", b"\xef\xbb\xbf[relay]\ntotl = 1", None])
def test_a_file_that_cannot_be_read_is_one_problem(tmp_path, content):
    file = tmp_path / "llmgw.toml"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(ConfigError) as refused:
        load(file, {})

    assert [problem.file for problem in refused.value.problems] == [str(file)]


def test_a_reload_has_a_higher_revision_and_names_what_waits_for_a_restart():
    old = load(None, {}, MODEL.format(url="http://h:1"))

    new = reload(
        old, None, {}, MODEL.format(url="http://h:2") + '[relay]\nidle = "5s"\n[scheduling]\nprefix_entries_max = 100\n'
        '[server]\nlisten = "127.0.0.1:1"\nbody_max = "1MiB"\n[log]\nlevel = "debug"\n',
    )  # fmt: skip

    assert new.config.fleet.revision == old.fleet.revision + 1
    assert new.config.relay.idle == 5.0
    assert new.needs_restart == ("server.listen", "scheduling.prefix_entries_max", "log.level")


def test_what_waits_for_a_restart_stays_as_it_was_and_is_named_again():
    old = load(None, {}, "")
    text = '[log]\nlevel = "debug"\n[scheduling]\nprefix_entries_max = 100\nprefix = 5\n'

    first = reload(old, None, {}, text)
    second = reload(first.config, None, {}, text)

    assert (first.config.log.level, first.config.weights.prefix_entries_max) == ("info", 50_000)
    assert first.config.weights.prefix == 5.0
    assert second.needs_restart == first.needs_restart == ("scheduling.prefix_entries_max", "log.level")


def test_a_reload_of_the_same_needs_nothing():
    old = load(None, {}, MODEL.format(url="http://h:1"))

    assert reload(old, None, {}, MODEL.format(url="http://h:1")).needs_restart == ()


def test_a_reload_lists_each_limit_as_it_was_and_as_it_is():
    old = load(None, {}, MODEL.format(url="http://h:1"))
    text = '[server]\nbody_max = "1MiB"\n[relay]\nfirst_token = "90s"\nattempts_max = 2\n[log]\nlevel = "debug"\n'

    new = reload(old, None, {}, text + MODEL.format(url="http://h:1"))

    assert new.changes == (
        'server.body_max: "64MiB" -> "1MiB"',
        'relay.first_token: "2min" -> "90s"',
        "relay.attempts_max: 3 -> 2",
    )
    assert (new.needs_restart, new.config.fleet.revision) == (("log.level",), old.fleet.revision + 1)


def test_a_reload_that_changes_nothing_in_force_keeps_the_revision():
    old = load(None, {}, MODEL.format(url="http://h:1"))

    same = reload(old, None, {}, MODEL.format(url="http://h:1"))
    late = reload(old, None, {}, '[log]\nlevel = "debug"\n' + MODEL.format(url="http://h:1"))

    assert (same.changes, same.config.fleet) == ((), old.fleet)
    assert (late.changes, late.needs_restart, late.config.fleet) == ((), ("log.level",), old.fleet)


def test_whatever_a_reload_changes_about_a_model_is_a_change_and_no_secret_is_shown():
    endpoint = '[[models.endpoints]]\nurl = "http://h:%d"\n'
    one, two = endpoint % 1, endpoint % 2
    model = '[[models]]\nname = "m"\n'
    old = load(None, {}, model + one + two)

    def changes(text: str) -> tuple[str, ...]:
        new = reload(old, None, {}, text)
        assert new.config.fleet.revision == old.fleet.revision + 1
        return new.changes

    assert changes(model + "context_max = 99\n" + one + two) == ("model m: context_max: none -> 99",)
    assert changes(model + two + one) == ("model m: the order of its endpoints changed",)
    assert changes(model + 'aliases = ["n"]\n' + one + two) == ("model m: aliases or fallback changed",)
    assert changes(model + one + two + 'api_key = "hunter2"\n') == ("endpoint h:2 changed",)


def test_what_an_option_said_is_blamed_on_the_option_and_what_a_variable_said_on_the_variable():
    public, variable = '[server]\nlisten = "0.0.0.0:7440"\n', "LLMGW_SERVER__NO_AUTH"
    by_option = as_options({variable: "false"}, {"--no-auth": (variable, "true")})

    assert problem_of(public, by_option).startswith("command line:--no-auth: no_auth with server.listen = ")
    assert problem_of(public, {variable: "true"}).startswith(f"environment:{variable}: no_auth with")
    assert [str(w).partition(":")[0] for w in load(None, by_option, "").warnings][1] == "command line"


@pytest.mark.parametrize("text", ["", "# nothing\n", "[relay]\nattempts_max = 2\n", "models = []\n"])
def test_a_reload_that_would_end_every_model_is_refused_with_the_way_out(tmp_path, text):
    old = load(None, {}, MODEL.format(url="http://h:1"))

    with pytest.raises(ConfigError) as refused:
        reload(old, tmp_path / "llmgw.toml", {}, text)

    [problem] = refused.value.problems
    assert (problem.file, problem.key) == (str(tmp_path / "llmgw.toml"), "models")
    assert "keep at least one [[models]], or stop the server" in str(problem)


def test_a_process_that_serves_nothing_may_go_on_so_and_start_so():
    empty = load(None, {}, "")

    assert reload(empty, None, {}, "[relay]\nattempts_max = 2\n").config.relay.attempts_max == 2


def test_tls_files_that_belong_together_are_accepted(tmp_path):
    trustme = pytest.importorskip("trustme")
    one, other = trustme.CA().issue_cert("localhost"), trustme.CA().issue_cert("localhost")
    one.cert_chain_pems[0].write_to_path(tmp_path / "cert")
    one.private_key_pem.write_to_path(tmp_path / "key")
    other.private_key_pem.write_to_path(tmp_path / "other")
    for name in ("key", "other"):
        (tmp_path / name).chmod(0o600)
    text = f'[admin]\nlisten = "0.0.0.0:7442"\ntls_cert = "{tmp_path}/cert"\ntls_key = "{tmp_path}/%s"\n'

    assert load(None, {}, text % "key").admin.listen == "0.0.0.0:7442"
    assert "admin.tls_cert" in problem_of(text % "other")


@pytest.mark.parametrize(("section", "mode"), [("server", 0o640), ("admin", 0o604)])
def test_a_private_key_that_others_reach_is_refused(tmp_path, section, mode):
    trustme = pytest.importorskip("trustme")
    issued = trustme.CA().issue_cert("localhost")
    cert, key = tmp_path / "cert", tmp_path / "key"
    issued.cert_chain_pems[0].write_to_path(cert)
    issued.private_key_pem.write_to_path(key)
    key.chmod(mode)
    text = f'[{section}]\ntls_cert = "{cert}"\ntls_key = "{key}"\n'

    said = problem_of(text)
    assert f"{section}.tls_key: {key} can be read by others (mode {mode:04o}), run chmod 600 {key}" in said
    assert load(None, {"CREDENTIALS_DIRECTORY": str(tmp_path)}, text)  # the service manager's own bits
    key.chmod(0o600)
    assert load(None, {}, text)


def test_only_an_engine_that_hangs_up_after_five_seconds_is_warned_of():
    text = '[engines]\nidle_max = "9s"\n' + MODEL.format(url="http://h:1")

    assert [warning.key for warning in load(None, {}, text).warnings] == ["engines.idle_max"]
    assert load(None, {}, text + 'engine = "openai"').warnings == ()


def test_origins_and_hosts_as_browsers_send_them_are_accepted():
    text = (
        '[server]\ncors_origins = ["*", "null", "https://a.b:8443", "http://[::1]:3000"]\n'
        '[admin]\nallowed_origins = ["https://a.b"]\nallowed_hosts = ["A.b", "[::1]", "10.0.0.1"]\n'
    )
    assert load(None, {}, text).admin.allowed_hosts == ("A.b", "[::1]", "10.0.0.1")
