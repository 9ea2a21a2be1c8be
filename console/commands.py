"""The command line: what a typed line means, and how it may go on."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from attrs import frozen

from console.acts import ENDPOINT, VERBS, Act, may_act
from console.arranged import natural
from console.model import Picture
from console.shown import Place, clean

COMPLETED_MAX = 50


@frozen
class Go:
    place: Place


@frozen
class Do:
    act: Act


@frozen
class Leave:
    """The console, or this place."""


@frozen
class NotUnderstood:
    """``why`` says what to type instead."""

    why: str


Meant = Go | Do | Leave | NotUnderstood
Names = Callable[[Picture], Iterable[str]]


def _nodes(picture: Picture) -> Iterable[str]:
    return picture.nodes


def _models(picture: Picture) -> Iterable[str]:
    return picture.models


def _replicas(picture: Picture) -> Iterable[str]:
    return picture.replicas


def _models_and_replicas(picture: Picture) -> Iterable[str]:
    return [*picture.models, *picture.replicas]


def _running(picture: Picture) -> Iterable[str]:
    return (str(one["id"]) for one in picture.running)


def _nobody(_picture: Picture) -> Iterable[str]:
    return ()


# Where one can go, with whose names may follow.
PLACES: Mapping[str, Names] = {
    "overview": _nobody, "nodes": _nobody, "node": _nodes, "models": _nobody, "replicas": _models,
    "replica": _replicas, "placement": _models_and_replicas, "queues": _models, "requests": _models_and_replicas,
    "events": _nobody, "drains": _nobody, "leader": _nobody, "help": _nobody,
}  # fmt: skip
NEEDS_SUBJECT = frozenset({"node", "replica", "placement"})
WHOM: Mapping[str, Names] = {
    "cordon": _nodes, "uncordon": _nodes, "drain": _nodes, "move": _replicas, "restart": _models_and_replicas,
    "scale": _models, "cancel": _running, "resign": _nobody,
}  # fmt: skip
FIELD_BEHIND = {"scale": "replicas", "move": "to"}  # what stands behind the one that is named
LEAVING = ("quit", "q", "q!")


def meant(line: str, picture: Picture, read_only: bool) -> Meant:
    """``:`` at its head does not matter; the beginning of a word does where it is the only one that begins so."""
    word, *said = line.strip().removeprefix(":").split() or [""]
    name = _named(word, picture, read_only)
    if name in LEAVING:
        return Leave()
    if name in PLACES:
        return _place(name, said)
    if name in VERBS:
        return _act(name, said, picture)
    if word in VERBS:
        why = "this console is read-only" if read_only else f"it is for operators, and you are {picture.role}"
        return NotUnderstood(f"{word}: {why}")
    return NotUnderstood(f"{clean(word, 40)!r} is no command; tab goes through them, ? tells of all")


def _named(word: str, picture: Picture, read_only: bool) -> str:
    words = [*_words(picture, read_only), *LEAVING]
    # A whole word is never the beginning of another one: `drain` of a viewer does not lead to the drains.
    begins = [one for one in words if one.startswith(word)] if word and word not in VERBS else []
    return word if word in words else begins[0] if len(begins) == 1 else ""


def _words(picture: Picture, read_only: bool) -> list[str]:
    return [*PLACES, *(WHOM if may_act(picture.role, read_only) else ())]


def _place(name: str, said: Sequence[str]) -> Meant:
    if name in NEEDS_SUBJECT and not said:
        return NotUnderstood(f"whose? write :{name} NAME")
    return Go(Place(name, " ".join(said)))


def _act(name: str, said: Sequence[str], picture: Picture) -> Meant:
    verb = VERBS[name]
    if name == "resign":
        return Do(Act(verb, ("",)))
    if not said:
        return NotUnderstood(f"whom? write :{name} NAME")
    whom, more = (said[:1], said[1:]) if name in FIELD_BEHIND else (said, ())
    unknown = next((one for one in whom if not _is_there(name, one, picture)), None)
    if unknown is not None:
        return NotUnderstood(
            f"nothing that could be meant is called {clean(unknown, 40)!r}; the reason is asked for later"
        )
    if not verb.many and len(whom) + len(more) > 2:
        return NotUnderstood(f":{name} is of one at a time")
    return Do(Act(verb, tuple(dict.fromkeys(whom)), {FIELD_BEHIND[name]: " ".join(more)} if more else {}))


def _is_there(name: str, subject: str, picture: Picture) -> bool:
    """As far as it is known: requests come and go, and static endpoints are named by whoever drains them."""
    if not picture.known or name == "cancel" or subject.startswith(ENDPOINT):
        return True
    return subject in WHOM[name](picture)


def completions(line: str, picture: Picture, read_only: bool) -> list[str]:
    """Whole lines that begin like this one, as people count; the first words before whose names are known."""
    words = line.removeprefix(":").split(" ")
    if len(words) == 1:
        found: Iterable[str] = [one for one in _words(picture, read_only) if one.startswith(words[0])]
        return list(found)[:COMPLETED_MAX]
    *before, begun = words
    names = {**PLACES, **WHOM}.get(before[0], _nobody)(picture)
    fitting = sorted((name for name in names if name.startswith(begun) and name not in before[1:]), key=natural)
    return [" ".join([*before, name]) for name in fitting[:COMPLETED_MAX]]
