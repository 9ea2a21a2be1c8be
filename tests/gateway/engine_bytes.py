"""The bytes that scripted engines send, and the scripts made of them."""

import json
from typing import Any

import trio

from tests.gateway.world import Caller, Script

SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"
CLOSE = "close"  # in a script: the engine closes the connection
RESET = "reset"  # or resets it


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def delta(text: str, **more: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}, **more}]})


ROLE = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
FINISH = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
USAGE = event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}})


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def stream(*events: bytes) -> bytes:
    """A whole streamed answer."""
    return SSE_HEAD + b"".join(map(chunk, events)) + LAST


def plain(body: Any, status: int = 200, *headers: bytes, content_type: bytes = b"application/json") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = b"".join(line + b"\r\n" for line in headers)
    return b"HTTP/1.1 %d Said\r\ncontent-type: %b\r\n%bcontent-length: %d\r\n\r\n%b" % (
        status, content_type, lines, len(data), data
    )  # fmt: skip


ANSWER = plain({"choices": [{"message": {"content": "hello"}}], "usage": {"prompt_tokens": 3, "completion_tokens": 4}})


def says(*acts: bytes | float | str | trio.Event) -> Script:
    """To each request: bytes are sent, numbers are slept, events are waited for, CLOSE and RESET end it."""

    async def script(caller: Caller) -> None:
        while await caller.request() is not None:
            for act in acts:
                if isinstance(act, bytes):
                    await caller.send(act)
                elif isinstance(act, trio.Event):
                    await act.wait()
                elif isinstance(act, str):
                    (caller.stream.reset if act == RESET else caller.stream.close)()
                    return
                else:
                    await trio.sleep(act)
        caller.stream.close()

    return script


def in_turn(*scripts: Script) -> Script:
    """The first connection plays the first script, and so on; the last for all others."""
    waiting = list(scripts)

    async def script(caller: Caller) -> None:
        await (waiting.pop(0) if len(waiting) > 1 else waiting[0])(caller)

    return script


async def silent(caller: Caller) -> None:
    """It takes the request and says nothing, until the gateway leaves."""
    await caller.request()
    await caller.left.wait()
    caller.stream.close()
