"""A LiteLLM proxy's config becomes one of ours; what has no counterpart is said, and no key is written."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from llmgw.cli import main
from llmgw.cli.import_litellm import Imported, imported
from llmgw.cli.litellm_advice import not_carried
from llmgw.config import Config, ConfigError, load
from llmgw.core.fleet import Engine, FallbackOn

WHOLE = """
model_list:
  - model_name: gpt-4o
    litellm_params:
      model: hosted_vllm/meta-llama/Llama-3.3-70B-Instruct
      api_base: http://10.0.0.5:8000/v1
      api_key: none
      rpm: 600
      max_parallel_requests: 64
    model_info: {id: gpu-1, mode: chat, supports_vision: true}
  - model_name: gpt-4o
    litellm_params: {model: hosted_vllm/meta-llama/Llama-3.3-70B-Instruct, api_base: "http://10.0.0.6:8000/v1"}
  - model_name: cheap
    litellm_params: {model: openai/gpt-4o-mini, api_key: os.environ/OPENAI_API_KEY}
  - model_name: cheaper
    litellm_params: {model: gpt-4.1-nano, api_key: sk-hunter2}
  - model_name: claude
    litellm_params: {model: anthropic/claude-sonnet, api_key: sk-ant-hunter2}
  - model_name: "*"
    litellm_params: {model: "openai/*"}
router_settings:
  model_group_alias: {gpt-4: gpt-4o, default: {model: cheap, hidden: true}, lost: claude, cheap: gpt-4o}
  fallbacks: [{gpt-4o: [cheap]}, {cheap: [gpt-4]}]
  timeout: 90
  num_retries: 2
  routing_strategy: least-busy
litellm_settings:
  request_timeout: 600
  fallbacks: [{cheap: [cheaper, claude]}]
  drop_params: true
general_settings: {master_key: sk-hunter2, database_url: "postgres://u:hunter2@h/d"}
environment_variables: {A: hunter2}
"""


def carried(text: str, environ: dict[str, str] | None = None):
    result = imported(yaml.safe_load(text), "config.yaml", environ or {})
    return loaded(result), result


def loaded(result: Imported) -> Config:
    """As it loads once every key is where the notes say: under its name, with that name as its value."""
    with TemporaryDirectory() as folder:
        for name in result.credentials:
            (Path(folder) / name).write_text(name)
        return load(None, {"CREDENTIALS_DIRECTORY": folder}, result.text)


def test_models_and_endpoints_are_carried():
    config, _ = carried(WHOLE)

    assert list(config.fleet.models) == ["gpt-4o", "cheap", "cheaper"]
    first, second = config.fleet.models["gpt-4o"].endpoints
    assert (first.id, first.url, first.engine, first.capacity) == ("gpu-1", "http://10.0.0.5:8000", Engine.VLLM, 64)
    assert (second.id, second.engine_name) == ("10.0.0.6:8000", "meta-llama/Llama-3.3-70B-Instruct")
    (hosted,) = config.fleet.models["cheap"].endpoints
    assert (hosted.url, hosted.engine, hosted.engine_name) == ("https://api.openai.com", Engine.OPENAI, "gpt-4o-mini")


def test_two_endpoints_at_one_address_have_two_ids():
    config, _ = carried(WHOLE)

    assert len({endpoint.id for endpoint in config.fleet.endpoints}) == 4


def test_aliases_fallbacks_timeout_and_retries_are_carried():
    config, _ = carried(WHOLE)
    models = config.fleet.models

    assert models["gpt-4o"].aliases == ("gpt-4",)
    assert models["cheap"].aliases == ("default",)
    assert [fallback.model for fallback in models["gpt-4o"].fallback] == ["cheap"]
    assert [fallback.model for fallback in models["cheap"].fallback] == ["cheaper"]
    assert models["cheap"].fallback[0].on == frozenset(FallbackOn) - {FallbackOn.SATURATED}
    assert (config.relay.total, config.relay.first_token, config.relay.idle) == (90.0, 90.0, 60.0)
    assert config.relay.attempts_max == 3


def test_what_is_lost_is_said_in_notes_and_in_comments():
    _, result = carried(WHOLE)

    for says in [
        "model_list[0] (gpt-4o): not carried: model_info.supports_vision: what a model can do is left to its engine",
        "model_list[0] (gpt-4o): not carried: rpm: endpoints have no rate limits here; set capacity, the requests one "
        "runs at once",
        "model_list[4] (claude): 'anthropic' does not speak OpenAI's API, not carried: ask it through something that "
        "does",
        "model_list[5]: '*' stands for many models, not carried: write each with its own [[models]]",
        "router_settings.model_group_alias.lost: there is no model 'claude' here, not carried: add the model, then the "
        "alias",
        "router_settings.model_group_alias.cheap: 'cheap' is already a name for 'cheap', not carried: choose another",
        "router_settings.fallbacks: cheap → gpt-4: it would lead in a circle, not carried: let one end it",
        "litellm_settings.fallbacks: cheap → claude: nobody here answers to 'claude', not carried: add that model "
        "first",
        "router_settings: not carried: routing_strategy: requests go where there is room; [scheduling] weighs the "
        "reasons",
        "litellm_settings: not carried: drop_params: fields of a request pass as they are",
        "general_settings: not carried: database_url: keys and usage are in [store]; bring keys with `llmgw ctl keys "
        "import`",
        "other sections: not carried: environment_variables: set them where the service starts",
    ]:
        assert says in result.notes
        assert f"# - {says}\n" in result.text


def test_no_key_is_written_and_its_place_is_shown():
    _, result = carried(WHOLE)

    assert "hunter2" not in result.text + str(result.notes)
    assert "# put the value of $OPENAI_API_KEY into /etc/llmgw/OPENAI_API_KEY (chmod 600)" in result.text
    assert "LoadCredential=OPENAI_API_KEY:/etc/llmgw/OPENAI_API_KEY" in str(result.notes)
    keys = [endpoint.api_key and endpoint.api_key.reveal() for endpoint in loaded(result).fleet.endpoints]
    assert keys == [None, None, "OPENAI_API_KEY", "api.openai.com-443-cheaper"]


def test_a_key_that_is_not_yet_in_its_place_stops_the_start():
    """Otherwise a forgotten key would show only when a provider refuses the first request."""
    _, result = carried(WHOLE)

    with pytest.raises(ConfigError, match="add LoadCredential=OPENAI_API_KEY:"):
        load(None, {}, result.text)


def test_one_key_has_one_name_and_two_keys_have_two():
    entry = "{model_name: m, litellm_params: {model: hosted_vllm/m, api_base: 'http://%s', api_key: %s}}"
    places = [("a:1", "sk-1"), ("a-1:80", "sk-2"), ("b:1", "sk-1"), ("c:1", "os.environ/K"), ("d:1", "os.environ/K")]
    config, result = carried(
        f"model_list: [{', '.join(entry % place for place in places)}, {entry % ('a-1-80:80', 'x')}]"
    )

    names = [endpoint.api_key.reveal() for endpoint in config.fleet.endpoints if endpoint.api_key]
    assert names == ["a-1", "a-1-80", "a-1", "K", "K", "a-1-80-80"]
    assert set(names) == set(result.credentials)


def test_names_that_would_meet_are_kept_apart():
    entry = "{model_name: m, litellm_params: {model: hosted_vllm/m, api_base: 'http://h:%s', api_key: sk-%s}, %s}"
    ids = [
        entry % (port, port, f"model_info: {{id: '{given}'}}") for port, given in [(1, "x:1"), (2, "x-1"), (3, "..")]
    ]
    config, result = carried(f"model_list: [{', '.join(ids)}]")

    assert [endpoint.id for endpoint in config.fleet.endpoints] == ["x:1", "x-1", ".."]
    assert result.credentials == ("x-1", "x-1-2", "key")


def test_every_setting_of_litellm_is_told_of_with_what_to_do():
    assert list(not_carried(["tpm", "rpm", "seldom_seen"])) == [
        "not carried: rpm, tpm: endpoints have no rate limits here; set capacity, the requests one runs at once",
        "not carried: seldom_seen: there is nothing like it here",
    ]


def test_an_address_may_come_from_the_environment():
    text = "model_list: [{model_name: m, litellm_params: {model: hosted_vllm/m, api_base: os.environ/BASE}}]"

    assert carried(text, {"BASE": "http://h:1/v1"})[0].fleet.endpoints[0].url == "http://h:1"
    assert "its api_base is in $BASE, which is not set here, not carried: set it and import again" in str(
        carried(text)[1].notes
    )


def test_a_password_in_an_address_is_neither_carried_nor_shown():
    text = "model_list: [{model_name: m, litellm_params: {model: openai/m, api_base: 'http://u:hunter2@h'}}]"

    config, result = carried(text)

    assert config.fleet.models == {}
    assert "hunter2" not in result.text


scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["a", "b", "*"])
)
loose = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(scalars, inner, max_size=3))
entries = st.fixed_dictionaries(
    {
        "model_name": st.sampled_from(["a", "b", "c"]) | loose,
        "litellm_params": st.fixed_dictionaries(
            {"model": st.sampled_from(["openai/x", "hosted_vllm/y", "openai/", "gpt-4"]) | st.text() | loose},
            optional={
                "api_base": st.sampled_from(["http://h:1/v1", "http://[::1]:2", "h"]) | loose,
                "api_key": loose,
                "max_parallel_requests": loose,
            },
        )
        | loose,
    },
    optional={"model_info": st.fixed_dictionaries({"id": st.sampled_from(["i", "h:1"]) | loose}) | loose},
)
pairs = st.lists(st.dictionaries(st.sampled_from("abcd"), st.lists(st.sampled_from("abcd")), max_size=3)) | loose
aliases = st.dictionaries(st.sampled_from("abcd") | scalars, st.sampled_from("abc") | loose)
settings = st.fixed_dictionaries(
    {}, optional={"model_group_alias": aliases, "fallbacks": pairs, "timeout": loose, "num_retries": loose}
)
files = st.fixed_dictionaries(
    {"model_list": st.lists(entries, max_size=5) | loose}, optional={"router_settings": settings}
)


@given(files | loose)
def test_whatever_comes_in_what_comes_out_loads(tree):
    loaded(imported(tree, "config.yaml", {}))


def test_the_command_writes_a_file_once(tmp_path):
    source, target = tmp_path / "config.yaml", tmp_path / "llmgw.toml"
    source.write_text(WHOLE)

    first = CliRunner().invoke(main, ["import", "litellm", str(source), "-o", str(target)])
    second = CliRunner().invoke(main, ["import", "litellm", str(source), "-o", str(target)])

    assert (first.exit_code, second.exit_code) == (0, 1)
    assert "not carried" in first.stderr
    assert "--force" in second.stderr
    assert f"put the keys where it says, then llmgw check-config {target}" in first.stderr
    for name in ("OPENAI_API_KEY", "api.openai.com-443-cheaper"):
        (tmp_path / name).write_text("sk-1")
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    assert CliRunner().invoke(main, ["check-config", str(target)], env=environ).exit_code == 0


def test_the_command_prints_to_standard_output(tmp_path):
    source = tmp_path / "config.yaml"
    source.write_text(WHOLE)

    result = CliRunner().invoke(main, ["import", "litellm", str(source)])

    assert '[[models]]\nname = "cheaper"' in result.stdout
    assert "hunter2" not in result.output


def test_a_file_that_is_no_yaml_is_2_and_its_lines_stay_unseen(tmp_path):
    source = tmp_path / "config.yaml"
    source.write_text("a: [\nmaster_key: 'sk-hunter2\n")

    result = CliRunner().invoke(main, ["import", "litellm", str(source)])

    assert result.exit_code == 2
    assert "is no YAML" in result.stderr
    assert "hunter2" not in result.output
