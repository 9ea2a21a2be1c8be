"""The routes that tell of the engine: models, health, metrics, and what only a simulator has."""

from itertools import islice

from llmgw.gateway.exchange import Exchange
from sim.asked import JsonObject, Wrong, decoded
from sim.engine_metrics import CONTENT_TYPE, metrics
from sim.engine_model import Sequence
from sim.openai_forms import compact
from sim.simulator import Route, Simulator

VERSION = "0.32.0"
_SHOWN_MOST = 200  # sequences in /sim/state


async def models(sim: Simulator, exchange: Exchange) -> None:
    listed = [_model_card(name, sim) for name in sim.shape.models]
    await exchange.answer(200, compact({"object": "list", "data": listed}))


def _model_card(name: str, sim: Simulator) -> JsonObject:
    return {
        "id": name,
        "object": "model",
        "created": int(sim.started_at),
        "owned_by": "vllm",
        "root": name,
        "parent": None,
        "max_model_len": sim.shape.longest,
        "permission": [],
    }


async def health(sim: Simulator, exchange: Exchange) -> None:
    await exchange.answer(sim.faults.take_health(), b"")


async def version(sim: Simulator, exchange: Exchange) -> None:
    await exchange.answer(200, compact({"version": VERSION}))


async def load(sim: Simulator, exchange: Exchange) -> None:
    busy = len(sim.engine.running) + len(sim.engine.waiting)
    await exchange.answer(200, compact({"server_load": busy}))


async def show_metrics(sim: Simulator, exchange: Exchange) -> None:
    text = metrics(sim.engine, sim.shape.models[0], sim.started_at, sim.finished, sim.answering.first_tokens)
    await exchange.answer(200, text, content_type=CONTENT_TYPE)


async def state(sim: Simulator, exchange: Exchange) -> None:
    engine = sim.engine
    blocks = engine.blocks
    held = {"total": blocks.total, "free": blocks.free, "used": blocks.used, "cached": blocks.cached}
    counters, busy = engine.counters, sim.connections()
    sequences = [*islice(engine.running, _SHOWN_MOST), *islice(engine.waiting, _SHOWN_MOST)][:_SHOWN_MOST]
    shown = {
        "blocks": held,
        "running": len(engine.running),
        "waiting": len(engine.waiting),
        "served": counters.served,
        "aborted": counters.aborted,
        "preempted": counters.preempted,
        "generation_tokens": counters.generation_tokens,
        "connections": {"open": len(busy), "busy": sum(busy)},
        "sequences": [_shown(sequence) for sequence in sequences],
    }
    await exchange.answer(200, compact(shown))


def _shown(sequence: Sequence) -> JsonObject:
    return {
        "id": sequence.name,
        "state": sequence.state.value,
        "prompt_tokens": sequence.prompt_tokens,
        "cached_tokens": sequence.cached_tokens,
        "made": sequence.made,
        "wants": sequence.wants,
        "blocks": sequence.lease.size,
    }


async def show_faults(sim: Simulator, exchange: Exchange) -> None:
    await exchange.answer(200, compact({"faults": sim.faults.shown()}))


async def set_faults(sim: Simulator, exchange: Exchange) -> None:
    try:
        sim.faults.set(decoded(await exchange.body()))
    except ValueError as error:
        raise Wrong(400, str(error)) from error
    await _faults_changed(sim, exchange)


async def clear_faults(sim: Simulator, exchange: Exchange) -> None:
    sim.faults.clear()
    await _faults_changed(sim, exchange)


async def _faults_changed(sim: Simulator, exchange: Exchange) -> None:
    sim.wedge()
    if sim.on_faults is not None:
        sim.on_faults()
    await show_faults(sim, exchange)


ENGINE_ROUTES: dict[str, dict[str, Route]] = {
    "/v1/models": {"GET": models},
    "/health": {"GET": health},
    "/ping": {"GET": health, "POST": health},
    "/version": {"GET": version},
    "/load": {"GET": load},
    "/metrics": {"GET": show_metrics},
    "/sim/state": {"GET": state},
    "/sim/faults": {"GET": show_faults, "POST": set_faults, "DELETE": clear_faults},
}
