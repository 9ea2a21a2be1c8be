"""What stands around every place: whose cluster this is and who leads, where one is, and what is not to be trusted."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len

from console.acts import Verb
from console.model import Picture
from console.shown import Cell, Line, Place, Tone, line, plain, spanned
from console.views.fitting import cut
from console.views.nodes import is_broken
from console.views.read import amount, part, text

Hint = tuple[str, str]  # a key, and what it does
MARKING: Hint = ("space", "mark")  # for those who can act on what is marked
ALL_KEYS: Hint = ("?", "all keys")
STEP, CUT = " → ", "… → "


def head(picture: Picture, now: float, read_only: bool) -> Line:
    if not picture.known:
        return line(plain("llmgw", Tone.STRONG), "  ", plain(_waiting(picture, now), Tone.BUSY))
    well = sum(not is_broken(node) for node in picture.nodes.values())
    nodes = f"{well}/{len(picture.nodes)} nodes" if picture.nodes else "no nodes"
    who = f"{text(picture.you, 'name', '-')} ({picture.role}{', read-only' if read_only else ''})"
    return line(plain("llmgw", Tone.STRONG), "  ", leads(picture, now), f"  {nodes}  {who}")


def _waiting(picture: Picture, now: float) -> str:
    link = picture.link
    if link.down_since is not None:
        return f"asking for {spanned(now - link.down_since)}: {link.why}"
    whom = f" {link.asked}" if link.asked else ""
    return "asking" + whom + (f" for {spanned(now - link.heard_at)}" if link.heard_at is not None else "") + " …"


def leads(picture: Picture, now: float) -> Cell:
    """Who leads, and under which term. A lease that was given back, or has run out, is nobody's."""
    leader = part(picture.leader, "leader")
    who, state, since = text(leader, "who", "somebody"), text(leader, "state"), amount(leader, "since_s")
    if state not in ("leading", "suspended"):
        return plain(f"nobody leads (lease of {who}: {state})" if state else "nobody leads", Tone.BAD)
    if picture.link.down_since is not None:
        return plain(f"{who} led when it answered last, term {text(leader, 'term', '-')}", Tone.WARN)
    held = "" if since is None else f" for {spanned(since + now - (picture.taken_at or now))}"
    tone = Tone.GOOD if state == "leading" else Tone.WARN
    return plain(f"{who} {state}, term {text(leader, 'term', '-')}{held}", tone)


def banner(picture: Picture, now: float) -> Line | None:
    """What is most to be doubted of all that is shown."""
    link = picture.link
    if link.down_since is not None and picture.known:
        since = spanned(now - link.down_since)
        return line(plain(f"stale: no answer for {since}, trying again: {link.why}", Tone.BAD))
    silent_s = link.silent_s(now)
    if silent_s is not None and picture.known:
        return line(plain(f"no answer for {spanned(silent_s)}: what is shown may be old", Tone.WARN))
    if picture.age_s is not None:
        return line(plain(f"who leads does not answer: this the store had {spanned(picture.age_s)} ago", Tone.BAD))
    if picture.hold:
        return line(plain(f"the leader doubts itself and stops nothing: {picture.hold}", Tone.WARN))
    if picture.unmeasured:
        first, reason = min(picture.unmeasured.values())
        told = f"{', '.join(picture.unmeasured)} not measured for {spanned(now - first)}, shown as before: {reason}"
        return line(plain(told, Tone.WARN))
    return None


def crumbs(places: Sequence[Place], width: int) -> Line:
    """The way to where one is, which is never left out: what does not fit goes from the way's beginning."""
    if not places:
        return Line(())
    *before, here = (plain(place).text for place in places)
    way, left = "", width - cell_len(here)
    for index, place in reversed(list(enumerate(before))):
        longer = f"{place}{STEP}{way}"
        if cell_len(longer) + (cell_len(CUT) if index else 0) > left:
            way = f"{CUT}{way}" if cell_len(CUT) + cell_len(way) <= left else way
            break
        way = longer
    return Line((Cell(way, Tone.DIM), Cell(cut(here, width), Tone.STRONG)))


def hints(keys: Sequence[Hint], verbs: Sequence[Verb], width: int) -> Line:
    """As many as fit, and always the key that tells all of them."""
    keys = [hint for hint in keys if verbs or hint != MARKING]
    left = width - _width(ALL_KEYS)
    cells: list[Cell] = []
    for hint in _hints(keys, verbs):
        left -= _width(hint)
        if left < 0:
            break
        cells += _told(hint)
    return Line((*cells, *_told(ALL_KEYS))) if width >= _width(ALL_KEYS) else Line(())


def _hints(keys: Sequence[Hint], verbs: Sequence[Verb]) -> Iterator[Hint]:
    yield from ((verb.key, verb.label.lower()) for verb in verbs)
    yield from keys


def _told(hint: Hint) -> tuple[Cell, Cell]:
    key, what = hint
    return plain(key, Tone.STRONG), plain(f" {what}  ")


def _width(hint: Hint) -> int:
    return sum(cell_len(cell.text) for cell in _told(hint))
