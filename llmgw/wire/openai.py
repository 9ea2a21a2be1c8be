"""What the gateway reads of a request's JSON, and the few bytes it changes before an engine sees it."""

import json
import operator
import re
from typing import Any

import msgspec
from attrs import define

from llmgw.wire import members

# Fields that engines act on and that a client must not set (api.md's list); they are taken out.
PRIVILEGED = (
    "request_id", "priority", "session_id", "cache_salt", "kv_transfer_params", "ec_transfer_params", "vllm_xargs",
    "mm_payload", "prompt_embeds", "rid", "bootstrap_host", "bootstrap_port", "bootstrap_room",
)  # fmt: skip
_ACTED_ON = ("model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "n")
_HUGE_EXPONENT = re.compile(rb"[0-9][eE]\+?[0-9]{3}")
_MODEL_MAX = 256


class Invalid(Exception):
    """The body is not a request; ``code`` and ``param`` as in OpenAI's errors."""

    def __init__(self, message: str, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.message, self.param, self.code = message, param, code


class Given:
    """A member that was there; made once per time it stands in the text, so that repeats are noticed."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


_ABSENT = Given(None)
_NOTHING = msgspec.Raw()

_Read = msgspec.defstruct(
    "_Read",
    [(name, Given, _ABSENT) for name in (*_ACTED_ON, *PRIVILEGED)]
    + [
        (name, msgspec.Raw, _NOTHING) for name in ("messages", "prompt", "input", "prompt_cache_key", "encoding_format")
    ],
)

_members = operator.attrgetter(*_ACTED_ON, *PRIVILEGED)
_made: list[Given] = []  # during one decode; msgspec keeps only the last of repeated members


def _make(_type: type, value: Any) -> Given:
    given = Given(value)
    _made.append(given)
    return given


_decode = msgspec.json.Decoder(_Read, dec_hook=_make).decode


@define(eq=False)
class Ask:
    """One request as the road needs it. ``body`` is exactly what the client sent."""

    body: bytes
    model: str
    stream: bool
    asked_for_usage: bool
    stream_options: dict[str, Any] | None
    has_stream_options: bool
    max_tokens: int | None
    n: int
    privileged: tuple[str, ...]
    prompt: bytes  # the raw JSON that the prompt's prefix is hashed from
    session: bytes
    wants_base64: bool


def read(body: bytes, model_needed: bool = True) -> Ask:
    """Decode what we act on. Raises Invalid."""
    found = _decoded(body)
    given = _members(found)
    present = len(given) - given.count(_ABSENT)
    if len(_made) != present:
        name = _repeated(body)
        raise Invalid(f"{name or 'a member'} stands twice in the body, and decides about it", name, "invalid_json")
    stream = found.stream is not _ABSENT and _flag(found.stream, "stream")
    options = None if found.stream_options is _ABSENT else _options(found.stream_options)
    return Ask(
        body=body,
        model=_model(found.model, model_needed),
        stream=stream,
        asked_for_usage=bool(options and options.get("include_usage") is True),
        stream_options=options,
        has_stream_options=found.stream_options is not _ABSENT,
        max_tokens=_count(found.max_completion_tokens, "max_completion_tokens")
        or _count(found.max_tokens, "max_tokens"),
        n=1 if found.n is _ABSENT else _count(found.n, "n", least=1) or 1,
        privileged=_privileged(given),
        prompt=bytes(found.messages or found.prompt or found.input),
        session=bytes(found.prompt_cache_key),
        wants_base64=bytes(found.encoding_format) == b'"base64"',
    )


def _privileged(given: tuple[Given, ...]) -> tuple[str, ...]:
    mine = given[len(_ACTED_ON) :]
    if mine.count(_ABSENT) == len(mine):
        return ()
    return tuple(name for name, value in zip(PRIVILEGED, mine, strict=True) if value is not _ABSENT)


def for_engine(ask: Ask, served_name: str, inject_usage: bool) -> bytes:
    """The body an engine gets: the client's, but for the model's name and what else must change.

    Raises Invalid when a member can't be found in place.
    """
    body = ask.body
    try:
        for name in ask.privileged:
            body = members.removed(body, name.encode())
        if ask.model and ask.model != served_name:
            body = members.replaced(body, b"model", msgspec.json.encode(served_name))
        if inject_usage and ask.stream and not ask.asked_for_usage:
            body = _with_usage(ask, body)
    except members.Unfindable as name:
        raise Invalid(f"write the member {name} without escapes in its name", str(name), "invalid_json") from None
    return body


def _with_usage(ask: Ask, body: bytes) -> bytes:
    options = {**(ask.stream_options or {}), "include_usage": True}
    encoded = msgspec.json.encode(options)
    if ask.has_stream_options:
        return members.replaced(body, b"stream_options", encoded)
    return members.inserted(body, b'"stream_options":' + encoded)


def _decoded(body: bytes) -> Any:
    _made.clear()
    try:
        if not body.isascii():
            body.decode("utf-8")
        found = _decode(body)
        if _HUGE_EXPONENT.search(body):
            msgspec.json.decode(body)  # a number beyond a double's range
    except UnicodeDecodeError as error:
        raise Invalid(f"the body is not UTF-8: {error.reason} at byte {error.start}", None, "invalid_json") from None
    except msgspec.ValidationError as error:
        raise Invalid(_wrong(str(error)), None, "invalid_json") from None
    except msgspec.DecodeError as error:
        what = f"the body is not JSON: {error}" if body.strip() else "the body is empty; send a JSON object"
        raise Invalid(what, None, "invalid_json") from None
    except RecursionError:
        raise Invalid("the body is nested too deeply", None, "invalid_json") from None
    return found


def _wrong(why: str) -> str:
    if why.startswith("Expected `object`"):
        return f"the body must be a JSON object: {why}"
    return f"the body has a value that can't be read: {why}"


def _repeated(body: bytes) -> str | None:
    """Which of the members that decide stands twice. Only asked once it is known that one does."""
    seen: list[str] = []

    def kept(pairs: list[tuple[str, Any]]) -> None:
        seen[:] = [name for name, _ in pairs]  # the outermost object comes last

    try:
        json.loads(body, object_pairs_hook=kept)
    except RecursionError:  # it gives up sooner than the decoder did
        return None
    return next((name for name in (*_ACTED_ON, *PRIVILEGED) if seen.count(name) > 1), None)


def _model(given: Given, needed: bool) -> str:
    if given is _ABSENT or given.value is None:
        if needed:
            raise Invalid("you must provide a model parameter", "model", "missing_required_parameter")
        return ""
    if not isinstance(given.value, str) or not given.value or len(given.value) > _MODEL_MAX:
        raise Invalid(f"model must be a string of 1 to {_MODEL_MAX} characters", "model")
    return given.value


def _flag(given: Given, name: str) -> bool:
    if given.value is None or isinstance(given.value, bool):
        return bool(given.value)
    raise Invalid(f"{name} must be true or false", name)


def _options(given: Given) -> dict[str, Any] | None:
    if given.value is None or isinstance(given.value, dict):
        return given.value
    raise Invalid("stream_options must be an object", "stream_options")


def _count(given: Given, name: str, least: int = 0) -> int | None:
    value = given.value
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**31:
        raise Invalid(f"{name} must be a whole number from {least} to {2**31 - 1}", name)
    return value
