"""The end of a request: usage row, metrics, log line, record; once, synchronously, whatever happened."""

from collections.abc import Callable
from typing import Any

from attrs import define, frozen

from llmgw.core.outcome import Outcome
from llmgw.gateway.aggregate import Aggregates
from llmgw.gateway.record import Record, Records, Story
from llmgw.telemetry.log import clean
from llmgw.telemetry.metrics import Metrics
from llmgw.telemetry.request_line import RequestLine, RequestLog
from llmgw.wire.answers import Usage


@frozen
class _Unseen:
    """Of a request that never came to the relay."""

    usage: Usage | None = None
    tokens: int = 0
    dial_s: float = 0.0
    headers_at: float | None = None
    first_token_at: float | None = None
    bytes_out: int = 0


_NOTHING = _Unseen()


@define(eq=False)
class Settle:
    records: Records
    aggregates: Aggregates
    usage_row: Callable[[tuple[Any, ...]], None]
    metrics: Metrics
    log: RequestLog | None  # None: no line a request

    def close(self, story: Story, now: float) -> Record:
        """Close a story. Nothing here may wait or fail."""
        outcome = story.outcome or Outcome.INTERNAL
        record = _record(story, outcome, now)
        self.records.add(record)
        self.aggregates.add(record)
        self._count(story, record)
        if story.key is not None and story.tries:
            self.usage_row(_row(story, record))
        if self.log is not None:
            self._line(record, self.log)
        return record

    def _count(self, story: Story, record: Record) -> None:
        tenant = record.tenant or "none"
        self.metrics.requests(tenant, record.model or "none").ended(
            record.outcome,
            record.status,
            record.total_s,
            record.ttft_s if story.stream else None,
            record.prompt_tokens,
            record.completion_tokens,
            record.cached_tokens,
        )

    def _line(self, record: Record, log: RequestLog) -> None:
        """One line a request. What came from outside is cleaned here, where it is known which fields did."""
        line = RequestLine(
            log.stamp(),
            "info",
            "request",
            record.id,
            record.key,
            record.tenant,
            record.route,
            record.model or clean(record.asked),
            record.endpoint,
            record.outcome,
            record.status,
            record.read_s,
            record.wait_s,
            record.dial_s,
            record.ttft_s,
            record.total_s,
            record.completion_tokens,
            len(record.tries),
        )
        if record.message or record.label or record.retry_count:
            line.message, line.label = clean(record.message), clean(record.label)
            line.retry_count = clean(record.retry_count)
        log.write(line)


def _us(seconds: float) -> float:
    """To the microsecond; ``round`` would take four times as long."""
    return int(seconds * 1e6) / 1e6


def _record(story: Story, outcome: Outcome, now: float) -> Record:
    key, seen, received = story.key, story.passage or _NOTHING, story.received
    # A stream that was cut has no usage event: what was generated is what we counted.
    usage = seen.usage or Usage(0, seen.tokens, 0, estimated=seen.tokens > 0)
    tries, choices, endpoint = [], [], ""
    for one in story.tries:
        endpoint = one.endpoint
        tries.append((endpoint, one.outcome.label if one.outcome else "", one.why, _us(one.ended - one.began)))
        choices.append(one.account)
    return Record(
        story.id,
        story.at,
        story.route,
        outcome.label,
        story.status,
        _us(now - received),
        key.tenant if key else "",
        key.shown if key else "",
        key.band_name if key else "",
        story.asked,
        story.model,
        story.adapter or "",
        story.stream,
        endpoint,
        read_s=_us((story.read_at or now) - received),
        wait_s=_us(story.wait_s),
        waited_behind=story.waited_behind,
        dial_s=_us(seen.dial_s),
        headers_s=None if seen.headers_at is None else _us(seen.headers_at - received),
        ttft_s=None if seen.first_token_at is None else _us(seen.first_token_at - received),
        prompt_tokens=usage.prompt,
        completion_tokens=usage.completion,
        cached_tokens=usage.cached,
        estimated=usage.estimated,
        message=story.message[:512],
        bytes_in=story.bytes_in,
        bytes_out=seen.bytes_out,
        label=story.client_label,
        retry_count=story.retry_count,
        tries=tries,
        fallbacks=story.fallbacks,
        choices=choices,
        let_through=story.let_through,
        fell_back_on=story.fell_back_on,
    )


def _row(story: Story, record: Record) -> tuple[Any, ...]:
    assert story.key is not None
    return (
        record.id, record.at, record.tenant, story.key.id, record.band, record.model, record.endpoint, record.route,
        record.outcome, record.status, record.prompt_tokens, record.completion_tokens, record.cached_tokens,
        record.estimated, record.total_s, record.ttft_s, len(record.tries),
    )  # fmt: skip
