"""The event feed: server-sent events with ``Last-Event-ID``, or what is remembered as JSON.

A reader that was away too long, or reads too slowly, is told how much it missed; it then reads the state anew.
"""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import trio
from quart import Blueprint, Response, request

from llmgw.admin.gatekeeping import Gatekeeper, Problem, flag, listing, number
from llmgw.admin.services import AdminServices
from llmgw.control.events import Events, as_json
from llmgw.core.identity import Role
from llmgw.store.events import Event

LISTED_MAX = 10_000
BATCH = 500
COMMENT_S = 15.0  # a silent feed says that it lives
SEQ_MAX = 2**53


def add_routes(api: Blueprint, services: AdminServices, keeper: Gatekeeper) -> None:
    events = services.cluster.events

    @api.get("/events")
    @keeper.needs(Role.VIEWER)
    async def feed() -> Any:
        """``Last-Event-ID`` or ``since``: events after that number; neither: from now on. ``follow``: as SSE."""
        since = _since()
        wants_stream = flag("follow") or "text/event-stream" in request.headers.get("accept", "")
        if not wants_stream:
            found, missed = events.since(since or 0, number("limit", 200, LISTED_MAX))
            shown = await listing("events", [one for one in found if _matches(one)], as_json)
            shown.headers["x-llmgw-missed"] = str(missed if since is not None else 0)
            return shown
        response = Response(_stream(events, events.last if since is None else since), content_type="text/event-stream")
        response.timeout = None
        response.headers["cache-control"] = "no-store"
        return response


def _since() -> int | None:
    said = request.headers.get("last-event-id") or request.args.get("since")
    if said is None or said == "":
        return None
    if not said.isascii() or not said.isdigit() or int(said) > SEQ_MAX:
        raise Problem(400, "field", f"{said[:64]!r} is no event's number", "send the last id that you have seen")
    return int(said)


def _matches(event: Event) -> bool:
    kind, subject = request.args.get("kind", ""), request.args.get("subject", "")
    return event.kind.startswith(kind) and subject in ("", event.subject)


async def _stream(events: Events, seq: int) -> AsyncIterator[bytes]:
    yield b": events of llmgw\n\n"
    while True:
        found, missed = events.since(seq, BATCH)
        if missed:
            yield b"event: missed\ndata: %b\n\n" % msgspec.json.encode({"missed": missed, "since": seq})
        for event in found:
            yield b"id: %d\nevent: %b\ndata: %b\n\n" % (
                event.seq, event.kind.encode(), msgspec.json.encode(as_json(event))
            )  # fmt: skip
        seq = found[-1].seq if found else max(seq if seq <= events.last else 0, 0)
        if not found and not await _news(events, seq):
            yield b": still here\n\n"


async def _news(events: Events, seq: int) -> bool:
    """Whether something came before a sign of life is due. No scope is open while anything is yielded."""
    with trio.move_on_after(COMMENT_S):
        await events.wait(seq)
        return True
    return False
