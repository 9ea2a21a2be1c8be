"""How do chat completions and completions look on vLLM's wire?

Everything but the word itself is laid out once a request; an event is two concatenations.
"""

import json
from typing import Protocol

from attrs import define, field

from sim.asked import Ask
from sim.blocks import TOKEN_BYTES, tokens_of

FINGERPRINT = "vllm-0.32.0-sim"


class Form(Protocol):
    """One API's bytes for one generation."""

    id: str

    def opening(self) -> bytes:
        """What leaves with the first token."""
        ...

    def pieces(self, first: int, count: int) -> list[bytes]:
        """An event a token and choice."""
        ...

    def closing(self, made: int, cached: int) -> bytes: ...

    def whole(self, made: int, cached: int) -> bytes:
        """The plain answer."""
        ...

    def failure(self, message: str) -> bytes:
        """An error in the middle of a stream."""
        ...


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def event(value: object) -> bytes:
    return b"data: " + compact(value) + b"\n\n"


def quoted(text: str) -> bytes:
    """For the inside of a JSON string."""
    return json.dumps(text).encode()[1:-1]


def argument_piece(arguments: str, n: int, last: bool) -> str:
    """The part of a call's arguments that token ``n`` brings; the last brings what is left."""
    at = n * TOKEN_BYTES
    return arguments[at:] if last else arguments[at : at + TOKEN_BYTES]


def usage(prompt: int, made: int, cached: int) -> dict[str, object]:
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + made,
        "completion_tokens": made,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def stream_failure(message: str) -> bytes:
    error = {"message": message, "type": "InternalServerError", "param": None, "code": 500}
    return event({"error": error}) + b"data: [DONE]\n\n"


@define(eq=False)
class _OpenAiForm:
    ask: Ask
    id: str
    created: int
    kind: str  # the object's name in a stream
    prompt_tokens: int = field(init=False)
    head: bytes = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.prompt_tokens = max(1, tokens_of(self.ask.prompt))
        said = compact({"id": self.id, "object": self.kind, "created": self.created, "model": self.ask.model})
        self.head = b"data: " + said[:-1] + b',"choices":['

    def tail(self, made: int) -> bytes:
        """What ends an event."""
        if not self.ask.usage_each:
            return b"]}\n\n"
        return b'],"usage":' + compact(usage(self.prompt_tokens, made, 0)) + b"}\n\n"

    def closing(self, made: int, cached: int) -> bytes:
        if not self.ask.usage_chunk:
            return b"data: [DONE]\n\n"
        total = made * len(self.ask.voices)
        spent = compact(usage(self.prompt_tokens, total, cached))
        return self.head + b'],"usage":' + spent + b"}\n\ndata: [DONE]\n\n"

    def failure(self, message: str) -> bytes:
        return stream_failure(message)

    def plain(self, kind: str, choices: list[dict[str, object]], made: int, cached: int) -> bytes:
        return compact(
            {
                "id": self.id,
                "object": kind,
                "created": self.created,
                "model": self.ask.model,
                "choices": choices,
                "service_tier": None,
                "system_fingerprint": FINGERPRINT,
                "usage": usage(self.prompt_tokens, made * len(choices), cached),
                "prompt_logprobs": None,
                "kv_transfer_params": None,
            }
        )


@define(eq=False)
class ChatForm(_OpenAiForm):
    kind: str = "chat.completion.chunk"

    def opening(self) -> bytes:
        return b"".join(
            b'%b{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}%b'
            % (self.head, n, self.tail(0))
            for n in range(len(self.ask.voices))
        )

    def pieces(self, first: int, count: int) -> list[bytes]:
        if self.ask.call:
            return [self._call_piece(n) for n in range(first, first + count)]
        last = self.ask.wants - 1
        rest = b'"},"logprobs":null,"finish_reason":null,"token_ids":null}'
        end = b'"},"logprobs":null,"finish_reason":"%b","stop_reason":null,"token_ids":null}' % self.ask.finish.encode()
        return [
            b'%b{"index":%d,"delta":{"content":"%b%b%b'
            % (self.head, choice, voice.word(n), end if n == last else rest, self.tail(n + 1))
            for n in range(first, first + count)
            for choice, voice in enumerate(self.ask.voices)
        ]

    def _call_piece(self, n: int) -> bytes:
        call, last = self.ask.call, n == self.ask.wants - 1
        assert call is not None
        function: dict[str, object] = {"arguments": argument_piece(call.arguments, n, last)}
        made: dict[str, object] = {"index": 0, "function": function}
        if n == 0:
            made = {"id": self._call_id, "type": "function", "index": 0, "function": {"name": call.name, **function}}
        finish = self.ask.finish if last else None
        choice = {"index": 0, "delta": {"tool_calls": [made]}, "logprobs": None, "finish_reason": finish}
        return self.head + compact(choice) + self.tail(n + 1)

    def whole(self, made: int, cached: int) -> bytes:
        return self.plain("chat.completion", [self._choice(n, made) for n in range(len(self.ask.voices))], made, cached)

    def _choice(self, n: int, made: int) -> dict[str, object]:
        call = self.ask.call
        text = None if call else self.ask.voices[n].words(0, made).decode()
        function = {"name": call.name, "arguments": call.arguments[: made * TOKEN_BYTES]} if call else {}
        calls = [{"id": self._call_id, "type": "function", "function": function}] if call else []
        return {
            "index": n,
            "message": {"role": "assistant", "content": text, "refusal": None, "tool_calls": calls, "reasoning": None},
            "logprobs": None,
            "finish_reason": self.ask.finish,
            "stop_reason": None,
        }

    @property
    def _call_id(self) -> str:
        return f"chatcmpl-tool-{self.id[-16:]}"


@define(eq=False)
class CompletionForm(_OpenAiForm):
    kind: str = "text_completion"
    echo: bytes = b""

    def opening(self) -> bytes:
        if not self.echo:
            return b""
        text = quoted(self.echo.decode(errors="replace"))
        return b"".join(
            b'%b{"index":%d,"text":"%b","logprobs":null,"finish_reason":null}%b' % (self.head, n, text, self.tail(0))
            for n in range(len(self.ask.voices))
        )

    def pieces(self, first: int, count: int) -> list[bytes]:
        last = self.ask.wants - 1
        rest = b'","logprobs":null,"finish_reason":null,"stop_reason":null,"token_ids":null}'
        end = b'","logprobs":null,"finish_reason":"%b","stop_reason":null,"token_ids":null}' % self.ask.finish.encode()
        return [
            b'%b{"index":%d,"text":"%b%b%b'
            % (self.head, choice, voice.word(n), end if n == last else rest, self.tail(n + 1))
            for n in range(first, first + count)
            for choice, voice in enumerate(self.ask.voices)
        ]

    def whole(self, made: int, cached: int) -> bytes:
        choices = [self._choice(n, made) for n in range(len(self.ask.voices))]
        return self.plain("text_completion", choices, made, cached)

    def _choice(self, n: int, made: int) -> dict[str, object]:
        text = self.echo + self.ask.voices[n].words(0, made)
        return {
            "index": n,
            "text": text.decode(errors="replace"),
            "logprobs": None,
            "finish_reason": self.ask.finish,
            "stop_reason": None,
            "prompt_logprobs": None,
        }
