"""Who leads, for how long, and whether it may act: what ``/leader`` says, as lines."""

from collections.abc import Iterator
from itertools import chain, repeat

from console.model import Picture
from console.shown import Cell, Line, Place, Tone, line, plain, spanned
from console.views.fitting import folded, padded
from console.views.read import Json, amount, count, flag, part, rows, text

LABEL = 11
STATES = {
    "leading": Tone.GOOD,
    "suspended": Tone.WARN,
    "released": Tone.BAD,
    "run out": Tone.BAD,
}
ADDRESSES = {"client": "clients", "admin": "operators", "agents": "agents"}


def lines(picture: Picture, width: int, now: float | None = None) -> tuple[Line, ...]:
    """``now``: the console's clock, on which spans go on since they were told; None: as they were told."""
    since_told = 0.0 if now is None or picture.taken_at is None else now - picture.taken_at
    return tuple(folds for one in _lines(picture, since_told) for folds in folded(one, width, LABEL))


def _lines(picture: Picture, since_told_s: float) -> Iterator[Line]:
    if picture.hold:
        yield _said("doubts", plain(f"it stops nothing: {picture.hold}", Tone.BAD))
    who = part(picture.leader, "leader")
    if not who:
        yield _said("leads", Cell("nobody, as far as this control plane knows", Tone.BAD))
    else:
        yield from _who(who, since_told_s)
    yield from _standbys(picture.leader)
    yield from _told_by(picture)


def _said(label: str, *cells: Cell | str, at: Place | None = None) -> Line:
    return line(Cell(padded(label, LABEL), Tone.DIM), *cells, leads_to=at)


def _who(who: Json, since_told_s: float) -> Iterator[Line]:
    state = text(who, "state", "?")
    yield _said("leads", plain(text(who, "who", "?"), Tone.STRONG), "  ", plain(state, STATES.get(state, Tone.WARN)))
    since, margin = amount(who, "since_s"), amount(who, "margin_s")
    held = "" if since is None else f", for {spanned(since + since_told_s)}"
    yield _said("term", f"{text(who, 'term', '-')}{held}, renewed {count(who, 'renewals'):,} times")
    if margin is not None:
        told = f"good for {spanned(margin)} as of the last answer" if margin > 0 else "run out"
        yield _said("lease", plain(told, Tone.PLAIN if margin > 0 else Tone.BAD))
    ready = flag(who, "ready", True)
    yield _said("ready", Cell("it has somewhere to send requests", Tone.GOOD) if ready else _not_ready())
    addresses = part(who, "addresses")
    for name, label in ADDRESSES.items():
        if text(addresses, name):
            yield _said(label, text(addresses, name))


def _standbys(told: Json) -> Iterator[Line]:
    """Who takes over, should the leader end. A control plane of before 0.6 does not tell."""
    if flag(told, "alone"):
        yield _said("stands by", Cell("nobody could: the store is SQLite", Tone.DIM))
    elif "standbys" in told and told["standbys"] is None:
        yield _said("stands by", Cell("not known: the store was not read lately", Tone.WARN))
    elif "standbys" in told:
        for label, one in zip(chain(("stands by",), repeat("")), rows(told, "standbys"), strict=False):
            yield _said(label, plain(text(one, "name", "?"), Tone.STRONG), "  ", _heard(one), _at(one))
        if not rows(told, "standbys"):
            yield _said("stands by", Cell("nobody: should the leader end, nobody leads", Tone.WARN))


def _heard(standby: Json) -> Cell:
    if not flag(standby, "silent"):
        return Cell("ready to take over", Tone.GOOD)
    heard = amount(standby, "heard_s")
    return plain("not heard since who leads does" if heard is None else f"not heard for {spanned(heard)}", Tone.BAD)


def _at(standby: Json) -> Cell:
    admin = text(part(standby, "addresses"), "admin")
    return plain(f"  {admin}" if admin else "", Tone.DIM)


def _not_ready() -> Cell:
    return Cell("it has nowhere to send requests", Tone.BAD)


def _told_by(picture: Picture) -> Iterator[Line]:
    """Who answered this, and how it stands itself."""
    told, status = picture.leader, picture.status
    here = "leads" if flag(told, "leads") else "stands by"
    may = "" if flag(told, "acts", True) or not flag(told, "leads") else ", but may not act now"
    version = text(status, "version", "?")
    yield _said("told by", f"{picture.link.url or 'the control plane'}, which {here}{may}, llmgw {version}")
    if picture.age_s is not None:
        yield _said("", plain(f"as it knew it {spanned(picture.age_s)} ago", Tone.WARN))
    away = max(amount(told, "store_away_s") or 0.0, amount(status, "store_away_s") or 0.0)
    if away:
        yield _said("store", Cell(f"has not answered for {spanned(away)}", Tone.BAD))
    else:
        yield _said("store", Cell("answers", Tone.GOOD))
    if text(status, "cluster_id"):
        yield _said("cluster", plain(text(status, "cluster_id"), Tone.DIM))
