"""Which keys there are at a place."""

from collections.abc import Iterable, Iterator, Sequence

from console.acts import Verb
from console.commands import PLACES, WHOM
from console.views.fitting import wrapped

Key = tuple[str, str]  # as it is on the keyboard, several with spaces between; and what it does
Keys = Sequence[tuple[str, Sequence[Key]]]

SAID_WIDTH = 52  # cells beside the keys, on a small terminal
MOVING = (("↑ ↓ k j", "up and down"), ("pgup pgdn", "a page"), ("g G", "first and last"), ("enter", "open"))
IN_TREE = (
    ("↑ ↓", "up and down"), ("pgup pgdn", "a page"), ("home end", "first and last"), ("enter space", "fold, unfold"),
)  # fmt: skip
ALWAYS = (
    (":", "a command; tab completes"),
    ("?", "this"),
    ("q ctrl+c", "leave the console"),
    ("ctrl+z", "to the shell; fg comes back"),
)
FINDING = (("/", "filter; words must all be there, !word must not"), ("f", "faults only"))
ARRANGING = (("space", "mark"), ("< >", "sort by another column"), ("!", "turn the order"))
PANE = (("d", "hide or show the pane below"), ("tab", "into the pane and back"))
IN_ORDER = frozenset({"events"})  # tables that stay as they are, the newest last
PLACED = ("p", "where it is placed, and why not elsewhere")
OF_PLACE: dict[str, tuple[Key, ...]] = {
    "events": (("space p", "hold still, and go on"),),
    "models": (PLACED,),
    "replicas": (PLACED,),
    "gpu": (PLACED,),
    "replica": (PLACED,),
    "requests": (("r", "recent slow and failed ones instead of running ones"),),
    "recent": (("r", "the latest that have ended, however they did"),),
    "latest": (("r", "running ones instead of ended ones"),),
    "placement": (("w", "what if: gpus=2, gpu_memory=40GiB, …"), ("r", "ask again")),
}


def keys(kind: str, tabled: bool, verbs: Sequence[Verb], acts: bool = False) -> Keys:
    """``verbs``: what this operator can do to what is here; ``acts``: whether to anything, by a command."""
    sections = _sections(kind, tabled, verbs, acts or bool(verbs))
    return [(title, [row for one in told for row in _hung(*one)]) for title, told in sections if told]


def _hung(key: str, what: str) -> Iterator[Key]:
    """What does not fit beside its key stands below, beside nothing."""
    for at, said in enumerate(wrapped(what, SAID_WIDTH)):
        yield ("" if at else key), said


def _sections(kind: str, tabled: bool, verbs: Sequence[Verb], acts: bool) -> Iterator[tuple[str, Sequence[Key]]]:
    yield "Acts, each after a yes", [(verb.key, f"{verb.label.lower()}: {verb.means}") for verb in verbs]
    yield f"Here ({kind})", OF_PLACE.get(kind, ())
    if tabled:
        yield "Tables", (*FINDING, *(() if kind in IN_ORDER else ARRANGING), *PANE)
    back = ("esc", "back; takes a filter or marks away first" if tabled else "back")
    yield "Everywhere", (*(IN_TREE if kind == "placement" else MOVING), back, *ALWAYS)
    yield "Commands", [("go to", _commands(PLACES)), *([("act", _commands(WHOM))] if acts else [])]


def _commands(names: Iterable[str]) -> str:
    return " ".join(f":{name}" for name in names)
