"""How do messages look on vLLM's Anthropic wire?"""

from attrs import define, field

from sim.asked import Ask
from sim.blocks import TOKEN_BYTES, tokens_of
from sim.openai_forms import argument_piece, compact

_STOPS = {"length": "max_tokens", "tool_calls": "tool_use", "stop": "end_turn"}


def named_event(name: str, value: dict[str, object]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), compact(value))


def anthropic_error(kind: str, message: str) -> bytes:
    return compact({"type": "error", "error": {"type": kind, "message": message}})


@define(eq=False)
class MessagesForm:
    ask: Ask
    id: str
    prompt_tokens: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.prompt_tokens = max(1, tokens_of(self.ask.prompt))

    def opening(self) -> bytes:
        message = {
            **self._message([]),
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(0),
        }
        block: dict[str, object] = {"type": "text", "text": ""}
        if self.ask.call:
            block = {"type": "tool_use", "id": self._call_id, "name": self.ask.call.name, "input": {}}
        start = {"type": "content_block_start", "content_block": block, "index": 0}
        return named_event("message_start", {"type": "message_start", "message": message}) + named_event(
            "content_block_start", start
        )

    def pieces(self, first: int, count: int) -> list[bytes]:
        if self.ask.call:
            return [self._call_piece(n) for n in range(first, first + count)]
        word = self.ask.voices[0].word
        return [
            b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":'
            b'{"type":"text_delta","text":"%b"},"index":0}\n\n' % word(n)
            for n in range(first, first + count)
        ]

    def _call_piece(self, n: int) -> bytes:
        assert self.ask.call is not None
        piece = argument_piece(self.ask.call.arguments, n, n == self.ask.wants - 1)
        delta = {"type": "input_json_delta", "partial_json": piece}
        return named_event("content_block_delta", {"type": "content_block_delta", "delta": delta, "index": 0})

    def closing(self, made: int, cached: int) -> bytes:
        delta = {"stop_reason": _STOPS[self.ask.finish], "stop_sequence": None}
        spent = self._usage(made)
        return (
            named_event("content_block_stop", {"type": "content_block_stop", "index": 0})
            + named_event("message_delta", {"type": "message_delta", "delta": delta, "usage": spent})
            + named_event("message_stop", {"type": "message_stop"})
        )

    def whole(self, made: int, cached: int) -> bytes:
        block: dict[str, object] = {"type": "text", "text": self.ask.voices[0].words(0, made).decode()}
        if self.ask.call:
            block = {"type": "tool_use", "id": self._call_id, "name": self.ask.call.name, "input": self._input(made)}
        stops = {"stop_reason": _STOPS[self.ask.finish], "stop_sequence": None, "usage": self._usage(made)}
        return compact({**self._message([block]), **stops})

    def failure(self, message: str) -> bytes:
        return b"event: error\ndata: " + anthropic_error("internal_error", message) + b"\n\n"

    def _message(self, content: list[dict[str, object]]) -> dict[str, object]:
        return {"id": self.id, "type": "message", "role": "assistant", "content": content, "model": self.ask.model}

    def _usage(self, made: int) -> dict[str, int]:
        """As vLLM counts: cached prompt tokens are among the others."""
        return {"input_tokens": self.prompt_tokens, "output_tokens": made}

    def _input(self, made: int) -> object:
        """The call's input; nothing when the arguments were cut short."""
        assert self.ask.call is not None
        whole = made * TOKEN_BYTES >= len(self.ask.call.arguments)
        return self.ask.call.value if whole else {}

    @property
    def _call_id(self) -> str:
        return f"toolu_{self.id[-16:]}"
