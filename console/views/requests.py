"""Which requests run and which have ended, badly or at all: where they are, how long they take, what became of them.

Of requests the management API tells no content, and of what it tells only what is named here is shown.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime, tzinfo
from urllib.parse import quote

from console.model import Picture
from console.shown import Cell, Column, Line, Listing, Place, Row, Tone, line, number, plain, span
from console.views.explained import explained
from console.views.read import Json, amount, count, flag, rows, text
from console.views.view import Asked, Question
from llmgw.core.outcome import Outcome

RUNNING = (
    Column("REQUEST", most=26, middle=True),
    Column("MODEL", most=20, middle=True),
    Column("TENANT", most=16),
    Column("BAND", most=9, spare=True),
    Column("PHASE", most=10),
    Column("ENDPOINT", most=0, middle=True),
    Column("AGE", right=True),
    Column("WAITED", right=True, spare=True),
    Column("FIRST TOKEN", right=True, spare=True),
    Column("TOKENS", right=True),
)
RECENT = (
    Column("REQUEST", most=26, middle=True),
    Column("AT", most=8),
    Column("MODEL", most=20, middle=True),
    Column("TENANT", most=16),
    Column("ENDPOINT", most=24, spare=True, middle=True),
    Column("OUTCOME", most=20),
    Column("STATUS", right=True, spare=True),
    Column("TOTAL", right=True),
    Column("FIRST TOKEN", right=True, spare=True),
    Column("WHY", most=0),
)
PHASES = {
    "queued": Tone.WARN,
    "sent": Tone.BUSY,
    "streaming": Tone.GOOD,
    "answering": Tone.GOOD,
    "cancelled": Tone.DIM,
}
ID = "req_"  # begins one that the gateway has given
AT = 1  # of the columns of those that have ended
PANE = 72  # cells of a pane where nobody says


def running(picture: Picture, subject: str = "") -> Listing:
    """``subject``: of a model, an endpoint's id, a replica, or "" for all."""
    found = tuple(_running(one) for one in picture.running if is_of(one, subject))
    return Listing(RUNNING, found, plain(f"no request runs{_for(subject)}").text)


def recent(picture: Picture, subject: str = "", zone: tzinfo | None = None) -> Listing:
    """Those that were slow or failed, as the API gives them; ``subject`` as in ``running``."""
    found = tuple(_recent(one, zone) for one in picture.recent if is_of(one, subject))
    return Listing(RECENT, found, plain(f"no request was slow or failed{_for(subject)}").text)


def latest(picture: Picture, subject: str = "", zone: tzinfo | None = None) -> Listing:
    """The latest that have ended, however they did; ``subject`` as in ``running``."""
    found = tuple(_recent(one, zone) for one in picture.latest if is_of(one, subject))
    return Listing(RECENT, found, plain(f"no request has ended lately{_for(subject)}").text)


def is_id(subject: str, picture: Picture) -> bool:
    """Of one request, and not the name of a model or a replica."""
    return subject.startswith(ID) and subject not in picture.models and subject not in picture.replicas


def _for(subject: str) -> str:
    return f" for {subject}" if subject else ""


def is_of(one: Json, subject: str) -> bool:
    """An endpoint that an agent runs is called ``<replica>.g<generation>``."""
    if subject in ("", text(one, "model"), text(one, "asked")):
        return True
    endpoints = {text(one, "endpoint"), *(text(tried, "endpoint") for tried in rows(one, "tries"))} - {""}
    return subject in endpoints or subject in {replica_of(endpoint) for endpoint in endpoints}


def replica_of(endpoint: str) -> str:
    """ "": nobody's; an operator's own endpoint may be called anything."""
    replica, _, generation = endpoint.rpartition(".g")
    return replica if generation.isdecimal() else ""


def _running(one: Json) -> Row:
    id, phase, age = text(one, "id"), text(one, "phase", "?"), amount(one, "age_s")
    first = amount(one, "first_token_age_s")
    cells = (
        plain(id),
        plain(_named(one)),
        plain(text(one, "tenant", "-")),
        plain(text(one, "band", "-")),
        plain(phase, PHASES.get(phase, Tone.PLAIN)),
        plain(text(one, "endpoint", "-")),
        span(age),
        span(amount(one, "waited_s")),
        span(None if first is None or age is None else max(0.0, age - first)),
        number(count(one, "tokens"), ",d"),
    )
    return Row(id, cells, phase == "queued" or count(one, "attempt") > 1, None)


def _named(one: Json) -> str:
    """The model, and what the client called it where that is another name."""
    model, asked = text(one, "model"), text(one, "asked")
    if not model:
        return f"{asked}?" if asked else "-"
    return model if asked in ("", model) else f"{model} ({asked})"


def _recent(one: Json, zone: tzinfo | None) -> Row:
    id, at, outcome = text(one, "id"), amount(one, "at"), text(one, "outcome", "?")
    tone = tone_of(outcome)
    cells = (
        plain(id),
        Cell("-" if at is None else f"{datetime.fromtimestamp(at, zone):%H:%M:%S}", Tone.DIM, at or 0.0),
        plain(_named(one)),
        plain(text(one, "tenant", "-")),
        plain(text(one, "endpoint", "-")),
        plain(outcome.replace("_", " "), tone),
        number(amount(one, "status"), ".0f"),
        span(amount(one, "total_s")),
        span(amount(one, "ttft_s")),
        plain(_why(one), Tone.DIM),
    )
    return Row(id, cells, tone is Tone.BAD, Place("request", id))


def tone_of(outcome: str) -> Tone:
    """By whose fault it was. One that we don't know yet is of a newer control plane."""
    try:
        blame = Outcome(outcome).end.blame
    except ValueError:
        return Tone.WARN
    return {"none": Tone.GOOD, "client": Tone.DIM}.get(blame, Tone.BAD)


def _why(one: Json) -> str:
    """The last word, else what the last attempt ended with, else what made it slow."""
    if text(one, "message"):
        return text(one, "message")
    tries = rows(one, "tries")
    if tries and text(tries[-1], "why"):
        return text(tries[-1], "why")
    waited = amount(one, "wait_s")
    return f"waited {span(waited).text} in queues" if waited else ""


# -- the pane -----------------------------------------------------------------------------------------------


def asks(_subject: str, key: str) -> Mapping[str, Question]:
    return {"request": Question(f"/requests/{quote(key, safe='')}/explanation")}


def detail(picture: Picture, _subject: str, key: str, asked: Asked, width: int = PANE) -> tuple[Line, ...]:
    """Of a running one or of a recent one; of the latter with its explanation, once that is there."""
    one = next((one for one in (*picture.recent, *picture.latest) if text(one, "id") == key), {})
    running = next((one for one in picture.running if text(one, "id") == key), None)
    if running is not None and not one:  # out of sight those that run are not asked for: it may be long over
        return tuple(_about(running))
    told = tuple(_tries(one))
    if "request" in asked:
        return (*explained(asked["request"], width), *told)
    return told or (line("it has ended; the explanation of a request that is remembered is asked for here"),)


def _about(one: Json) -> Iterator[Line]:
    phase, endpoint = text(one, "phase", "?"), text(one, "endpoint")
    yield line(plain(text(one, "id"), Tone.STRONG), "  ", plain(phase, PHASES.get(phase, Tone.PLAIN)))
    streamed = ", streamed" if flag(one, "stream") else ""
    yield line(
        f"{text(one, 'route', '?')} for ", plain(_named(one)), f"{streamed}, {count(one, 'bytes_in'):,} bytes in"
    )
    yield line(f"tenant {text(one, 'tenant', '-')}, band {text(one, 'band', '-')}")
    if endpoint:
        place = Place("replica", replica_of(endpoint)) if replica_of(endpoint) else None
        yield line(f"attempt {count(one, 'attempt')} at ", plain(endpoint), leads_to=place)
    elif phase == "queued":
        yield line("in the queue of its pool", leads_to=Place("queues", text(one, "model")))
    yield line(f"{span(amount(one, 'age_s')).text} old, waited {span(amount(one, 'waited_s')).text} in queues")
    yield line(f"{count(one, 'tokens'):,} tokens so far")


def _tries(one: Json) -> Iterator[Line]:
    for at, tried in enumerate(rows(one, "tries"), 1):
        outcome, replica = text(tried, "outcome", "cut off"), replica_of(text(tried, "endpoint"))
        told = plain(outcome.replace("_", " "), tone_of(outcome))
        why = f" ({text(tried, 'why')})" if text(tried, "why") else ""
        took = span(amount(tried, "seconds")).text
        place = Place("replica", replica) if replica else None
        yield line(f"attempt {at} at {text(tried, 'endpoint', '?')}: ", told, f"{why} after {took}", leads_to=place)
