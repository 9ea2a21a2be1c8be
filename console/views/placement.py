"""Where a replica would go and why not elsewhere, as a tree: nodes, their GPUs below them, and every failed check."""

import re
from collections.abc import Iterator, Sequence

from attrs import frozen
from rich.cells import cell_len

from console.shown import Cell, Line, Place, Tone, bar, line, plain
from console.views.explained import CHOSEN, NOT_CHOSEN, fact, scored
from console.views.fitting import fitted
from console.views.read import Json, flag, rows, text, words

DRAWN = 10  # cells of a bar
SUM = "total"  # of the scores, each weighed
FREE = re.compile(r"^needs ([\d.]+) GiB(?: of host memory)?, free (-?[\d.]+)")
GPUS = re.compile(r"^needs (\d+) GPUs?, (\d+) of \d+ would do")
UUID = re.compile(r", ([^,()\s]+)\)$")


@frozen
class Branch:
    line: Line
    branches: tuple["Branch", ...] = ()


def tree(said: Json) -> tuple[Branch, ...]:
    """``said``: of ``GET /explain/placement/…``. The decision first, then each node, then what would change it."""
    head = line(plain(text(said, "subject", "?"), Tone.STRONG), ": ", text(said, "verdict", "no verdict"))
    because = tuple(Branch(line(plain(fact(one), Tone.DIM))) for one in rows(said, "because"))
    changes = tuple(Branch(line(one)) for one in words(said, "would_change_it"))
    found = [Branch(head, because), *_nodes(rows(said, "candidates"))]
    if changes:
        found.append(Branch(line(plain("what would change it", Tone.STRONG)), changes))
    return tuple(found)


def lines_of(branches: Sequence[Branch], width: int) -> tuple[Line, ...]:
    """The tree, drawn open."""
    return tuple(fitted(one, width) for branch in branches for one in _drawn(branch, "", ""))


def _drawn(branch: Branch, first: str, then: str) -> Iterator[Line]:
    yield Line((Cell(first, Tone.DIM), *branch.line.cells) if first else branch.line.cells, branch.line.leads_to)
    for at, below in enumerate(branch.branches):
        last = at == len(branch.branches) - 1
        yield from _drawn(below, then + ("└─ " if last else "├─ "), then + ("   " if last else "│  "))


# -- candidates -------------------------------------------------------------------------------------------


def _nodes(candidates: Sequence[Json]) -> Iterator[Branch]:
    """A node's GPUs follow it, and their names begin with its own."""
    at = 0
    while at < len(candidates):
        node, name, cards = candidates[at], text(candidates[at], "name"), list[Json]()
        at += 1
        while name and at < len(candidates) and text(candidates[at], "name").startswith(f"{name} "):
            cards.append(candidates[at])
            at += 1
        below = [Branch(_score(score, value)) for score, value in scored(node)]
        gpus = [_gpu(name, one) for one in cards]
        yield Branch(_head(node, name or "?", Place("node", name) if name else None), (*_checks(node), *below, *gpus))


def _gpu(node: str, one: Json) -> Branch:
    name = text(one, "name")
    uuid = UUID.search(name)
    place = Place("gpu", f"{node}/{uuid[1]}") if uuid else None
    return Branch(_head(one, name.removeprefix(f"{node} "), place), tuple(_checks(one)))


def _head(one: Json, name: str, place: Place | None) -> Line:
    chosen = flag(one, "chosen")
    return line(CHOSEN if chosen else NOT_CHOSEN, plain(name, Tone.STRONG if chosen else Tone.PLAIN), leads_to=place)


def _checks(one: Json) -> Iterator[Branch]:
    """Each failed one, with how much there is of what is needed where that is a number."""
    for reason in words(one, "reasons"):
        have = share_of_need(reason)
        tone = Tone.DIM if flag(one, "chosen") or reason.startswith("would do") else Tone.WARN
        shown = () if have is None else (Cell(bar(have, DRAWN), tone), Cell(" "))
        yield Branch(line(*shown, plain(reason, tone)))


def share_of_need(reason: str) -> float | None:
    """What there is, as a share of what is needed; None: it is no matter of how much."""
    found = FREE.match(reason) or GPUS.match(reason)
    if found is None:
        return None
    need, have = float(found[1]), float(found[2])
    return max(0.0, have / need) if need else None


def _score(score: str, value: float) -> Line:
    """Each is of 1; their sum is weighed."""
    drawn = " " * DRAWN if score == SUM else bar(value, DRAWN)
    pad = " " * max(0, 6 - cell_len(score))
    return line(plain(score + pad, Tone.DIM), " ", Cell(drawn, Tone.GOOD), f" {value:.2f}")
