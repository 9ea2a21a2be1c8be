"""What stands around every place: whose cluster this is and who leads, where one is, and what is not to be trusted."""

from collections.abc import Sequence

from console.acts import Verb
from console.model import Picture
from console.shown import Cell, Line, Place, Tone, clean, line, plain, spanned

Hint = tuple[str, str]  # a key, and what it does


def head(picture: Picture, read_only: bool) -> Line:
    if not picture.known:
        return line(plain("llmgw", Tone.STRONG), "  ", plain(_waiting(picture), Tone.BUSY))
    healthy = sum(bool(node["healthy"]) for node in picture.nodes.values())
    nodes = f"{healthy}/{len(picture.nodes)} nodes" if picture.nodes else "no nodes"
    who = f"{clean(picture.you.get('name', ''))} ({picture.role}{', read-only' if read_only else ''})"
    return line(plain("llmgw", Tone.STRONG), "  ", leads(picture), f"  {nodes}  {who}")


def _waiting(picture: Picture) -> str:
    return f"not reachable: {clean(picture.link.why)}" if picture.link.down_since is not None else "asking …"


def leads(picture: Picture) -> Cell:
    """Who leads, and under which term."""
    leader = picture.leader.get("leader")
    if leader is None:
        return plain("nobody leads", Tone.BAD)
    since = "" if leader["since_s"] is None else f" for {spanned(leader['since_s'])}"
    tone = Tone.GOOD if leader["state"] == "leading" else Tone.WARN
    return plain(f"{leader['who']} {leader['state']}, term {leader['term']}{since}", tone)


def banner(picture: Picture, now: float) -> Line | None:
    """What is most to be doubted of all that is shown."""
    link = picture.link
    if link.down_since is not None and picture.known:
        since = spanned(now - link.down_since)
        return line(plain(f"stale: no answer for {since}, trying again: {link.why}", Tone.BAD))
    if picture.age_s:
        return line(plain(f"nobody leads: this is what the store had {spanned(picture.age_s)} ago", Tone.BAD))
    if picture.hold:
        return line(plain(f"the leader doubts itself and stops nothing: {picture.hold}", Tone.WARN))
    return None


def crumbs(places: Sequence[Place]) -> Line:
    *before, here = places
    way = "".join(f"{clean(place)} → " for place in before)
    return line(plain(way, Tone.DIM), plain(here, Tone.STRONG))


def hints(keys: Sequence[Hint], verbs: Sequence[Verb], width: int) -> Line:
    """As many as fit; `?` has all of them."""
    cells, used = [], 0
    for key, what in (*((verb.key, verb.label.lower()) for verb in verbs), *keys, ("?", "all keys")):
        used += len(key) + len(what) + 3
        if used > width:
            break
        cells += [plain(key, Tone.STRONG), plain(f" {what}  ")]
    return Line(tuple(cells))
