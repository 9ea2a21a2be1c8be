"""The routes that make no text: embeddings, rerank, score, tokens there and back.

Each input is a sequence of its own that wants no token: it waits, is prefilled, and is done.
"""

import struct
from base64 import b64encode
from typing import Any

import trio

from llmgw.gateway.exchange import Exchange
from sim.asked import JsonObject, Wrong, checked_prompt, model_of, number, object_of, prompt_of, required
from sim.chat_template import chat_prompt
from sim.faults import Fault
from sim.openai_forms import compact
from sim.simulator import Route, Simulator
from sim.text import score, text_of, token_ids, vector

_DIMENSIONS = 64
_MOST_DIMENSIONS = 4096
_MOST_INPUTS = 2048


async def embeddings(sim: Simulator, exchange: Exchange) -> None:
    if (got := await sim.body(exchange)) is None:
        return
    asked, fault = got
    model = model_of(asked, sim.shape)
    dimensions = int(number(asked, "dimensions", 1, _MOST_DIMENSIONS) or _DIMENSIONS)
    encoding = asked.get("encoding_format", "float")
    if encoding not in ("float", "base64"):
        raise Wrong(400, f"encoding_format must be float or base64, not {encoding!r}", param="encoding_format")
    prompts = _inputs(asked)
    tokens = await _prefilled(sim, prompts, fault)
    data = [
        {"index": n, "object": "embedding", "embedding": _encoded(vector(prompt, dimensions), encoding)}
        for n, prompt in enumerate(prompts)
    ]
    named = {"id": sim.new_id("embd-", exchange), "object": "list", "created": sim.now(), "model": model}
    await sim.answering.say(exchange, compact({**named, "data": data, "usage": _usage(tokens)}), fault)


def _inputs(asked: JsonObject) -> list[bytes]:
    if "messages" in asked:
        return [chat_prompt(asked["messages"])]
    given = required(asked, "input")
    many = isinstance(given, list) and bool(given) and not isinstance(given[0], int)
    prompts = [prompt_of(one) for one in given] if many else [prompt_of(given)]
    if len(prompts) > _MOST_INPUTS:
        raise Wrong(400, f"at most {_MOST_INPUTS} inputs, not {len(prompts)}", param="input")
    return prompts


def _encoded(numbers: list[float], encoding: str) -> object:
    return numbers if encoding == "float" else b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


async def rerank(sim: Simulator, exchange: Exchange) -> None:
    if (got := await sim.body(exchange)) is None:
        return
    asked, fault = got
    model = model_of(asked, sim.shape)
    query, documents = _text(required(asked, "query")), _texts(required(asked, "documents"))
    tokens = await _prefilled(sim, [query + document for document in documents], fault)
    results: list[JsonObject] = [
        {"index": n, "document": {"text": document.decode()}, "relevance_score": score(query, document)}
        for n, document in enumerate(documents)
    ]
    results.sort(key=lambda result: -float(result["relevance_score"]))
    most = int(number(asked, "top_n", 0) or len(results))
    said = {"id": sim.new_id("rerank-", exchange), "model": model, "usage": _usage(tokens), "results": results[:most]}
    await sim.answering.say(exchange, compact(said), fault)


async def scores(sim: Simulator, exchange: Exchange) -> None:
    if (got := await sim.body(exchange)) is None:
        return
    asked, fault = got
    model = model_of(asked, sim.shape)
    ones, others = _texts(required(asked, "text_1")), _texts(required(asked, "text_2"))
    if len(ones) not in (1, len(others)):
        raise Wrong(400, "Input lengths must be either 1:1, 1:N or N:N", param="text_1")
    pairs = list(zip(ones * len(others) if len(ones) == 1 else ones, others, strict=True))
    tokens = await _prefilled(sim, [one + other for one, other in pairs], fault)
    data = [{"index": n, "object": "score", "score": score(*pair)} for n, pair in enumerate(pairs)]
    named = {"id": sim.new_id("score-", exchange), "object": "list", "created": sim.now(), "model": model}
    await sim.answering.say(exchange, compact({**named, "data": data, "usage": _usage(tokens)}), fault)


async def tokenize(sim: Simulator, exchange: Exchange) -> None:
    asked = object_of(await exchange.body())
    model_of(asked, sim.shape)
    text = (
        chat_prompt(asked["messages"], asked.get("tools")) if "messages" in asked else _text(required(asked, "prompt"))
    )
    ids = token_ids(text)
    strings = [text_of([i]).decode(errors="replace") for i in ids] if asked.get("return_token_strs") else None
    said = {"count": len(ids), "max_model_len": sim.shape.longest, "tokens": ids, "token_strs": strings}
    await exchange.answer(200, compact(said))


async def detokenize(sim: Simulator, exchange: Exchange) -> None:
    asked = object_of(await exchange.body())
    model_of(asked, sim.shape)
    tokens = required(asked, "tokens")
    if not isinstance(tokens, list) or not all(isinstance(t, int) and t >= 0 for t in tokens):
        raise Wrong(400, "tokens must be a list of token ids", param="tokens")
    await exchange.answer(200, compact({"prompt": text_of(tokens).decode(errors="replace")}))


async def _prefilled(sim: Simulator, prompts: list[bytes], fault: Fault) -> int:
    """All of them together; how many tokens they have."""
    tokens = sum(checked_prompt(prompt, sim.shape) for prompt in prompts)
    await trio.sleep(fault.slow_first_token_s)
    async with trio.open_nursery() as nursery:
        for prompt in prompts:
            nursery.start_soon(_prefill, sim, prompt)
    return tokens


async def _prefill(sim: Simulator, prompt: bytes) -> None:
    with sim.engine.sequence(prompt, 0) as sequence:
        await sequence.all_tokens()


def _texts(given: object) -> list[bytes]:
    many = given if isinstance(given, list) else [given]
    if not 0 < len(many) <= _MOST_INPUTS:
        raise Wrong(400, f"1 to {_MOST_INPUTS} texts, not {len(many)}")
    return [_text(one) for one in many]


def _text(given: object) -> bytes:
    match given:
        case str():
            return given.encode()
        case {"text": str(text)}:
            return text.encode()
    raise Wrong(400, "a text must be a string")


def _usage(tokens: int) -> dict[str, Any]:
    return {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "prompt_tokens_details": None}


POOLING_ROUTES: dict[str, dict[str, Route]] = {
    "/v1/embeddings": {"POST": embeddings},
    "/v1/rerank": {"POST": rerank},
    "/rerank": {"POST": rerank},
    "/v2/rerank": {"POST": rerank},
    "/v1/score": {"POST": scores},
    "/score": {"POST": scores},
    "/tokenize": {"POST": tokenize},
    "/detokenize": {"POST": detokenize},
}
