"""How each kind of engine is started."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.engine_spec import EngineSpec
from llmgw.core.presets import PRESETS, First, launch

UUIDS = ("GPU-a", "GPU-b")


def of(preset, **more):
    return EngineSpec(preset, model="/models/m", gpus=2, gpu_memory_mib=20_000, **more)


@pytest.mark.parametrize("preset", [name for name in PRESETS if name != "program"])
def test_every_preset_says_where_to_listen_and_knows_its_model(preset):
    made = launch(of(preset), "m", "m-1", 7, 0, UUIDS, key="sesame")
    assert made.id == "m-1.g7.r0"
    assert {"{host}", "{port}"} <= set(made.argv)
    assert "m" in made.argv
    assert made.need_mib == 20_000


@pytest.mark.parametrize("preset", PRESETS)
def test_a_key_is_never_on_a_command_line(preset):
    made = launch(of(preset), "m", "m-1", 7, 0, UUIDS, key="sesame")
    assert made.key == "sesame"
    assert made.key_env or made.key_file
    assert "sesame" not in " ".join(made.argv) + " ".join(made.env.values()) + made.key_file


def test_an_engine_that_asks_for_no_key_gets_none():
    made = launch(of("vllm", api_key=False), "m", "m-1", 7, 0, UUIDS, key="sesame")
    assert (made.key, made.key_env) == ("", "")


def test_vllm_over_two_nodes_meets_at_rank_0():
    spec = of("vllm", shards=2)
    first = launch(spec, "m", "m-1", 7, 0, UUIDS)
    other = launch(spec, "m", "m-1", 7, 1, UUIDS, first=First("10.0.0.5", {"http": 20000, "master": 20001}))
    assert "--master-port {port:master}" in " ".join(first.argv)
    assert "--master-addr 10.0.0.5 --master-port 20001 --headless" in " ".join(other.argv)
    assert "--tensor-parallel-size 4" in " ".join(other.argv)
    assert "--headless" not in first.argv


def test_sglang_takes_its_key_from_a_file_that_is_named_on_the_command_line():
    made = launch(of("sglang"), "m", "m-1", 7, 0, UUIDS, key="sesame")
    assert made.argv[-2:] == ("--config", "{key_file}")
    assert made.key_file == "api-key: {key}\n"


def test_an_engine_without_gpus_finds_none_by_itself():
    assert launch(EngineSpec("llamacpp"), "m", "m-1", 1, 0, ()).env["CUDA_VISIBLE_DEVICES"] == ""


def test_a_program_is_started_as_it_was_written():
    spec = EngineSpec("program", ("/opt/serve",), args=("--listen", "{host}:{port}"), env={"A": "{gpus}"}, ports=("x",))
    made = launch(spec, "m", "m-1", 1, 0, UUIDS)
    assert made.argv == ("/opt/serve", "--listen", "{host}:{port}")
    assert (made.env["A"], made.ports) == ("{gpus}", ("http", "x"))


def test_vllm_is_given_its_own_grace_to_finish_requests():
    made = launch(of("vllm", stop_grace_s=90), "m", "m-1", 7, 0, UUIDS)
    assert made.argv[made.argv.index("--shutdown-timeout") + 1] == "90"
    assert made.stop_grace_s == 90


# -- revisions --------------------------------------------------------------------------------------

CHANGES = {
    "args": ("--x",), "env": {"A": "1"}, "executable": ("/opt/vllm-2/bin/vllm", "serve"), "model": "/models/n",
    "gpus": 1, "shards": 2, "gpu_memory_mib": 1, "user": "vllm", "preset": "sglang", "served_as": "x",
}  # fmt: skip
WITHOUT_RESTART = {"capacity": 4, "max_in_flight": 3, "start_within_s": 5.0, "stop_grace_s": 5.0, "fetch": ("x",)}


@pytest.mark.parametrize("name", CHANGES)
def test_what_the_engine_sees_makes_another_revision(name):
    assert attrs.evolve(of("vllm"), **{name: CHANGES[name]}).revision != of("vllm").revision


@pytest.mark.parametrize("name", WITHOUT_RESTART)
def test_what_it_does_not_see_keeps_the_revision(name):
    assert attrs.evolve(of("vllm"), **{name: WITHOUT_RESTART[name]}).revision == of("vllm").revision


@given(st.dictionaries(st.text(max_size=3), st.text(max_size=3)), st.frozensets(st.text(max_size=3)))
def test_a_revision_is_the_same_however_it_was_written(env, adapters):
    turned = dict(reversed(env.items()))
    spec = of("vllm", env=env, adapters=adapters)
    assert spec.revision == attrs.evolve(spec, env=turned).revision
