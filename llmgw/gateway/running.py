"""Which requests run now, and how an operator ends one. What they say is never shown."""

from typing import Any

import trio

from llmgw.core.drain_plan import NO_REQUESTS, Requests
from llmgw.core.outcome import Outcome, Refusal
from llmgw.gateway.gate import Gate
from llmgw.gateway.record import Story


def running(gate: Gate, now: float, model: str = "", endpoint: str = "", limit: int = 1000) -> list[dict[str, Any]]:
    """The oldest first. ``model``: by its own name; ``endpoint``: by its id."""
    found = []
    for story in sorted(gate.running.values(), key=lambda one: one.received):
        shown = as_json(story, now)
        if model in ("", shown["model"]) and endpoint in ("", shown["endpoint"]):
            found.append(shown)
        if len(found) >= limit:
            break
    return found


def as_json(story: Story, now: float) -> dict[str, Any]:
    passage, last = story.passage, story.tries[-1] if story.tries else None
    first = passage.first_token_at if passage is not None else None
    return {
        "id": story.id,
        "route": story.route,
        "model": story.model,
        "asked": story.asked,
        "tenant": story.key.tenant if story.key else "",
        "band": story.key.band.value if story.key else "",
        "stream": story.stream,
        "phase": _phase(story),
        "endpoint": last.endpoint if last is not None and not story.asking else "",
        "attempt": len(story.tries),
        "age_s": round(now - story.received, 1),
        "waited_s": round(story.wait_s, 1),
        "first_token_age_s": None if first is None else round(now - first, 1),
        "tokens": passage.tokens_so_far if passage is not None else 0,
        "bytes_in": story.bytes_in,
    }


def _phase(story: Story) -> str:
    """reading, queued, sent (no word yet), streaming or answering, cancelled."""
    passage = story.passage
    if passage is not None and passage.cancelled is not None:
        return "cancelled"
    if story.asking is not None:
        return "queued"
    if passage is None or not story.tries:
        return "reading"
    if not passage.reached:
        return "sent"
    return "streaming" if story.stream else "answering"


def cancel(gate: Gate, id: str) -> bool:
    """Ask for its end; its client gets an error, or an error event. Whether there is such a request to end."""
    story = gate.running.get(id)
    if story is None or story.passage is None:
        return False
    refusal = Refusal(Outcome.CANCELLED, "an operator ended this request")  # the reason is not the client's
    passage = story.passage
    passage.cancelled = refusal
    if story.asking is not None:
        story.asking.cancelled = refusal
    passage.exchange.alarm.set(0.0)
    return True


def requests_at(gate: Gate) -> dict[str, Requests]:
    """By endpoint id: how many requests are there, and the age of the oldest."""
    now, found = trio.current_time(), dict[str, Requests]()
    for story in gate.running.values():
        if story.tries and story.asking is None:
            known = found.get(story.tries[-1].endpoint, NO_REQUESTS)
            found[story.tries[-1].endpoint] = Requests(known.number + 1, max(known.oldest_s, now - story.received))
    return found


def cut_at(gate: Gate, endpoint: str) -> int:
    """End what is at an endpoint; how many that were."""
    there = [
        story.id
        for story in gate.running.values()
        if story.tries and story.asking is None and story.tries[-1].endpoint == endpoint
        and story.passage is not None and story.passage.cancelled is None
    ]  # fmt: skip
    return sum(cancel(gate, id) for id in there)
