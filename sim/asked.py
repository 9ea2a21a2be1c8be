"""What does a request ask of the engine, and is it something vLLM would refuse?"""

import json
from typing import Any, NoReturn

import msgspec
from attrs import frozen

from sim.blocks import tokens_of
from sim.engine_model import EngineShape
from sim.text import Voice, text_of, voice

JsonObject = dict[str, Any]
_MOST_CHOICES = 16


class Wrong(Exception):
    """The engine refuses; says so in vLLM's words."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind
        self.body = json.dumps(
            {"error": {"message": message, "type": kind, "param": param, "code": status}}, separators=(",", ":")
        ).encode()


@frozen
class Call:
    """A tool the engine decides to call."""

    name: str
    value: Any

    @property
    def arguments(self) -> str:
        return json.dumps(self.value)


@frozen
class Ask:
    """One generation asked for, whatever the API it came through."""

    model: str
    prompt: bytes
    wants: int
    finish: str  # "stop" | "length" | "tool_calls"
    voices: tuple[Voice, ...]  # one a choice
    stream: bool
    usage_chunk: bool
    usage_each: bool
    call: Call | None


def object_of(body: bytes) -> JsonObject:
    try:
        asked = decoded(body)
    except ValueError as error:
        raise _invalid("body.0", "json_invalid", "JSON decode error", f"ctx': {{'error': '{error}'}}") from error
    if not isinstance(asked, dict):
        raise _invalid("body", "model_attributes_type", "Input should be a valid dictionary or object", "")
    return asked


def decoded(body: bytes) -> Any:
    """Raises ValueError, for what is nested too deep as well."""
    try:
        return msgspec.json.decode(body)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def required(asked: JsonObject, name: str) -> Any:
    if name not in asked:
        raise _invalid(f"body.{name}", "missing", "Field required", "")
    return asked[name]


def _invalid(where: str, kind: str, message: str, more: str) -> Wrong:
    tail = f", '{more}" if more else ""
    text = f"1 validation error:\n  {{'type': '{kind}', 'loc': '{where}', 'msg': '{message}'{tail}}}"
    return Wrong(400, text, "Bad Request", where)


def model_of(asked: JsonObject, shape: EngineShape) -> str:
    model = asked.get("model") or shape.models[0]
    if model not in shape.models:
        message = f"The model `{model}` does not exist. Valid aliases: {', '.join(shape.models)}."
        raise Wrong(404, message, "NotFoundError", "model")
    return str(model)


def number(asked: JsonObject, name: str, least: float, most: float | None = None) -> float | None:
    value = asked.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _invalid(f"body.{name}", "float_type", "Input should be a valid number", "")
    if value < least or (most is not None and value > most):
        wanted = "non-negative" if least == 0 and most is None else f"at least {least:g}"
        bound = f" and at most {most:g}" if most is not None else ""
        raise Wrong(400, f"{name} must be {wanted}{bound}, got {value}. (parameter={name}, value={value})", param=name)
    return value


def checked_prompt(prompt: bytes, shape: EngineShape) -> int:
    """Tokens of a prompt that fits."""
    tokens = max(1, tokens_of(prompt))
    if tokens >= shape.longest:
        too_long(shape, f"your prompt contains {tokens} input tokens", "input_tokens", tokens)
    return tokens


def too_long(shape: EngineShape, what: str, param: str, value: int) -> NoReturn:
    raise Wrong(
        400,
        f"This model's maximum context length is {shape.longest} tokens. However, {what}. "
        f"Please reduce the length of the input prompt. (parameter={param}, value={value})",
        param=param,
    )


def generation(
    asked: JsonObject,
    shape: EngineShape,
    prompt: bytes,
    limit_names: tuple[str, ...],
    default: int | None,
    call: Call | None,
) -> Ask:
    """Check what all APIs share."""
    model = model_of(asked, shape)
    number(asked, "temperature", 0)
    number(asked, "top_p", 0, 1)
    choices = int(number(asked, "n", 1, _MOST_CHOICES) or 1)
    seed = shape.seed + int(number(asked, "seed", -(2**63)) or 0)
    voices = tuple(voice(prompt, seed, n) for n in range(choices))
    tokens = checked_prompt(prompt, shape)
    most = next((int(v) for name in limit_names if (v := number(asked, name, 1)) is not None), default)
    room = shape.longest - tokens
    if most is not None and most > room:
        what = f"you requested {most} output tokens and your prompt contains {tokens} input tokens"
        too_long(shape, what, limit_names[0], most)
    most = room if most is None else most
    natural = tokens_of(call.arguments.encode()) if call else voices[0].natural
    natural = max(natural, int(number(asked, "min_tokens", 0) or 0))
    stops = natural <= most and not asked.get("ignore_eos")
    finish = "length" if not stops else "tool_calls" if call else "stop"
    options = _stream_options(asked)
    return Ask(
        model,
        prompt,
        natural if stops else most,
        finish,
        voices,
        bool(asked.get("stream")),
        bool(options.get("include_usage")),
        bool(options.get("continuous_usage_stats")),
        call,
    )


def _stream_options(asked: JsonObject) -> JsonObject:
    options = asked.get("stream_options")
    if options is None:
        return {}
    if not asked.get("stream"):
        raise _invalid("body", "value_error", "Value error, Stream options can only be defined when `stream=True`.", "")
    if not isinstance(options, dict):
        raise _invalid("body.stream_options", "model_attributes_type", "Input should be a valid dictionary", "")
    return options


def prompt_of(value: object) -> bytes:
    """A completion's prompt: text, token ids, or a list with one of them."""
    match value:
        case str():
            return value.encode()
        case [int(), *_]:
            return text_of([t for t in value if isinstance(t, int) and t >= 0])
        case [str() | list() as only]:
            return prompt_of(only)
    raise Wrong(400, "Either prompt or prompt_embeds must be provided and non-empty.", param="prompt")
