"""Log lines: one line per thing that happened, as JSON, through a queue that never blocks the loop.

A line that finds the queue full is dropped and counted. Values are cut and cleaned of bytes that could
forge a line or move a terminal; a prompt or a key never comes here.
"""

import os
import threading
import time
from collections import deque
from typing import Any

import msgspec
import structlog
import trio
from attrs import define, field, frozen

from llmgw.core.settings import Unit, setting

_TEXT_MAX = 256
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
# C1 controls, line and paragraph separators; C0 is escaped by JSON itself, but not for the console.
_UNPRINTABLE = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}


@frozen
class LogLimits:
    """``[log]``"""

    level: str = setting("info", Unit.TEXT, "least severe line written", choices=tuple(_LEVELS))
    format: str = setting("json", Unit.TEXT, "one JSON object a line, or text for people", choices=("json", "console"))
    requests: bool = setting(True, Unit.FLAG, "write one line a request")
    queue_max: int = setting(20_000, Unit.COUNT, "lines waiting to be written; beyond it they are dropped and counted")
    flush: float = setting(0.1, Unit.SECONDS, "how often lines are written")


@define(eq=False)
class LogSink:
    """Lines on their way to a file descriptor."""

    limits: LogLimits
    fd: int = 2
    dropped: int = field(default=0, init=False)
    _lines: deque[bytes] = field(factory=deque, init=False)
    _turn: threading.Lock = field(factory=threading.Lock, init=False)

    def msg(self, line: bytes) -> None:
        if len(self._lines) >= self.limits.queue_max:
            self.dropped += 1
            return
        self._lines.append(line)

    debug = info = warning = error = critical = exception = msg

    async def run(self) -> None:
        """Write what has come, for ever; what is left when cancelled is written before it returns."""
        try:
            while True:
                await trio.sleep(self.limits.flush)
                if self._lines:
                    await trio.to_thread.run_sync(self.flush)
        finally:
            with trio.move_on_after(1, shield=True):
                await trio.to_thread.run_sync(self.flush, abandon_on_cancel=True)

    def flush(self) -> None:
        """Write everything now; blocks while the reader of the log does. From any thread.

        When it returns, what another thread had taken is written too.
        """
        with self._turn:
            taken = [self._lines.popleft() for _ in range(len(self._lines))]
            whole = memoryview(b"\n".join([*taken, b""]) if taken else b"")
            while whole:
                whole = whole[os.write(self.fd, whole) :]


def make_log(sink: LogSink) -> Any:
    """A structlog logger whose lines go to the sink."""
    limits = sink.limits
    timestamp = Timestamp()
    cleaned: list[Any] = [structlog.processors.format_exc_info, _clean]
    last: Any = _as_json if limits.format == "json" else as_text
    return structlog.wrap_logger(
        sink,
        processors=[structlog.processors.add_log_level, timestamp, *cleaned, last],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[limits.level]),
        cache_logger_on_first_use=True,
    )


class Timestamp:
    """ISO 8601, UTC, in microseconds. The text down to the second is made once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._text = ""

    def text(self, now: float) -> str:
        second = int(now)
        if second != self._second:
            self._second, self._text = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._text}.{int((now - second) * 1e6):06d}Z"

    def __call__(self, _logger: Any, _name: str, event: Any) -> Any:
        event["timestamp"] = self.text(time.time())
        return event


def clean(text: str, most: int = _TEXT_MAX) -> str:
    """Text from outside, fit for a log line or a terminal."""
    if len(text) > most:
        text = text[:most] + "…"
    return text if text.isascii() and text.isprintable() else text.translate(_UNPRINTABLE)


def _clean(_logger: Any, _name: str, event: dict[str, Any]) -> dict[str, Any]:
    for key, value in event.items():
        if type(value) is str:
            event[key] = clean(value, 8192 if key == "exception" else _TEXT_MAX)
    return event


def _as_json(_logger: Any, _name: str, event: dict[str, Any]) -> bytes:
    return msgspec.json.encode(event, enc_hook=repr)


def as_text(_logger: Any, _name: str, event: dict[str, Any]) -> bytes:
    """A line for people."""
    stamp, level, what = event.pop("timestamp", ""), event.pop("level", ""), event.pop("event", "")
    rest = " ".join(f"{key}={value}" for key, value in event.items())
    return f"{stamp} {level:7} {what} {rest}".encode("utf-8", "replace")
