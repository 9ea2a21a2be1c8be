"""How do responses look on vLLM's wire?

Sequence numbers are counted per event, so one that carries a token is laid out around its number and its word.
"""

from attrs import define, field

from sim.anthropic_form import named_event
from sim.asked import Ask
from sim.blocks import tokens_of
from sim.openai_forms import argument_piece, compact

_OPENING_EVENTS = 4  # created, in_progress, output_item.added, content_part.added
_OPENING_EVENTS_OF_A_CALL = 3


@define(eq=False)
class ResponsesForm:
    ask: Ask
    id: str
    created: int
    asked: dict[str, object]
    prompt_tokens: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.prompt_tokens = max(1, tokens_of(self.ask.prompt))

    def opening(self) -> bytes:
        begun = self._response("in_progress", [], None)
        added = {"output_index": 0, "item": self._item("in_progress", 0)}
        events = [
            self._event("response.created", 0, {"response": begun}),
            self._event("response.in_progress", 1, {"response": begun}),
            self._event("response.output_item.added", 2, added),
        ]
        if self.ask.call is None:
            part = {**self._at, "part": self._text("")}
            events.append(self._event("response.content_part.added", 3, part))
        return b"".join(events)

    def pieces(self, first: int, count: int) -> list[bytes]:
        if self.ask.call:
            return [self._call_piece(n) for n in range(first, first + count)]
        word = self.ask.voices[0].word
        head = b'event: response.output_text.delta\ndata: {"content_index":0,"delta":"'
        tail = b'","item_id":"%b","logprobs":[],"output_index":0,"sequence_number":' % self._item_id.encode()
        return [
            b'%b%b%b%d,"type":"response.output_text.delta"}\n\n' % (head, word(n), tail, _OPENING_EVENTS + n)
            for n in range(first, first + count)
        ]

    def _call_piece(self, n: int) -> bytes:
        assert self.ask.call is not None
        piece = argument_piece(self.ask.call.arguments, n, n == self.ask.wants - 1)
        delta = {"delta": piece, "item_id": self._item_id, "output_index": 0}
        return self._event("response.function_call_arguments.delta", _OPENING_EVENTS_OF_A_CALL + n, delta)

    def closing(self, made: int, cached: int) -> bytes:
        item = self._item("completed", made)
        ends: list[tuple[str, dict[str, object]]] = []
        if self.ask.call:
            at = _OPENING_EVENTS_OF_A_CALL + made
            arguments = {"arguments": item["arguments"], "name": item["name"], "item_id": self._item_id}
            ends.append(("response.function_call_arguments.done", {**arguments, "output_index": 0}))
        else:
            at = _OPENING_EVENTS + made
            text = self.ask.voices[0].words(0, made).decode()
            ends.append(("response.output_text.done", {**self._at, "logprobs": [], "text": text}))
            ends.append(("response.content_part.done", {**self._at, "part": self._text(text)}))
        ends.append(("response.output_item.done", {"output_index": 0, "item": item}))
        ends.append(("response.completed", {"response": self._finished(made, cached)}))
        return b"".join(self._event(name, at + n, said) for n, (name, said) in enumerate(ends))

    def whole(self, made: int, cached: int) -> bytes:
        return compact(self._finished(made, cached))

    def failure(self, message: str) -> bytes:
        said: dict[str, object] = {"code": "server_error", "message": message, "param": None, "type": "error"}
        return named_event("error", said)

    def _finished(self, made: int, cached: int) -> dict[str, object]:
        status = "incomplete" if self.ask.finish == "length" else "completed"
        return self._response(status, [self._item("completed", made)], self._usage(made, cached))

    def _response(self, status: str, output: list[dict[str, object]], usage: object) -> dict[str, object]:
        asked = self.asked
        return {
            "id": self.id,
            "created_at": self.created,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": asked.get("instructions"),
            "metadata": asked.get("metadata"),
            "model": self.ask.model,
            "object": "response",
            "output": output,
            "parallel_tool_calls": True,
            "temperature": asked.get("temperature", 1.0),
            "tool_choice": asked.get("tool_choice", "auto" if asked.get("tools") else "none"),
            "tools": asked.get("tools") or [],
            "top_p": asked.get("top_p", 1.0),
            "background": False,
            "max_output_tokens": asked.get("max_output_tokens"),
            "max_tool_calls": None,
            "previous_response_id": None,
            "prompt": None,
            "reasoning": asked.get("reasoning"),
            "service_tier": "auto",
            "status": status,
            "text": asked.get("text"),
            "top_logprobs": None,
            "truncation": "disabled",
            "usage": usage,
            "user": asked.get("user"),
        }

    def _item(self, status: str, made: int) -> dict[str, object]:
        if self.ask.call:
            arguments = "".join(argument_piece(self.ask.call.arguments, n, n == self._last) for n in range(made))
            return {
                "arguments": arguments,
                "call_id": f"call_{self.id[-16:]}",
                "name": self.ask.call.name,
                "type": "function_call",
                "id": self._item_id,
                "status": status,
            }
        content = [self._text(self.ask.voices[0].words(0, made).decode())] if status == "completed" else []
        said = {"id": self._item_id, "content": content, "role": "assistant", "status": status}
        return {**said, "type": "message", "phase": None}

    def _usage(self, made: int, cached: int) -> dict[str, object]:
        return {
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": made,
            "output_tokens_details": {"reasoning_tokens": 0, "tool_output_tokens": 0},
            "total_tokens": self.prompt_tokens + made,
        }

    def _text(self, text: str) -> dict[str, object]:
        return {"annotations": [], "text": text, "type": "output_text", "logprobs": None}

    def _event(self, name: str, number: int, said: dict[str, object]) -> bytes:
        return named_event(name, {**said, "sequence_number": number, "type": name})

    @property
    def _at(self) -> dict[str, object]:
        return {"content_index": 0, "item_id": self._item_id, "output_index": 0}

    @property
    def _item_id(self) -> str:
        return f"{'fc' if self.ask.call else 'msg'}_{self.id[-16:]}"

    @property
    def _last(self) -> int:
        return self.ask.wants - 1
