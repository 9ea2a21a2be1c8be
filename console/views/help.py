"""Which keys there are at a place."""

from collections.abc import Iterable, Iterator, Sequence

from console.acts import Verb
from console.commands import PLACES, WHOM
from console.views.fitting import wrapped

Key = tuple[str, str]  # as it is on the keyboard, several with spaces between; and what it does
Keys = Sequence[tuple[str, Sequence[Key]]]

COMMANDS_WIDTH = 56  # cells, so that they stand in a column of their own
MOVING = (("↑ ↓ k j", "up and down"), ("pgup pgdn", "a page"), ("g G", "first and last"), ("enter", "open"))
IN_TREE = (
    ("↑ ↓", "up and down"), ("pgup pgdn", "a page"), ("home end", "first and last"), ("enter space", "fold, unfold"),
)  # fmt: skip
ALWAYS = ((":", "a command; tab completes"), ("?", "this"), ("q ctrl+c", "leave the console"))
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
    "recent": (("r", "running ones instead of recent ones"),),
    "placement": (("w", "what if: gpus=2, gpu_memory=40GiB, …"), ("r", "ask again")),
}


def keys(kind: str, tabled: bool, verbs: Sequence[Verb], acts: bool = False) -> Keys:
    """``verbs``: what this operator can do to what is here; ``acts``: whether to anything, by a command."""
    return [(title, told) for title, told in _sections(kind, tabled, verbs, acts or bool(verbs)) if told]


def _sections(kind: str, tabled: bool, verbs: Sequence[Verb], acts: bool) -> Iterator[tuple[str, Sequence[Key]]]:
    yield "Acts, each after a yes", [(verb.key, f"{verb.label.lower()}: {verb.means}") for verb in verbs]
    yield f"Here ({kind})", OF_PLACE.get(kind, ())
    if tabled:
        yield "Tables", (*FINDING, *(() if kind in IN_ORDER else ARRANGING), *PANE)
    back = ("esc", "back; takes a filter or marks away first" if tabled else "back")
    yield "Everywhere", (*(IN_TREE if kind == "placement" else MOVING), back, *ALWAYS)
    yield "Commands", [*_commands("go to", PLACES), *(_commands("act", WHOM) if acts else ())]


def _commands(title: str, names: Iterable[str]) -> Iterator[Key]:
    said = " ".join(f":{name}" for name in names)
    for at, told in enumerate(wrapped(said, COMMANDS_WIDTH)):
        yield ("" if at else title), told
