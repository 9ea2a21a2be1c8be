"""The routes that generate text: chat, completions, responses, messages."""

from typing import Any

from llmgw.gateway.exchange import Exchange
from sim.anthropic_form import MessagesForm, anthropic_error
from sim.asked import JsonObject, Wrong, checked_prompt, generation, model_of, object_of, prompt_of, required
from sim.chat_template import call_for, chat_prompt, last_user_text, openai_tools, text_content, tools_of
from sim.openai_forms import ChatForm, CompletionForm, compact
from sim.responses_form import ResponsesForm
from sim.simulator import Route, Simulator

_COMPLETION_TOKENS = 16


async def chat(sim: Simulator, exchange: Exchange) -> None:
    if (got := await sim.body(exchange)) is None:
        return
    asked, fault = got
    messages = required(asked, "messages")
    prompt = chat_prompt(messages, asked.get("tools"))
    call = call_for(openai_tools(asked), asked.get("tool_choice"), last_user_text(messages))
    ask = generation(asked, sim.shape, prompt, ("max_completion_tokens", "max_tokens"), None, call)
    form = ChatForm(ask, sim.new_id("chatcmpl-", exchange), sim.now())
    await sim.generate(exchange, ask, form, fault)


async def completions(sim: Simulator, exchange: Exchange) -> None:
    if (got := await sim.body(exchange)) is None:
        return
    asked, fault = got
    prompt = prompt_of(required(asked, "prompt"))
    ask = generation(asked, sim.shape, prompt, ("max_tokens",), _COMPLETION_TOKENS, None)
    echo = prompt if asked.get("echo") else b""
    form = CompletionForm(ask, sim.new_id("cmpl-", exchange), sim.now(), echo=echo)
    await sim.generate(exchange, ask, form, fault)


async def responses(sim: Simulator, exchange: Exchange) -> None:
    if (got := await sim.body(exchange)) is None:
        return
    asked, fault = got
    if before := asked.get("previous_response_id"):
        raise Wrong(404, f"Response with id '{before}' not found.", "NotFoundError", "response_id")
    turns = _turns_of(required(asked, "input"), asked.get("instructions"))
    prompt = chat_prompt(turns, asked.get("tools"))
    call = call_for(openai_tools(asked), asked.get("tool_choice"), last_user_text(turns))
    ask = generation(asked, sim.shape, prompt, ("max_output_tokens",), None, call)
    form = ResponsesForm(ask, sim.new_id("resp_", exchange), sim.now(), asked)
    await sim.generate(exchange, ask, form, fault)


def _turns_of(given: object, instructions: object) -> list[Any]:
    """A response's input as chat turns; items that are no message stand as their JSON."""
    turns: list[Any] = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(given, str):
        return [*turns, {"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise Wrong(400, "input must be a string or a non-empty list of items", param="input")
    return turns + [i if isinstance(i, dict) and "role" in i else {"role": "tool", "content": [i]} for i in given]


async def messages(sim: Simulator, exchange: Exchange) -> None:
    if (got := await sim.body(exchange)) is None:
        return
    asked, fault = got
    try:
        required(asked, "max_tokens")
        turns, tools = _anthropic_turns(asked)
        prompt = chat_prompt(turns, asked.get("tools"))
        choice = asked.get("tool_choice")
        kind = choice.get("type") if isinstance(choice, dict) else None
        call = call_for(tools, choice if kind == "tool" else kind, last_user_text(turns))
        ask = generation(asked, sim.shape, prompt, ("max_tokens",), None, call)
    except Wrong as wrong:
        await _anthropic_refusal(exchange, wrong)
        return
    await sim.generate(exchange, ask, MessagesForm(ask, sim.new_id("chatcmpl-", exchange)), fault)


async def count_tokens(sim: Simulator, exchange: Exchange) -> None:
    asked = object_of(await exchange.body())
    try:
        model_of(asked, sim.shape)
        tokens = checked_prompt(chat_prompt(_anthropic_turns(asked)[0], asked.get("tools")), sim.shape)
    except Wrong as wrong:
        await _anthropic_refusal(exchange, wrong)
        return
    await exchange.answer(200, compact({"input_tokens": tokens}))


def _anthropic_turns(asked: JsonObject) -> tuple[list[Any], list[tuple[str, Any]]]:
    turns = required(asked, "messages")
    if not isinstance(turns, list) or not turns:
        raise Wrong(400, "messages must be a non-empty list", param="messages")
    if system := text_content(asked.get("system")):
        turns = [{"role": "system", "content": system}, *turns]
    tools = [t for t in tools_of(asked) if isinstance(t, dict) and isinstance(t.get("name"), str)]
    return turns, [(tool["name"], tool.get("input_schema")) for tool in tools]


async def _anthropic_refusal(exchange: Exchange, wrong: Wrong) -> None:
    await exchange.answer(wrong.status, anthropic_error(wrong.kind, str(wrong)))


GENERATION_ROUTES: dict[str, dict[str, Route]] = {
    "/v1/chat/completions": {"POST": chat},
    "/v1/completions": {"POST": completions},
    "/v1/responses": {"POST": responses},
    "/v1/messages": {"POST": messages},
    "/v1/messages/count_tokens": {"POST": count_tokens},
}
