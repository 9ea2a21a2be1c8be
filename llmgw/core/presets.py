"""How each kind of engine is started: command line, environment, ports, metrics, grace. Data, and its expansion.

Flags are those of vLLM 0.33, SGLang 0.5.23 and llama.cpp's server. What the agent fills in stays in braces:
{host} {port} {port:NAME} {gpus} {key_file}. Everything else is filled in here.
"""

from collections.abc import Mapping

from attrs import field, frozen

from llmgw.core.engine_spec import EngineSpec
from llmgw.core.fleet import Engine
from llmgw.core.shards import HTTP, Fetch, Launch, instance_id


@frozen
class Preset:
    """``first`` is added for rank 0 of several shards, ``others`` for the rest."""

    engine: Engine
    executable: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(factory=dict)
    ports: tuple[str, ...] = (HTTP,)
    key_env: str = ""
    key_file: str = ""
    key_argv: tuple[str, ...] = ()
    several: tuple[str, ...] = ()  # added to each of several shards
    others: tuple[str, ...] = ()
    rendezvous: str = ""  # port of rank 0 where the others find it
    stop_grace_s: float = 30.0
    own_model: bool = True  # it is told which model to load


PRESETS: Mapping[str, Preset] = {
    "vllm": Preset(
        Engine.VLLM,
        ("vllm", "serve"),
        (
            "[model]",
            "--host",
            "{host}",
            "--port",
            "{port}",
            "--served-model-name",
            "[served_as]",
            "--tensor-parallel-size",
            "[gpus_all]",
            "--shutdown-timeout",
            "[stop_grace]",
        ),
        # Hundreds of lines of progress bars are no log.
        {"HF_HUB_DISABLE_PROGRESS_BARS": "1"},
        ports=(HTTP, "master"),
        key_env="VLLM_API_KEY",
        several=(
            "--nnodes",
            "[shards]",
            "--node-rank",
            "[rank]",
            "--master-addr",
            "[first_host]",
            "--master-port",
            "[first_port:master]",
        ),
        others=("--headless",),
        rendezvous="master",
        stop_grace_s=60.0,
    ),
    "sglang": Preset(
        Engine.SGLANG,
        ("python3", "-m", "sglang.launch_server"),
        (
            "--model-path",
            "[model]",
            "--host",
            "{host}",
            "--port",
            "{port}",
            "--served-model-name",
            "[served_as]",
            "--tp-size",
            "[gpus_all]",
            "--nccl-port",
            "{port:nccl}",
            "--enable-metrics",
        ),
        ports=(HTTP, "nccl", "dist"),
        key_file="api-key: {key}\n",  # it has no variable for it, and a command line is no secret
        key_argv=("--config", "{key_file}"),
        several=("--nnodes", "[shards]", "--node-rank", "[rank]", "--dist-init-addr", "[first_host]:[first_port:dist]"),
        rendezvous="dist",
        stop_grace_s=60.0,
    ),
    "llamacpp": Preset(
        Engine.LLAMACPP,
        ("llama-server",),
        ("--model", "[model]", "--host", "{host}", "--port", "{port}", "--alias", "[served_as]", "--metrics"),
        key_env="LLAMA_API_KEY",
    ),
    "sim": Preset(
        Engine.SIM,
        ("llmgw", "sim", "engine"),
        ("--host", "{host}", "--port", "{port}", "--model", "[served_as]", "--gpu-memory", "[gpu_memory_mib]"),
        key_env="LLMGW_SIM_API_KEY",
        ports=(HTTP, "peer"),
        several=("--ranks", "[shards]", "--rank", "[rank]", "--peer", "[first_host]:[first_port:peer]"),
        rendezvous="peer",
        stop_grace_s=10.0,
        own_model=False,
    ),
    # Anything that speaks the OpenAI API; its args say all, {host} and {port} among them.
    "program": Preset(Engine.VLLM, own_model=False, key_env="LLMGW_ENGINE_KEY"),
}


def engine_of(spec: EngineSpec) -> Engine:
    """Whose metrics and manners it has."""
    return Engine(spec.speaks) if spec.speaks else PRESETS[spec.preset].engine


def stop_grace_of(spec: EngineSpec) -> float:
    """Seconds between its SIGTERM and its SIGKILL."""
    return spec.stop_grace_s or PRESETS[spec.preset].stop_grace_s


@frozen
class First:
    """Where rank 0 is, for the others; ports by name."""

    host: str = ""
    ports: Mapping[str, int] = field(factory=dict)


def launch(
    spec: EngineSpec,
    model: str,
    replica: str,
    generation: int,
    rank: int,
    gpus: tuple[str, ...],
    key: str = "",
    first: First | None = None,
) -> Launch:
    """One shard's entry of ``wanted``. ``first``: of rank 0, for the ranks after it."""
    preset, grace = PRESETS[spec.preset], stop_grace_of(spec)
    filled = {
        "[model]": spec.model or model,
        "[served_as]": spec.served_as or model,
        "[gpus_all]": str(max(1, spec.gpus * spec.shards)),
        "[gpu_memory_mib]": str(spec.gpu_memory_mib),
        "[shards]": str(spec.shards),
        "[rank]": str(rank),
        "[stop_grace]": f"{grace:.0f}",
        "[first_host]": "{host}" if first is None else first.host,
    }
    for name in preset.ports:
        at_first = f"{{port:{name}}}" if first is None else str(first.ports.get(name, 0))
        filled[f"[first_port:{name}]"] = at_first
    several = (*preset.several, *(preset.others if rank else ())) if spec.shards > 1 else ()
    asks = spec.api_key and bool(key)
    flags = (*preset.argv, *several, *(preset.key_argv if asks else ()))
    argv = (*(spec.executable or preset.executable), *(_filled(flag, filled) for flag in flags), *spec.args)
    files = None
    if spec.model.startswith("/") or spec.fetch:
        files = Fetch(spec.model, spec.fetch, spec.fetch_within_s)
    return Launch(
        id=instance_id(replica, generation, rank),
        argv=argv,
        env=_environment(preset, spec, gpus),
        cwd=spec.cwd,
        user=spec.user,
        ports=(*preset.ports, *spec.ports),
        gpus=gpus,
        need_mib=spec.gpu_memory_mib,
        files=files,
        stop_grace_s=grace,
        key=key if asks else "",
        key_env=preset.key_env if asks else "",
        key_file=preset.key_file if asks else "",
    )


def _environment(preset: Preset, spec: EngineSpec, gpus: tuple[str, ...]) -> dict[str, str]:
    # An engine that asked for none must not find some by itself.
    return {**preset.env, "CUDA_VISIBLE_DEVICES": "{gpus}" if gpus else "", **spec.env}


def _filled(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(name, value)
    return text
