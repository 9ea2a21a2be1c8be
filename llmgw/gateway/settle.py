"""The end of a request: usage row, metrics, log line, record; once, synchronously, whatever happened."""

from collections.abc import Callable
from typing import Any

from attrs import define, frozen

from llmgw.core.outcome import Outcome
from llmgw.gateway.aggregate import Aggregates
from llmgw.gateway.record import Record, Records, Story
from llmgw.telemetry.log import clean
from llmgw.telemetry.metrics import Metrics
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
    log: Any  # a structlog logger whose lines are cleaned here, or None: no line a request

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
            self._line(record)
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

    def _line(self, record: Record) -> None:
        """One line a request. What came from outside is cleaned here, where it is known which fields did."""
        self.log.info(
            "request",
            request_id=record.id,
            key=record.key,
            tenant=record.tenant,
            route=record.route,
            model=record.model or clean(record.asked),
            endpoint=record.endpoint,
            outcome=record.outcome,
            status=record.status,
            read_s=record.read_s,
            wait_s=record.wait_s,
            dial_s=record.dial_s,
            ttft_s=record.ttft_s,
            total_s=record.total_s,
            tokens=record.completion_tokens,
            attempts=len(record.tries),
            **self._rare(record),
        )

    def _rare(self, record: Record) -> dict[str, str]:
        if not (record.message or record.label or record.retry_count):
            return {}
        rare = {"message": record.message, "label": record.label, "retry_count": record.retry_count}
        return {name: clean(value) for name, value in rare.items() if value}


def _since(story: Story, at: float | None) -> float | None:
    return None if at is None else round(at - story.received, 6)


def _record(story: Story, outcome: Outcome, now: float) -> Record:
    key, seen = story.key, story.passage or _NOTHING
    # A stream that was cut has no usage event: what was generated is what we counted.
    usage = seen.usage or Usage(0, seen.tokens, 0, estimated=seen.tokens > 0)
    tries = story.tries
    return Record(
        id=story.id,
        at=story.at,
        route=story.route,
        outcome=outcome.value,
        status=story.status,
        total_s=round(now - story.received, 6),
        tenant=key.tenant if key else "",
        key=key.shown if key else "",
        band=key.band.value if key else "",
        asked=story.asked,
        model=story.model,
        adapter=story.adapter or "",
        stream=story.stream,
        endpoint=tries[-1].endpoint if tries else "",
        read_s=_since(story, story.read_at or now) or 0.0,
        wait_s=round(story.admitted_at - story.read_at, 6) if story.admitted_at else 0.0,
        waited_behind=story.waited_behind,
        dial_s=round(seen.dial_s, 6),
        headers_s=_since(story, seen.headers_at),
        ttft_s=_since(story, seen.first_token_at),
        prompt_tokens=usage.prompt,
        completion_tokens=usage.completion,
        cached_tokens=usage.cached,
        estimated=usage.estimated,
        message=story.message[:512],
        bytes_in=story.bytes_in,
        bytes_out=seen.bytes_out,
        label=story.client_label,
        retry_count=story.retry_count,
        tries=[(t.endpoint, t.outcome.value if t.outcome else "", t.why, round(t.ended - t.began, 6)) for t in tries],
        fallbacks=story.fallbacks,
        choices=[t.account for t in tries],
    )


def _row(story: Story, record: Record) -> tuple[Any, ...]:
    assert story.key is not None
    return (
        record.id, record.at, record.tenant, story.key.id, record.band, record.model, record.endpoint, record.route,
        record.outcome, record.status, record.prompt_tokens, record.completion_tokens, record.cached_tokens,
        record.estimated, record.total_s, record.ttft_s, len(record.tries),
    )  # fmt: skip
