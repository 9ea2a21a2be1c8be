"""What an engine's answer says: tokens, usage, failure, end; per route family.

A reading is fed the JSON of one event after another and keeps what settling needs. It never changes a byte.
"""

from enum import Enum, auto
from typing import Any, Protocol

import msgspec
from attrs import define, field

from llmgw.wire.sse import DONE

_NESTED_MAX = 4  # errors within errors


class Kind(Enum):
    """What one event means to the relay."""

    TOKEN = auto()
    PREAMBLE = auto()  # a stream's opening, with nothing in it yet: no token
    USAGE_ONLY = auto()  # choices empty, usage given
    OTHER = auto()
    ERROR = auto()  # the engine says it failed
    END = auto()  # the stream is whole
    SWALLOW = auto()  # not for this route's clients ([DONE] on responses and messages)
    MALFORMED = auto()  # not JSON


@define
class Usage:
    """Tokens as the engine counts them; ``estimated`` when we counted deltas ourselves."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    estimated: bool = False


class NotJson(Exception):
    """A plain answer that no client could read."""


class Reading(Protocol):
    usage: Usage | None
    tokens: int
    failure: str  # the engine's own words in an error event

    def read(self, data: bytes, name: bytes) -> Kind: ...


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: int | None = None

    def value(self) -> Usage:
        details = self.prompt_tokens_details or self.input_tokens_details
        cached = (details.cached_tokens if details else None) or self.cache_read_input_tokens
        return Usage(
            self.prompt_tokens or self.input_tokens or 0, self.completion_tokens or self.output_tokens or 0, cached or 0
        )


class _Delta(msgspec.Struct):
    role: Any = None
    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: Any = None
    function_call: Any = None
    refusal: Any = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: Any = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    object: Any = None
    message: Any = None


class _Typed(msgspec.Struct):
    """A responses or messages event."""

    type: str = ""
    usage: _Usage | None = None
    message: Any = None
    response: Any = None
    error: Any = None


class _Plain(msgspec.Struct):
    usage: _Usage | None = None


_chunk = msgspec.json.Decoder(_Chunk).decode
_typed = msgspec.json.Decoder(_Typed).decode
_plain = msgspec.json.Decoder(_Plain).decode
_usage = msgspec.json.Decoder(_Usage).decode


@define(eq=False)
class ChatReading:
    """Chat and text completions: ``[DONE]`` ends the stream; the last usage counts, never a sum."""

    usage: Usage | None = None
    tokens: int = 0
    failure: str = ""

    def read(self, data: bytes, name: bytes) -> Kind:
        if data == DONE or data.strip() == DONE:
            return Kind.END
        try:
            chunk = _chunk(data)
        except msgspec.ValidationError:
            return self._odd(data)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return Kind.MALFORMED
        if chunk.usage is not None:
            self.usage = chunk.usage.value()
        if chunk.error is not None or chunk.object == "error":
            self.failure = failure_text(chunk.error if chunk.error is not None else chunk.message)
            return Kind.ERROR
        if not chunk.choices:
            return Kind.USAGE_ONLY if chunk.usage is not None and chunk.choices is not None else Kind.OTHER
        return self._choices(chunk.choices)

    def _choices(self, choices: list[_Choice]) -> Kind:
        kind = Kind.OTHER
        for choice in choices:
            delta = choice.delta
            if choice.text or (delta is not None and _says(delta)):
                self.tokens += 1
                kind = Kind.TOKEN
            elif kind is Kind.OTHER and delta is not None and delta.role and choice.finish_reason is None:
                kind = Kind.PREAMBLE
        return kind

    def _odd(self, data: bytes) -> Kind:
        """JSON, but not of the shape expected: relayed as it is, counted as a token."""
        try:
            whole = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError):
            return Kind.MALFORMED
        if isinstance(whole, dict) and whole.get("error"):
            self.failure = failure_text(whole["error"])
            return Kind.ERROR
        self.tokens += 1
        return Kind.TOKEN


def _says(delta: _Delta) -> bool:
    return bool(
        delta.content
        or delta.tool_calls
        or delta.reasoning
        or delta.reasoning_content
        or delta.function_call
        or delta.refusal
    )


def _typed_event(data: bytes) -> _Typed | Kind:
    """An event of the routes whose events have types; or, where it is none, what it means as it is."""
    if data.strip() == DONE:
        return Kind.SWALLOW
    try:
        return _typed(data)
    except msgspec.ValidationError:
        return Kind.OTHER
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return Kind.MALFORMED


_MESSAGES_OPENING = frozenset({"message_start", "content_block_start", "ping"})
_RESPONSES_OPENING = frozenset(
    {
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    }
)
_RESPONSES_END = frozenset({"response.completed", "response.incomplete"})


@define(eq=False)
class ResponsesReading:
    """The Responses API: ends with response.completed, .incomplete or .failed."""

    usage: Usage | None = None
    tokens: int = 0
    failure: str = ""
    sequence: int = field(default=0)

    def read(self, data: bytes, name: bytes) -> Kind:
        event = _typed_event(data)
        if isinstance(event, Kind):
            return event
        self.sequence += 1
        kind = event.type or name.decode("utf-8", "replace")
        response = event.response if isinstance(event.response, dict) else {}
        if response.get("usage"):
            self.usage = _value_of(response["usage"])
        if kind in _RESPONSES_END:
            return Kind.END
        if kind == "response.failed":
            self.failure = failure_text(response.get("error"))
            return Kind.END
        if kind == "error" or (event.error is not None and not kind.startswith("response.")):
            self.failure = failure_text(event.error or event.message)
            return Kind.ERROR
        if kind.endswith(".delta"):
            self.tokens += 1
            return Kind.TOKEN
        return Kind.PREAMBLE if kind in _RESPONSES_OPENING and not self.tokens else Kind.OTHER


@define(eq=False)
class MessagesReading:
    """Anthropic's messages: input from message_start, output from the last message_delta; message_stop ends."""

    usage: Usage | None = None
    tokens: int = 0
    failure: str = ""

    def read(self, data: bytes, name: bytes) -> Kind:
        event = _typed_event(data)
        if isinstance(event, Kind):
            return event
        kind = event.type or name.decode("utf-8", "replace")
        if kind == "message_start" and isinstance(event.message, dict) and event.message.get("usage"):
            self.usage = _value_of(event.message["usage"])
        if kind == "message_delta" and event.usage is not None:
            self._more(event.usage.value())
        if kind == "message_stop":
            return Kind.END
        if kind == "error" or event.error is not None:
            self.failure = failure_text(event.error)
            return Kind.ERROR
        if kind == "content_block_delta":
            self.tokens += 1
            return Kind.TOKEN
        return Kind.PREAMBLE if kind in _MESSAGES_OPENING and not self.tokens else Kind.OTHER

    def _more(self, seen: Usage) -> None:
        before = self.usage or Usage()
        self.usage = Usage(seen.prompt or before.prompt, seen.completion, seen.cached or before.cached)


def failure_text(error: Any) -> str:
    """The words in any of the error shapes engines use; at most 2,000 characters, empty if there are none."""
    for _ in range(_NESTED_MAX):
        if not isinstance(error, dict):
            break
        error = next((error[key] for key in ("message", "detail", "error") if error.get(key)), "")
    return _as_text(error)[:2000]


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return msgspec.json.encode(value).decode() if value else ""
    except RecursionError:
        return ""


def usage_of_answer(body: bytes) -> Usage | None:
    """The usage in a whole plain answer, if it has one. Raises NotJson."""
    try:
        found = _plain(body)
    except msgspec.ValidationError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise NotJson from None
    except RecursionError:
        return None
    return found.usage.value() if found.usage is not None else None


def usage_in_tail(tail: bytes) -> Usage | None:
    """The usage of an answer too large to keep: it stands near the end."""
    at = tail.rfind(b'"usage"')
    if at < 0:
        return None
    start, end = tail.find(b"{", at), tail.find(b"}", at)
    while 0 <= start < end:
        try:
            return _usage(tail[start : end + 1]).value()
        except msgspec.MsgspecError:
            end = tail.find(b"}", end + 1)
    return None


def _value_of(usage: Any) -> Usage | None:
    try:
        return msgspec.convert(usage, _Usage).value()
    except msgspec.ValidationError:
        return None
