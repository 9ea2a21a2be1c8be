"""The event feed: server-sent events with ``Last-Event-ID``, or what is remembered as JSON.

A reader that was away too long, or reads too slowly, is told how much it missed; it then reads the state anew.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import trio
from attrs import frozen
from quart import Blueprint, Response, request

from llmgw.admin.gatekeeping import Gatekeeper, Problem, flag, listing, number
from llmgw.admin.services import AdminServices
from llmgw.control.events import Events, as_json
from llmgw.core.identity import Role
from llmgw.store.events import Event

LISTED_MAX = 10_000
BATCH = 500
COMMENT_S = 15.0  # a silent feed says that it lives
DIGITS_MAX = 15


def add_routes(api: Blueprint, services: AdminServices, keeper: Gatekeeper) -> None:
    events = services.cluster.events

    @api.get("/events")
    @keeper.needs(Role.VIEWER)
    async def feed() -> Any:
        """``Last-Event-ID`` or ``since``: events after that number; neither: from now on. ``follow``: as SSE."""
        since, wanted = _since(), Wanted(request.args.get("kind", ""), request.args.get("subject", ""))
        if not flag("follow") and "text/event-stream" not in request.headers.get("accept", ""):
            return await _listed(events, since, wanted, number("limit", 200, LISTED_MAX))
        leads = services.leadership.standby_of
        stream = _stream(events, events.last if since is None else since, wanted, lambda: leads() is None)
        response = Response(stream, content_type="text/event-stream")
        response.timeout = None
        response.headers["cache-control"] = "no-store"
        return response


@frozen
class Wanted:
    """Events of kinds that begin so, about that subject; empty: of all, about any."""

    kind: str = ""
    subject: str = ""

    def __contains__(self, event: Event) -> bool:
        return event.kind.startswith(self.kind) and self.subject in ("", event.subject)


def _since() -> int | None:
    said = request.headers.get("last-event-id") or request.args.get("since")
    if said is None or said == "":
        return None
    if not said.isascii() or not said.isdigit() or len(said) > DIGITS_MAX:
        raise Problem(400, "field", f"{said[:64]!r} is no event's number", "send the last id that you have seen")
    return int(said)


async def _listed(events: Events, since: int | None, wanted: Wanted, limit: int) -> Response:
    """The latest that are remembered. ``missed``: how many after ``since`` are not among them; ``last``: to go on."""
    found, forgotten = events.since(since or 0)
    matching = [event for event in found if event in wanted]
    left_out = max(0, len(matching) - limit)
    missed = 0 if since is None else forgotten + left_out
    return await listing("events", matching[left_out:], as_json, missed=missed, last=events.last)


async def _stream(events: Events, seq: int, wanted: Wanted, leads: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Until this control plane leads no more: what happens is told elsewhere then."""
    yield b": events of llmgw\n\n"
    while leads():
        strange = seq > events.last
        found, missed = events.since(seq, BATCH)
        if missed or strange:
            yield b"event: missed\ndata: %b\n\n" % msgspec.json.encode({"missed": missed, "since": seq})
        for event in found:
            if event in wanted:
                yield _told(event)
        if found and found[-1] not in wanted:
            yield b"id: %d\n\n" % found[-1].seq  # by itself it is no event, and says where to go on
        # Those that nobody forgot are behind us, and what a stranger's number meant is not known.
        seq = found[-1].seq if found else 0 if strange else seq
        if not found and not await _news(events, seq):
            yield b": still here\n\n"


def _told(event: Event) -> bytes:
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (event.seq, event.kind.encode(), msgspec.json.encode(as_json(event)))


async def _news(events: Events, seq: int) -> bool:
    """Whether something came before a sign of life is due. No scope is open while anything is yielded."""
    with trio.move_on_after(COMMENT_S):
        await events.wait(seq)
        return True
    return False
