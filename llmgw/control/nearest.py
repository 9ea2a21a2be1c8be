"""What somebody may have meant by a name that is not there."""

import difflib
from collections.abc import Collection


def nearest(name: str, known: Collection[str]) -> str | None:
    close = difflib.get_close_matches(name.lower(), sorted({k.lower() for k in known}), n=1, cutoff=0.6)
    return next((k for k in sorted(known) if close and k.lower() == close[0]), None)


def meant(name: str, known: Collection[str], most: int = 5) -> str:
    """The hint of a refusal: the nearest name, else what there is, ``most`` of it."""
    if close := nearest(name, known):
        return f"did you mean {close!r}?"
    if not known:
        return "there are none yet"
    some = sorted(known)[:most]
    return "there are: " + ", ".join(some) + (", …" if len(known) > len(some) else "")
