"""What happened, as a table with the newest last; and where each of it happened."""

from collections.abc import Iterator, Sequence
from datetime import datetime, tzinfo
from typing import overload

from attrs import frozen

from console.model import Picture
from console.shown import Cell, Column, Line, Listing, Place, Row, Tone, line, plain
from console.views.read import NOTHING, Json, amount, count, part, text, words
from console.views.view import Asked

COLUMNS = (
    Column("NUMBER", right=True, most=10),
    Column("AT", most=14),
    Column("KIND", most=20),
    Column("SUBJECT", most=28, middle=True),
    Column("WHAT", most=0),
)
EMPTY = "nothing has happened yet; what happens is told here as it does"

TONES: dict[str, Tone] = {
    **dict.fromkeys(
        "node.silent node.lost replica.failed replica.blocked leader.doubts leader.suspended leader.ended".split(),
        Tone.BAD,
    ),
    **dict.fromkeys(
        "node.removed replica.out replica.waiting leader.lifted leader.other leader.store_back leader.misfit".split(),
        Tone.WARN,
    ),
    **dict.fromkeys(
        "node.joined node.linked node.back gpu.cleared replica.ready replica.settled replica.returned leader.began"
        " leader.resumed leader.trusts".split(),
        Tone.GOOD,
    ),
    **dict.fromkeys(
        "replica.created replica.started replica.renewed replica.leaving replica.stopping node.target"
        " endpoint.target".split(),
        Tone.BUSY,
    ),
    "replica.gone": Tone.DIM,
    **dict.fromkeys("operator.acted config.applied model.applied model.scaled".split(), Tone.STRONG),
}
ENDS = {"drained": Tone.GOOD, "blocked": Tone.BAD, "undone": Tone.PLAIN}  # of drains


def listing(picture: Picture, needle: str = "", zone: tzinfo | None = None) -> Listing:
    """``needle``: in kind, subject or sentence; ``zone`` None: where the console runs."""
    found = [event for event in picture.events if matches(event, needle)]
    empty = f"no event of {len(picture.events):,} tells of {needle!r}" if picture.events else EMPTY
    note = f"{picture.missed:,} events before these are not remembered any more" if picture.missed else ""
    return Listing(COLUMNS, Told(found, _day(found[-1], zone) if found else "", zone), plain(empty).text, note)


def matches(event: Json, needle: str) -> bool:
    wanted = needle.strip().casefold()
    return not wanted or any(wanted in text(event, key).casefold() for key in ("kind", "subject", "sentence"))


@frozen
class Told(Sequence[Row]):
    """Rows that are made when they are looked at: of thousands a screen shows some forty. ``today``: without a date."""

    events: Sequence[Json]
    today: str
    zone: tzinfo | None = None

    def __len__(self) -> int:
        return len(self.events)

    @overload
    def __getitem__(self, at: int) -> Row: ...
    @overload
    def __getitem__(self, at: slice) -> "Told": ...

    def __getitem__(self, at: int | slice) -> "Row | Told":
        if isinstance(at, slice):
            return Told(self.events[at], self.today, self.zone)
        return _row(self.events[at], self.today, self.zone)


def _row(event: Json, today: str, zone: tzinfo | None) -> Row:
    tone, seq = tone_of(event), count(event, "seq")
    cells = (
        Cell(str(seq), Tone.DIM, seq),
        Cell(when(event, today, zone), Tone.DIM, amount(event, "at")),
        plain(text(event, "kind"), tone),
        plain(text(event, "subject")),
        plain(text(event, "sentence"), Tone.BAD if tone is Tone.BAD else Tone.PLAIN),
    )
    return Row(str(seq), cells, tone in (Tone.BAD, Tone.WARN), place_of(event))


def tone_of(event: Json) -> Tone:
    kind, ended = text(event, "kind"), text(part(event, "data"), "ended")
    if kind == "gpu.evidence":
        return Tone.WARN if ": note: " in text(event, "sentence") else Tone.BAD
    return ENDS.get(ended, Tone.PLAIN) if ended else TONES.get(kind, Tone.PLAIN)


def when(event: Json, today: str, zone: tzinfo | None = None) -> str:
    """HH:MM:SS, and the day before it where that is another."""
    moment = _moment(event, zone)
    if moment is None:
        return "-"
    return f"{moment:%H:%M:%S}" if f"{moment:%Y-%m-%d}" == today else f"{moment:%m-%d %H:%M:%S}"


def _day(event: Json, zone: tzinfo | None) -> str:
    moment = _moment(event, zone)
    return "" if moment is None else f"{moment:%Y-%m-%d}"


def _moment(event: Json, zone: tzinfo | None) -> datetime | None:
    at = amount(event, "at")
    return None if at is None else datetime.fromtimestamp(at, zone).astimezone(zone)


def place_of(event: Json) -> Place | None:
    """Where its subject is; None: nowhere that could be shown."""
    room, _, what = text(event, "kind").partition(".")
    subject = text(event, "subject")
    if not subject or room == "config":
        return None
    match room:
        case "node":
            return Place("nodes") if what == "removed" else Place("node", subject)
        case "replica":
            model = text(part(event, "data"), "model")
            return Place("replicas", model) if what == "gone" else Place("replica", subject)
        case "operator":  # a GPU that was cleared, or what runs
            return Place("gpu", subject) if "/" in subject else Place("replica", subject)
        case "model":
            return Place("replicas", subject)
        case "gpu":
            return Place("gpu", subject)
        case "endpoint":
            return Place("drain", f"endpoint/{subject}")
        case "leader":
            return Place("leader")
    return None


def detail(picture: Picture, _subject: str, key: str, _asked: Asked, _width: int = 0) -> tuple[Line, ...]:
    event = next((one for one in picture.events if str(count(one, "seq")) == key), None)
    return tuple(_about(event)) if event is not None else (line("it is not remembered any more"),)


def _about(event: Json, zone: tzinfo | None = None) -> Iterator[Line]:
    yield line(plain(text(event, "kind"), tone_of(event)), "  ", plain(when(event, "", zone), Tone.DIM))
    yield line(plain(text(event, "subject"), Tone.STRONG), leads_to=place_of(event))
    yield line(text(event, "sentence"))
    told = part(event, "data") or NOTHING
    for name in told:
        value = ", ".join(words(told, name)) if isinstance(told[name], list | tuple) else text(told, name)
        if value and value not in text(event, "sentence"):
            yield line(plain(f"{name}: ", Tone.DIM), value)
