"""The one log line of each request.

It is written thousands of times a second, so it goes to the sink in the same form but without structlog's
steps, which take three times as long.
"""

import time

import msgspec
from attrs import define, field

from llmgw.telemetry.log import LogSink, Timestamp, as_text

_encode = msgspec.json.Encoder().encode


class RequestLine(msgspec.Struct, omit_defaults=True):
    """What came from outside is cleaned by whoever makes it. Durations in seconds."""

    timestamp: str
    level: str
    event: str
    request_id: str
    key: str
    tenant: str
    route: str
    model: str
    endpoint: str
    outcome: str
    status: int
    read_s: float
    wait_s: float
    dial_s: float
    ttft_s: float | None
    total_s: float
    tokens: int
    attempts: int
    message: str = ""
    label: str = ""
    retry_count: str = ""


@define(eq=False)
class RequestLog:
    """Where the lines go; ``stamp`` gives a line's timestamp."""

    sink: LogSink
    _timestamp: Timestamp = field(factory=Timestamp, init=False)

    def stamp(self) -> str:
        return self._timestamp.text(time.time())

    def write(self, line: RequestLine) -> None:
        if self.sink.limits.format == "json":
            self.sink.msg(_encode(line))
        else:
            said = {name: value for name, value in msgspec.structs.asdict(line).items() if value != ""}
            self.sink.msg(as_text(None, "info", said))


def request_log(sink: LogSink) -> RequestLog | None:
    """None where the config wants no line a request, or none so little severe."""
    limits = sink.limits
    return RequestLog(sink) if limits.requests and limits.level in ("debug", "info") else None
