"""Which keys there are at a place."""

from collections.abc import Sequence

from console.acts import Verb
from console.commands import PLACES, WHOM

Keys = Sequence[tuple[str, Sequence[tuple[str, str]]]]

MOVING = (
    ("↑ ↓ k j", "up and down"), ("pgup pgdn", "a page"), ("g G", "first and last"), ("enter", "open"),
    ("esc", "back; takes a filter or marks away first"), (":", "a command; tab completes"), ("?", "this"),
    ("q", "leave the console"),
)  # fmt: skip
TABLE = (
    ("/", "filter; words must all be there, !word must not"), ("f", "faults only"), ("space", "mark"),
    ("< >", "sort by another column"), ("!", "turn the order"), ("d", "hide or show the pane below"),
    ("tab", "into the pane and back"),
)  # fmt: skip
OF_PLACE = {
    "events": (("space", "hold still, and go on"),),
    "models": (("p", "where it is placed, and why not elsewhere"),),
    "replicas": (("p", "where it is placed, and why not elsewhere"),),
    "gpu": (("p", "where it is placed, and why not elsewhere"),),
    "replica": (("p", "where it is placed, and why not elsewhere"),),
    "requests": (("r", "recent slow and failed ones instead of running ones"),),
    "recent": (("r", "running ones instead of recent ones"),),
    "placement": (("w", "what if: gpus=2, gpu_memory=40GiB, …"),),
}


def keys(kind: str, tabled: bool, verbs: Sequence[Verb]) -> Keys:
    found: list[tuple[str, Sequence[tuple[str, str]]]] = []
    if verbs:
        found.append(("Acts, each after a yes", [(verb.key, f"{verb.label.lower()}: {verb.means}") for verb in verbs]))
    if kind in OF_PLACE:
        found.append((f"Here ({kind})", OF_PLACE[kind]))
    if tabled:
        found.append(("Tables", TABLE))
    found.append(("Everywhere", MOVING))
    commands = [*PLACES, *(WHOM if verbs else ())]
    found.append(("Commands", [(f":{name}", "") for name in commands]))
    return found
