"""What agents shall run, as it is written: replicas, [models.engine], [models.placement]."""

import pytest

from llmgw.config import ConfigError, load
from llmgw.core.engine_spec import OnFull, Strategy

WHOLE = """
[[models]]
name = "llama"
replicas = {min = 1, max = 3}
[models.engine]
preset = "vllm"
executable = ["/opt/vllm-0.9/bin/vllm", "serve"]
model = "/models/llama"
args = ["--max-num-seqs", "64"]
env = {HF_HOME = "/data"}
gpus = 2
gpu_memory = "20GiB"
adapters = ["sql"]
start_within = "5min"
[models.placement]
selector = {zone = "a"}
strategy = "pack"
on_full = "stop_first"
"""


def wants(text):
    return load(None, {}, text).wants


def refusals(text):
    with pytest.raises(ConfigError) as caught:
        load(None, {}, text)
    return [str(problem) for problem in caught.value.problems]


def test_a_models_engine_and_placement_are_read():
    (want,) = wants(WHOLE)
    assert (want.model, want.least, want.most, want.replicas) == ("llama", 1, 3, 1)
    assert want.spec.executable == ("/opt/vllm-0.9/bin/vllm", "serve")
    assert (want.spec.gpus, want.spec.gpu_memory_mib, want.spec.start_within_s) == (2, 20 * 1024, 300.0)
    assert (want.rules.strategy, want.rules.on_full) == (Strategy.PACK, OnFull.STOP_FIRST)


def test_an_adapter_of_an_engine_is_a_name_before_any_replica_runs():
    config = load(None, {}, WHOLE)
    assert config.fleet.resolve("sql").model.name == "llama"


def test_a_fleet_knows_which_models_agents_run():
    config = load(None, {}, WHOLE + '[[models]]\nname = "m"\n[[models.endpoints]]\nurl = "http://127.0.0.1:1"')
    assert {name: model.run_by_agents for name, model in config.fleet.models.items()} == {"llama": True, "m": False}


def test_a_model_without_an_engine_is_no_agents_business():
    assert wants('[[models]]\nname = "m"\n[[models.endpoints]]\nurl = "http://127.0.0.1:1"') == ()


def test_one_replica_is_the_default():
    (want,) = wants('[[models]]\nname = "m"\n[models.engine]\npreset = "sim"')
    assert (want.least, want.most) == (1, 1)


def test_an_engine_and_a_static_endpoint_may_serve_one_model():
    config = load(None, {}, WHOLE + '[[models.endpoints]]\nurl = "http://10.0.0.5:8000"\n')
    assert len(config.fleet.models["llama"].endpoints) == len(config.wants) == 1
    assert not config.warnings


ENGINE = '[[models]]\nname = "m"\n%s\n[models.engine]\n%s\n'


@pytest.mark.parametrize(
    ("model", "engine", "says"),
    [
        ("replicas = -1", "", "models[0].replicas: -1 is no number of replicas"),
        ("replicas = true", "", "models[0].replicas: True is no number of replicas"),
        ("replicas = {min = 3, max = 1}", "", "min 3 is above max 1"),
        ("replicas = {least = 3}", "", "replicas has no 'least'"),
        ("", 'preset = "vlm"', "models[0].engine.preset"),
        ("", "gpu = 1", "models[0].engine.gpu: there is no such setting"),
        ("", 'preset = "program"', "a program needs one"),
        ("", 'preset = "llamacpp"', "llama.cpp loads a file"),
        ("", 'gpu_memory = "8GiB"', "it asks for no GPU"),
        ("", "gpus = 1\nexclusive = false", "a whole card can't be shared"),
        ("", 'fetch = ["x"]\nmodel = "org/name"', "nobody knows where its files belong"),
        ("", 'start_within = "soon"', "models[0].engine.start_within"),
        ("", 'executable = [""]', "models[0].engine.executable[0]: it is an empty word, write the program"),
        ("", 'executable = ["vllm", " "]', "models[0].engine.executable[1]: it is an empty word"),
        ("", 'cwd = "srv/engine"', "models[0].engine.cwd: 'srv/engine' is no absolute path, write it like /srv"),
        ("", 'cwd = "~/engine"', "models[0].engine.cwd: '~/engine' is no absolute path"),
        ("", 'ports = ["grpc", "Grpc-2"]', "models[0].engine.ports[1]: 'Grpc-2' is no name for a port, write small"),
        ("", 'ports = [""]', "models[0].engine.ports[0]: '' is no name for a port"),
        ("", 'ports = ["grpc", "grpc"]', "models[0].engine.ports[1]: 'grpc' is there twice, take one"),
        ("", 'ports = ["http"]', "models[0].engine.ports[0]: vllm has a port 'http' already"),
        ("", 'env = {"" = "x"}', "models[0].engine.env: '' is no name of a variable, write it like HF_HOME"),
        ("", 'env = {"A=B" = "x"}', "models[0].engine.env: 'A=B' is no name of a variable"),
        ("", 'env = {"A\\u0000" = "x"}', "is no name of a variable"),
        ("", 'env = {LLMGW_X = "x"}', "models[0].engine.env.LLMGW_X: variables that begin with LLMGW_ are the gate"),
        ("", 'args = ["--port={prot}"]', "models[0].engine.args[0]: nobody fills in {prot}, did you mean {port}?"),
        ("", 'args = ["{model}"]', "nobody fills in {model}, write what you mean; there are {host}, {port}, {gpus}, "),
        ("", 'args = ["--x", "{port:rpc}"]', 'engine.args[1]: nobody fills in {port:rpc}, write ports = ["rpc"] too'),
        ("", 'args = ["{port:}"]', "nobody fills in {port:}, write what you mean"),
        ("", 'args = ["{key_file}"]', "nobody fills in {key_file}"),
        ("", 'preset = "sglang"\napi_key = false\nargs = ["{key_file}"]', "nobody fills in {key_file}"),
        ("", 'env = {ADDRESS = "{hosts}:{port}"}', "models[0].engine.env.ADDRESS: nobody fills in {hosts}, did you"),
        ("", 'executable = ["/opt/{name}"]', "models[0].engine.executable[0]: nobody fills in {name}"),
        ("", '[models.placement]\nnodes = [""]', "models[0].placement.nodes[0]: '' is no name of a node, write it as"),
        ("", '[models.placement]\nnodes = ["a", "b c"]', "models[0].placement.nodes[1]: 'b c' is no name of a node"),
        ("", '[models.placement]\napart_from = ["m"]', "placement.apart_from[0]: 'm' is this model itself, write one_"),
        ("", '[models.placement]\napart_from = ["mm"]', "placement.apart_from[0]: no model is called 'mm', did you"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_place(model, engine, says):
    assert any(says in one for one in refusals(ENGINE % (model, engine)))


WORDS = [
    "--host={host}", "{port}", "{port:http}", "{port:master}", "{port:rpc}", "{gpus}",
    '{"a": 1}', '{"rope": {"type": "yarn"}}', "{}", "{0}", "{ x }", "{{ messages }}", "{{messages}}", "{% if x %}",
    "${HOME}", "a{2,3}", "{a,b}", "f(x) { return; }",
]  # fmt: skip


@pytest.mark.parametrize("word", WORDS)
def test_what_is_filled_in_and_the_engines_own_braces_may_stand_anywhere(word):
    quoted = f"'''{word}'''"
    engine = f'ports = ["rpc"]\nexecutable = ["/x", {quoted}]\nargs = [{quoted}, ""]\nenv = {{A = {quoted}}}'
    (want,) = wants(ENGINE % ("", engine))
    assert (want.spec.args, dict(want.spec.env)) == ((word, ""), {"A": word})


def test_a_key_file_is_filled_in_where_the_preset_has_one():
    assert wants(ENGINE % ("", 'preset = "sglang"\nargs = ["--config={key_file}", "{port:nccl}"]'))


def test_nodes_and_another_model_to_stand_apart_from_are_taken():
    two = WHOLE + 'nodes = ["node-1", "gpu_7.rack"]\napart_from = ["other"]\n[[models]]\nname = "other"\n'
    (want,) = wants(two)
    assert (want.rules.nodes, want.rules.apart_from) == (("node-1", "gpu_7.rack"), ("other",))


def test_replicas_of_nothing_are_refused():
    assert any("no engine that it is about" in one for one in refusals('[[models]]\nname = "m"\nreplicas = 2\n'))


def test_an_adapter_belongs_to_one_model():
    two = WHOLE + '[[models]]\nname = "other"\n[[models.endpoints]]\nurl = "http://10.0.0.5:1"\nadapters = ["sql"]\n'
    assert any("adapter 'sql' belongs to another model" in one for one in refusals(two))
