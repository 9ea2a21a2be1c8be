"""What an operator is shown of requests: a record as JSON, and the explanation made of it."""

from typing import Any

import msgspec

from llmgw.core.explain import Considered, Explanation, Fact
from llmgw.core.outcome import Outcome
from llmgw.core.scheduling import explain_choice
from llmgw.gateway.record import Record, Records

SLOW_S = 10.0
SLOW_TTFT_S = 2.0
_NOT_FAILED = frozenset({"ok", "client_gone"})


def as_json(record: Record) -> dict[str, Any]:
    """Field names as in ``Record``; tries as objects."""
    shown: dict[str, Any] = {name: getattr(record, name) for name in record.__struct_fields__ if name != "choices"}
    shown["tries"] = [
        {"endpoint": endpoint, "outcome": outcome, "why": why, "seconds": seconds}
        for endpoint, outcome, why, seconds in record.tries
    ]
    return shown


def listed(
    records: Records,
    slow: bool = False,
    failed: bool = False,
    tenant: str = "",
    model: str = "",
    limit: int = 50,
) -> list[dict[str, Any]]:
    """The newest records that match, newest first. Slow: over 10 s, or its first token after 2 s."""
    found: list[dict[str, Any]] = []
    for record in records.newest_first():
        if tenant and record.tenant != tenant:
            continue
        if model and model not in (record.model, record.asked):
            continue
        if failed and record.outcome in _NOT_FAILED:
            continue
        if slow and record.total_s < SLOW_S and (record.ttft_s or 0.0) < SLOW_TTFT_S:
            continue
        found.append(as_json(record))
        if len(found) >= limit:
            break
    return found


def explain(record: Record) -> Explanation:
    """Why a request went as it did: where it went, what it waited for, how it ended."""
    outcome = Outcome(record.outcome)
    return Explanation(
        subject=f"request {record.id}",
        verdict=_verdict(record, outcome),
        because=tuple(_facts(record)),
        candidates=_candidates(record),
        would_change_it=tuple(_would_change(record, outcome)),
        next_command=_next(record, outcome),
    )


def _verdict(record: Record, outcome: Outcome) -> str:
    where = f" by {record.endpoint}" if record.endpoint else ""
    if outcome.ok:
        return f"answered{where} in {record.total_s:.3f} s"
    tried = f", last tried at {record.endpoint}" if record.endpoint else ""
    return f"{record.outcome.replace('_', ' ')} after {record.total_s:.3f} s{tried}"


def _facts(record: Record) -> list[Fact]:
    facts = [Fact(f"{record.route} for model {record.model or record.asked or '?'} from tenant {record.tenant or '?'}")]
    if record.asked and record.asked != record.model and not record.fallbacks:
        facts.append(Fact(f"the client asked for {record.asked}, which means {record.model}"))
    facts += _wait(record)
    for number, (endpoint, result, why, seconds) in enumerate(record.tries, 1):
        ended = (
            "answered" if result == "ok" else f"{result.replace('_', ' ') or 'cut off'}" + (f" ({why})" if why else "")
        )
        facts.append(Fact(f"attempt {number} at {endpoint}: {ended} after {seconds:.3f} s"))
    for name, why in zip(record.fallbacks, record.fell_back_on or [""] * len(record.fallbacks), strict=False):
        facts.append(Fact(f"it fell back to model {name}" + (f" on {why}" if why else "")))
    if record.ttft_s is not None and record.stream:
        facts.append(Fact(f"first token after {record.ttft_s:.3f} s"))
    if record.completion_tokens:
        counted = "counted by us" if record.estimated else "as the engine counts"
        facts.append(Fact(f"{record.prompt_tokens} tokens in, {record.completion_tokens} out ({counted})"))
    if record.message:
        facts.append(Fact(record.message))
    return facts


def _wait(record: Record) -> list[Fact]:
    """How long it stood in queues, what was ahead of it, and what ended that."""
    if not record.waited_behind:
        return []
    facts = [
        Fact(f"it waited {record.wait_s:.3f} s"),
        Fact(f"ahead of it as it came: {record.waited_behind}"),
    ]
    if record.let_through:
        facts.append(Fact(f"it was let through: {record.let_through}"))
    return facts


def _candidates(record: Record) -> tuple[Considered, ...]:
    """Of the last attempt; the account was packed, so its tuples came back as lists."""
    if not record.choices or not record.choices[-1]:
        return ()
    try:
        account = msgspec.convert(record.choices[-1], tuple[tuple[str, str, tuple[float, ...]], ...])
    except msgspec.ValidationError:
        return ()
    return explain_choice(account, record.endpoint)


def _would_change(record: Record, outcome: Outcome) -> list[str]:
    match outcome:
        case Outcome.NO_ENDPOINT:
            return ["an endpoint that is healthy and whose breaker is closed", "a fallback on no_endpoint"]
        case Outcome.MODEL_NOT_FOUND:
            return ["a model or alias of that name in the config", "a key that may use it"]
        case Outcome.UNAUTHENTICATED:
            return ["a key made with `llmgw ctl keys create`"]
        case Outcome.FIRST_TOKEN_TIMEOUT | Outcome.IDLE_TIMEOUT | Outcome.TOTAL_TIMEOUT | Outcome.HEADERS_TIMEOUT:
            return [f"a longer relay.{outcome.value.removesuffix('_timeout')}", "a fallback on timeout"]
        case Outcome.ENGINE_BUSY:
            return ["more capacity in the pool", "a fallback on 429"]
        case Outcome.QUEUE_FULL:
            return ["more capacity in the pool", "a larger admission.queue_seats_max", "a fallback on saturated"]
        case Outcome.WAITED_TOO_LONG:
            return ["more capacity in the pool", f"a longer admission.ttl of {record.band}", "a fallback on saturated"]
    return []


def _next(record: Record, outcome: Outcome) -> str:
    if outcome in (Outcome.QUEUE_FULL, Outcome.WAITED_TOO_LONG):
        return f"llmgw ctl explain queue {record.model}"
    if outcome.end.blame in ("engine", "gateway") and record.model:
        return "llmgw ctl endpoints"
    if outcome in (Outcome.UNAUTHENTICATED, Outcome.FORBIDDEN):
        return "llmgw ctl keys list"
    if outcome is Outcome.MODEL_NOT_FOUND:
        return "llmgw ctl models"
    return f"llmgw ctl requests --tenant {record.tenant}" if record.tenant else "llmgw ctl requests"
