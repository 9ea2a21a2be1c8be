"""What an operator can do from the console: to whom, what is asked first, and what is then sent. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from attrs import field, frozen

from console.shown import clean, counted

Values = Mapping[str, str]  # of a dialog's fields, as they were typed
ENDPOINT = "endpoint/"
WHY_MAX = 500
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)?")
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, None: 1}
_MAY = frozenset({"operator", "admin"})


class Wrong(ValueError):
    """A field that can't be sent as it is; its text says which and how it should look."""


@frozen
class Call:
    """One question to the management API."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None
    params: Mapping[str, Any] | None = None


@frozen
class Field:
    """``choices``: one of these, the first unless said; ``hint`` stands in an empty one."""

    name: str
    label: str
    hint: str = ""
    choices: tuple[tuple[str, str], ...] = ()  # value, what it means


@frozen
class Verb:
    """``of``: the kinds of things it can be done to. ``dry``: what it would do, asked before anybody says yes."""

    name: str
    key: str
    label: str
    of: frozenset[str]
    means: str
    call: Callable[[str, Values], Call]
    fields: tuple[Field, ...] = ()
    dry: Callable[[str, Values], Call] | None = None
    look: Call | None = None  # a reading that tells how things stand before
    many: bool = True


@frozen
class Act:
    """A verb and whom it is done to, before anybody has said yes."""

    verb: Verb
    subjects: tuple[str, ...]
    values: Values = field(factory=dict)  # what the fields hold at first

    @property
    def title(self) -> str:
        return f"{self.verb.label} {', '.join(map(clean, self.subjects))}".strip()

    @property
    def yes(self) -> str:
        whom = clean(self.subjects[0], 40) if len(self.subjects) == 1 else counted(len(self.subjects), "subject")
        return f"Yes, {self.verb.label.lower()} {whom}".strip()

    def calls(self, values: Values) -> tuple[Call, ...]:
        """Raises Wrong."""
        return tuple(self.verb.call(subject, values) for subject in self.subjects)

    def dry_runs(self, values: Values) -> tuple[Call, ...]:
        """Raises Wrong; none where nothing has to be tried."""
        return tuple(self.verb.dry(subject, values) for subject in self.subjects) if self.verb.dry else ()


def may_act(role: str, read_only: bool) -> bool:
    return role in _MAY and not read_only


def offered(names: Sequence[str], role: str, read_only: bool) -> tuple[Verb, ...]:
    """The verbs of a place, for this operator."""
    return tuple(VERBS[name] for name in names) if may_act(role, read_only) else ()


# -- what is sent ------------------------------------------------------------------------------------------


def _target_path(subject: str) -> str:
    kind = "endpoints" if subject.startswith(ENDPOINT) else "nodes"
    return f"/{kind}/{quote(subject.removeprefix(ENDPOINT), safe='')}/target"


def _aim(target: str) -> Callable[[str, Values], Call]:
    return lambda subject, values: Call("PUT", _target_path(subject), {"target": target, "reason": _why(values)})


def _drain(subject: str, values: Values, dry_run: bool = False) -> Call:
    asked: dict[str, Any] = {"target": "drained", "reason": _why(values)}
    if grace := values.get("grace", "").strip():
        asked["grace"] = span_s(grace)
    if at_deadline := values.get("at_deadline", ""):
        asked["at_deadline"] = at_deadline
    return Call("PUT", _target_path(subject), asked | ({"dry_run": True} if dry_run else {}))


def _move(subject: str, values: Values, dry_run: bool = False) -> Call:
    asked: dict[str, Any] = {"to": values.get("to", "").replace(",", " ").split(), "reason": _why(values)}
    return Call("POST", f"/replicas/{quote(subject, safe='')}/move", asked | ({"dry_run": True} if dry_run else {}))


def _scale(subject: str, values: Values) -> Call:
    said = values.get("replicas", "").strip()
    if said and not (said.isascii() and said.isdigit()):
        raise Wrong(f"replicas is {clean(said, 20)!r}; write a whole number, or nothing for what the config says")
    asked = {"replicas": int(said) if said else None, "why": _why(values)}
    return Call("PUT", f"/models/{quote(subject, safe='')}/scale", asked)


def span_s(text: str) -> float:
    """Seconds of "90s", "10min", "2h". Raises Wrong."""
    found = _SPAN.fullmatch(text.strip().lower())
    if found is None:
        raise Wrong(f"grace is {clean(text, 20)!r}; write it like 90s, 10min or 2h")
    return float(found[1]) * _UNITS[found[2]]


def _why(values: Values) -> str:
    why = values.get("why", "").strip()
    if len(why) > WHY_MAX:
        raise Wrong(f"the reason has {len(why)} characters, and may have {WHY_MAX}")
    return why


WHY = Field("why", "Reason", "others read it, and the audit keeps it")
GRACE = Field("grace", "Grace", "90s, 10min, 2h; nothing: drain.grace")
AT_DEADLINE = Field(
    "at_deadline",
    "At the deadline",
    choices=(
        ("", "as its drain under way says; else stop"),
        ("stop", "stop what is left"),
        ("keep", "keep what is left"),
    ),
)
TARGETS = frozenset({"node", "endpoint"})


def _restart(subject: str, values: Values) -> Call:
    return Call("POST", f"/restart/{quote(subject, safe='/')}", {"why": _why(values)})


def _cancel(subject: str, values: Values) -> Call:
    return Call("DELETE", f"/requests/{quote(subject, safe='')}", params={"why": _why(values)})


def _resign(_subject: str, values: Values) -> Call:
    return Call("POST", "/leader/resign", {"why": _why(values)})


VERBS = {
    verb.name: verb
    for verb in (
        Verb("cordon", "c", "Cordon", TARGETS, "Nothing new is placed there. What runs goes on.",
             _aim("cordoned"), (WHY,)),
        Verb("uncordon", "u", "Uncordon", TARGETS, "It may be used again; a drain under way ends.",
             _aim("schedulable"), (WHY,)),
        Verb("drain", "D", "Drain", TARGETS, "What runs there serves elsewhere first; then it is empty.",
             _drain, (WHY, GRACE, AT_DEADLINE), lambda subject, values: _drain(subject, values, True),
             Call("GET", "/config")),
        Verb("move", "m", "Move", frozenset({"replica"}), "A replacement serves elsewhere first; then this one ends.",
             _move, (WHY, Field("to", "To", "nodes; nothing: wherever it fits")),
             lambda subject, values: _move(subject, values, True)),
        Verb("restart", "R", "Restart", frozenset({"replica", "model"}),
             "Replaced by a new one, of a model one after the other; requests that run are finished.",
             _restart, (WHY,)),
        Verb("scale", "s", "Scale", frozenset({"model"}), "Another number of replicas than is written.",
             _scale, (Field("replicas", "Replicas", "a number; nothing: what the config says"), WHY), many=False),
        Verb("cancel", "x", "Cancel", frozenset({"request"}),
             "Its client gets an error; the engine stops working on it.", _cancel, (WHY,)),
        Verb("resign", "X", "Resign", frozenset({"leader"}),
             "The term is given back; one that stands by takes over, and no request fails.",
             _resign, (WHY,), look=Call("GET", "/leader"), many=False),
    )
}  # fmt: skip
