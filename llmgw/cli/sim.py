"""``llmgw sim``: simulated engines and nodes, for trials, tests and the demo."""

import os
from pathlib import Path
from typing import Any

import click

from sim.engine_model import EngineShape
from sim.loading import LoadingSpec
from sim.process import ProcessSpec, run
from sim.serving import EngineSpec


@click.group(name="sim")
def command() -> None:
    """Simulated engines and nodes."""


@command.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=0, show_default=True, type=click.IntRange(0, 65535), help="0 takes any free one.")
@click.option("--model", "models", multiple=True, default=("sim",), show_default=True, help="May be repeated.")
@click.option("--slots", default=32, show_default=True, type=click.IntRange(1), help="Sequences at once.")
@click.option("--blocks", default=4096, show_default=True, type=click.IntRange(2), help="KV blocks of 16 tokens.")
@click.option("--prefill-rate", default=20_000.0, show_default=True, help="Prompt tokens a second, all together.")
@click.option("--decode-rate", default=50.0, show_default=True, help="Tokens a second for each sequence.")
@click.option("--step", default=0.02, show_default=True, help="Seconds between two hand-outs of tokens.")
@click.option("--seed", default=0, show_default=True, help="Other seeds say other things.")
@click.option("--context", default=8192, show_default=True, type=click.IntRange(2), help="Most tokens of a sequence.")
@click.option("--batch-rate", default=0.0, show_default=True, help="Tokens a second of the whole batch; 0: no bound.")
@click.option("--prefill-seconds", default=0.0, show_default=True, help="What a prompt takes; 0: by --prefill-rate.")
@click.option("--api-key", help="Refuse requests without it.")
@click.option(
    "--api-key-env", default="LLMGW_SIM_API_KEY", show_default=True, help="Variable with that key, if there is one."
)
@click.option("--chat-only", is_flag=True, help="Only chat completions; everything else is 404.")
@click.option("--ready-after", default=0.0, show_default=True, help="Seconds until it completes anything.")
@click.option("--health-after", type=float, help="Seconds until /health is 200, not 503; by default --ready-after.")
@click.option("--rank", default=0, show_default=True, type=click.IntRange(0), help="Above 0: a shard without an API.")
@click.option("--ranks", type=click.IntRange(1), help="Shards of its replica.  [default: 2 with --peer, else 1]")
@click.option("--peer", default="", help="host:port where rank 0 listens for the other shards.")
@click.option("--gpu-memory", type=click.IntRange(0), help="MiB of each simulated GPU.  [default: 2 for each block]")
@click.option("--exit-at-start", type=click.IntRange(0, 255), metavar="CODE", help="End at once.")
@click.option("--exit-after", type=click.FloatRange(0), metavar="SECONDS", help="End then, with code 1.")
@click.option("--ignore-sigterm", is_flag=True, help="Only SIGINT and SIGKILL end it.")
@click.option("--children", default=0, show_default=True, type=click.IntRange(0, 16), help="Processes that outlive it.")
@click.option("--also-port", "also_ports", multiple=True, type=click.IntRange(1, 65535), help="Listen there too.")
def engine(
    host: str,
    port: int,
    models: tuple[str, ...],
    slots: int,
    blocks: int,
    prefill_rate: float,
    decode_rate: float,
    step: float,
    seed: int,
    context: int,
    batch_rate: float,
    prefill_seconds: float,
    api_key: str | None,
    api_key_env: str,
    chat_only: bool,
    ready_after: float,
    health_after: float | None,
    ranks: int | None,
    **process: Any,
) -> None:
    """One engine that behaves like a vLLM."""
    if min(prefill_rate, decode_rate, step) <= 0:
        raise click.UsageError("rates and step must be above 0")
    if min(batch_rate, prefill_seconds) < 0:
        raise click.UsageError("--batch-rate and --prefill-seconds must be 0 or more")
    shape = EngineShape(
        models, slots, blocks, prefill_rate, decode_rate, step, seed, context, batch_rate, prefill_seconds
    )
    peer = process["peer"]
    if not peer and (process["rank"] or (ranks or 1) > 1):
        raise click.UsageError("shards need --peer")
    loading = LoadingSpec(ready_after, health_after, ranks or (2 if peer else 1), peer)
    spec = EngineSpec(shape, api_key or os.environ.get(api_key_env) or None, chat_only, loading)
    run(spec, ProcessSpec(**process), f"[{host}]:{port}" if ":" in host else f"{host}:{port}", click.echo)


@command.command()
@click.option(
    "--dir", "folder", required=True, type=click.Path(file_okay=False, path_type=Path), help="Its own folder."
)
@click.option("--server", "servers", required=True, multiple=True, help="host:port of an agent listener; repeatable.")
@click.option("--name", default="sim", show_default=True, help="The node's name.")
@click.option("--join", "join_token", default="", help="@FILE with a join token, mode 0600; only for the first start.")
@click.option("--gpus", default=1, show_default=True, type=click.IntRange(0, 64), help="How many.")
@click.option("--gpu-memory", "gpu_mib", default=24 * 1024, show_default=True, type=click.IntRange(1), help="MiB each.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="What placement may ask for; repeatable.")
@click.option("--ports", default="20000-20999", show_default=True, help="Ports that engines get.")
@click.option("--address", default="127.0.0.1", show_default=True, help="Where its engines are reached.")
@click.option("--boot", default="", help="Another id means that its machine was started again.  [default: this host's]")
def node(folder: Path, labels: tuple[str, ...], boot: str, **said: Any) -> None:
    """An agent whose GPUs are a file, DIR/gpus/gpus.json: edit it to break them. Its engines are real processes."""
    from agent.proc import SIM_BOOT
    from llmgw.cli.agent import run_agent, server_address
    from sim.node import NodeSpec, inventory_of

    if boot:
        os.environ[SIM_BOOT] = boot
    pairs = dict(label.partition("=")[::2] for label in labels)
    said["servers"] = tuple(map(server_address, said["servers"]))
    spec = NodeSpec(folder=folder, labels=pairs, **said)
    run_agent(spec.settings, inventory_of(spec) if spec.gpus else None)
