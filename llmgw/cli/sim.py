"""``llmgw sim``: simulated engines, for trials, tests and the demo."""

import os
import signal

import click
import trio

from llmgw.tasks.sockets import Watcher, listen
from sim.engine_model import EngineShape
from sim.serving import EngineSpec, Served, serve_engine


@click.group(name="sim")
def command() -> None:
    """Simulated engines."""


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
@click.option("--chat-only", is_flag=True, help="Only chat completions; everything else is 404.")
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
    chat_only: bool,
) -> None:
    """One engine that behaves like a vLLM."""
    if min(prefill_rate, decode_rate, step) <= 0:
        raise click.UsageError("rates and step must be above 0")
    if min(batch_rate, prefill_seconds) < 0:
        raise click.UsageError("--batch-rate and --prefill-seconds must be 0 or more")
    shape = EngineShape(
        models, slots, blocks, prefill_rate, decode_rate, step, seed, context, batch_rate, prefill_seconds
    )
    trio.run(_serve, EngineSpec(shape, api_key, chat_only), f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


async def _serve(spec: EngineSpec, address: str) -> None:
    with Watcher() as watcher, trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        listener = await listen(watcher, address)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watcher.run)
            served: Served = await nursery.start(serve_engine, spec, [listener])
            click.echo(f"listening on http://{listener.address}")
            served.simulator.on_faults = lambda: _fork(served.simulator.faults.children)
            async for number in signals:
                if number == signal.SIGINT or not served.simulator.faults.ignores_sigterm:
                    served.stop()
                    nursery.cancel_scope.cancel()


_children: list[int] = []


def _fork(wanted: int) -> None:
    """Processes in our group that do not end with us, as an engine's workers may."""
    while len(_children) < wanted:
        _children.append(os.posix_spawn("/bin/sleep", ["sleep", "3600"], dict(os.environ)))
    while len(_children) > wanted:
        child = _children.pop()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
