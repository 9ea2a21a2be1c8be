"""What is taken out of service: how far it has got, what it waits for; and what a drain would do before it is asked."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, tzinfo
from urllib.parse import quote

from console.model import Picture
from console.shown import Cell, Column, Line, Listing, Place, Row, Tone, counted, line, number, plain, span, spanned
from console.views.explained import explained
from console.views.fitting import folded
from console.views.read import Json, amount, count, flag, part, rows, text, words
from console.views.view import Asked, Question

COLUMNS = (
    Column("SUBJECT", most=28, middle=True),
    Column("STATE", most=10),
    Column("REPLACED", right=True),
    Column("CUT", right=True, spare=True),
    Column("TIME LEFT", right=True),
    Column("WAITS ON", most=0),
    Column("BY", most=14, spare=True),
    Column("WHY", most=30),
)
EMPTY = "nothing is drained; `:drain NODE` asks for it, and shows first what would happen"
STATES = {"draining": Tone.BUSY, "drained": Tone.GOOD, "blocked": Tone.BAD, "undone": Tone.DIM}
AT_DEADLINE = {
    "stop": "what is left is stopped, and its requests are cut",
    "keep": "what is left serves on, and the drain ends blocked",
}
ENDPOINT = "endpoint/"  # before an endpoint's id, where a subject could be a node
INDENT = 6
PANE = 72  # cells of a pane where nobody says


def listing(picture: Picture, _subject: str = "") -> Listing:
    return Listing(COLUMNS, tuple(_row(subject, row) for subject, row in picture.drains.items()), EMPTY)


def _row(subject: str, row: Json) -> Row:
    drain = part(row, "drain")
    state, replaced, of = text(drain, "state", "?"), *_replaced(drain)
    cut = count(drain, "cut")
    cells = (
        plain(subject),
        plain(state, STATES.get(state, Tone.PLAIN)),
        Cell(f"{replaced} of {of}", order=replaced / of if of else 1.0),
        number(cut, ",d", Tone.WARN if cut else Tone.DIM),
        _left(drain),
        plain(
            "; ".join(words(drain, "waits_on")) or text(drain, "said"), Tone.BAD if state == "blocked" else Tone.PLAIN
        ),
        plain(text(row, "by", "-")),
        plain(text(row, "why")),
    )
    return Row(subject, cells, state == "blocked", Place("drain", subject))


def _replaced(drain: Json) -> tuple[int, int]:
    """How many serve elsewhere, of those that are there or were."""
    replaced = set(words(drain, "replaced"))
    return len(replaced), len(replaced | set(words(drain, "left")) | set(part(drain, "planned")))


def _left(drain: Json) -> Cell:
    left = amount(drain, "left_s")
    if left is None or left >= 0:
        return span(left)
    return Cell(f"over by {spanned(-left)}", Tone.WARN, left)


# -- one drain --------------------------------------------------------------------------------------------


def asks(_subject: str, key: str) -> Mapping[str, Question]:
    return {"drain": Question(f"/explain/drain/{quote(key, safe='/')}")}


def detail(picture: Picture, _subject: str, key: str, asked: Asked, width: int = PANE) -> tuple[Line, ...]:
    row = picture.drains.get(key)
    if row is None:
        return (line(f"{key} is not drained any more"),)
    told = drain_lines(picture, key)
    return (*told, line(""), *explained(asked["drain"], width)) if "drain" in asked else told


def drain_lines(picture: Picture, subject: str, zone: tzinfo | None = None) -> tuple[Line, ...]:
    """Of a node's drain or of ``endpoint/ID``'s: planned, done, left; what it waits on, and what its end brings."""
    row = picture.drains.get(subject)
    return tuple(_about(subject, row, zone)) if row is not None else (line(f"{subject} is not drained"),)


def _about(subject: str, row: Json, zone: tzinfo | None) -> Iterator[Line]:
    drain, at = part(row, "drain"), amount(row, "at")
    state = text(drain, "state", "?")
    place = None if subject.startswith(ENDPOINT) else Place("node", subject)
    yield line(plain(subject, Tone.STRONG), "  ", plain(state, STATES.get(state, Tone.PLAIN)), leads_to=place)
    since = "" if at is None else f" at {datetime.fromtimestamp(at, zone):%H:%M:%S}"
    why = f": {text(row, 'why')}" if text(row, "why") else ""
    yield line(f"asked by {text(row, 'by', '?')}{since}{why}")
    if text(drain, "said"):
        yield line(plain(text(drain, "said"), STATES.get(state, Tone.PLAIN)))
    yield from _replicas(drain)
    for process in words(drain, "processes"):
        yield line(plain(f"process of {process} is there", Tone.DIM))
    for waits in words(drain, "waits_on"):
        yield line(plain("waits  ", Tone.DIM), plain(waits, Tone.BAD if state == "blocked" else Tone.BUSY))
    if amount(drain, "left_s") is not None:
        yield from _deadline(drain)
    cut = count(drain, "cut")
    yield line(plain(f"{counted(cut, 'request')} cut", Tone.WARN if cut else Tone.DIM))


def _replicas(drain: Json) -> Iterator[Line]:
    """Each that is there or was: where its successor was to go, and whether it serves."""
    planned, replaced, left = part(drain, "planned"), words(drain, "replaced"), words(drain, "left")
    for name in sorted({*planned, *replaced, *left}):
        to = ", ".join(words(planned, name))
        done = name in replaced
        mark = Cell("✓ ", Tone.GOOD) if done else Cell("… ", Tone.BUSY) if name in left else Cell("  ")
        told = "replaced" if done else "still there" if name in left else "gone"
        yield line(mark, name, plain(f" → {to}" if to else "", Tone.DIM), f"  {told}", leads_to=Place("replica", name))


def _deadline(drain: Json) -> Iterator[Line]:
    left, grace = _left(drain).text, amount(drain, "grace_s")
    of = "" if grace is None else f" of {spanned(grace)}"
    then = text(drain, "at_deadline")
    yield line(plain("time left  ", Tone.DIM), f"{left}{of}; then {AT_DEADLINE.get(then, then or 'nobody knows what')}")


# -- before it is asked -----------------------------------------------------------------------------------


def plan_lines(answer: Json, width: int) -> tuple[Line, ...]:
    """What the dry run of a node's or an endpoint's drain says, in full: it is shown before anybody says yes."""
    return tuple(folds for one in _plan(answer) for folds in folded(one, width, INDENT))


def planned_apart(answers: Sequence[Json]) -> tuple[Line, ...]:
    """What several dry runs leave out."""
    if sum(bool(_moves(answer)) for answer in answers) < 2:
        return ()
    warned = "each is planned by itself: together they may find less room than this says"
    return (line(Cell("! ", Tone.WARN), Cell(warned, Tone.WARN)),)


def would_block(answers: Sequence[Json]) -> bool:
    """Whether one of them could not end as it is planned, or is refused."""
    return any(
        text(answer, "refused") or part(answer, "error") or any(flag(m, "blocked") for m in _moves(answer))
        for answer in answers
    )


def _moves(answer: Json) -> Sequence[Json]:
    return rows(part(answer, "plan"), "moves")


def _plan(answer: Json) -> Iterator[Line]:
    subject = text(answer, "node") or ENDPOINT + text(answer, "endpoint", "?")
    moves, error = _moves(answer), part(answer, "error")
    yield line(plain(subject, Tone.STRONG), plain(_sum(answer, moves), Tone.DIM))
    for move in moves:
        yield from _move(move, "ends" if text(answer, "node") else "gets no new request")
    if error:
        yield line(Cell("  ✗ ", Tone.BAD), plain(f"refused: {text(error, 'message', '?')}", Tone.BAD))
        if text(error, "hint"):
            yield line("    ", plain(text(error, "hint"), Tone.DIM))
    if text(answer, "refused"):
        yield line(Cell("  ✗ ", Tone.BAD), plain(f"would be refused: {text(answer, 'refused')}", Tone.BAD))


def _sum(answer: Json, moves: Sequence[Json]) -> str:
    if not part(answer, "plan"):
        return ""
    if not moves:
        return "  nothing runs there: it is drained at once"
    blocked, requests = sum(flag(move, "blocked") for move in moves), sum(count(move, "requests") for move in moves)
    told = [counted(len(moves), "replica"), counted(requests, "request")] if text(answer, "node") else []
    told += [f"{blocked} blocked"] * bool(blocked)
    takes = amount(part(answer, "plan"), "estimate_s")
    if takes:
        told.append(f"about {spanned(takes)} and as long as its requests last")
    return "  " + ", ".join(told)


def _move(move: Json, otherwise: str) -> Iterator[Line]:
    """One replica, where it goes and why there, or why nowhere. ``otherwise``: what becomes of it without a place."""
    blocked, to, name = flag(move, "blocked"), ", ".join(words(move, "to")), text(move, "replica", "?")
    where = f" → {to}" if to else " stays" if blocked else f" {otherwise}"
    mark = Cell("  ✗ ", Tone.BAD) if blocked else Cell("  ✓ ", Tone.GOOD)
    requests, oldest = count(move, "requests"), amount(move, "oldest_s")
    has = f", {counted(requests, 'request')}" + (f", oldest {spanned(oldest)}" if oldest else "") if requests else ""
    takes = amount(move, "takes_s")
    yield line(
        mark,
        name,
        plain(where, Tone.BAD if blocked else Tone.STRONG),
        plain(f"{has}{f', about {spanned(takes)}' if takes else ''}", Tone.DIM),
        leads_to=Place("placement", text(move, "model")) if blocked else None,
    )
    if text(move, "why"):
        yield line("      ", plain(text(move, "why"), Tone.BAD if blocked else Tone.DIM))
