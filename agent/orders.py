"""What follows from the whole set of what is wanted, given what is there. Pure.

An instance is started once in its life: an id that is there, in whatever state, is never started again.
"""

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence

import attrs
from attrs import frozen

from llmgw.core.shards import ENDED, Launch, ShardState

SAFE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@frozen
class Have:
    """``fingerprint``: of the launch it was started with, if that is known."""

    state: ShardState
    fingerprint: str = ""
    stopping: bool = False  # it was asked to, whatever it does now
    record_lost: bool = False  # of what it was started with, but for the fingerprint


@frozen
class Prepare:
    launch: Launch


@frozen
class Stop:
    id: str


@frozen
class Forget:
    """Its end was reported and nobody wants it: its folder goes."""

    id: str


@frozen
class Recall:
    """It runs, its record is lost, and here is what it was started with."""

    launch: Launch


@frozen
class Refuse:
    id: str
    why: str


Act = Prepare | Stop | Forget | Recall | Refuse


def orders(
    wanted: Sequence[Launch],
    have: Mapping[str, Have],
    reported: Collection[str] = (),
    strangers: Mapping[str, str] | None = None,
) -> tuple[Act, ...]:
    """In the order in which they may be done: ends first. ``reported``: ids whose end the leader was told of.
    ``strangers``: id -> what runs under it here without a record."""
    asked: dict[str, list[Launch]] = {}
    for launch in wanted:
        asked.setdefault(launch.id, []).append(launch)
    ends = [act for id in sorted(have.keys() - asked.keys()) if (act := _end(id, have[id], reported))]
    starts = [act for id, launches in asked.items() if (act := _begin(launches, have.get(id), strangers or {}))]
    return (*ends, *starts)


def _end(id: str, have: Have, reported: Collection[str]) -> Act | None:
    if have.state in ENDED:
        return Forget(id) if id in reported else None
    if have.state is ShardState.UNKNOWN:
        return None  # not looked at yet; its turn comes
    return None if have.stopping else Stop(id)


def _begin(launches: Sequence[Launch], have: Have | None, strangers: Mapping[str, str]) -> Act | None:
    launch = launches[0]
    prints = {fingerprint(one) for one in launches}
    if len(prints) > 1:
        return Refuse(launch.id, f"it is wanted {len(launches)} times, each time differently")
    if have is not None:
        return _compare(launch, have)
    if why := unfit(launch):
        return Refuse(launch.id, why)
    if launch.id in strangers:
        return Refuse(launch.id, strangers[launch.id])
    return Prepare(launch)


def _compare(launch: Launch, have: Have) -> Act | None:
    if have.state is ShardState.UNKNOWN:
        return None
    if have.fingerprint and fingerprint(launch) != have.fingerprint:
        return Refuse(launch.id, "it was started with other settings; these need an id of their own")
    return Recall(launch) if have.record_lost else None


def unfit(launch: Launch) -> str:
    """Why this can't be started anywhere; empty when it can."""
    if not SAFE_ID.fullmatch(launch.id):
        return "its id is no name for a folder"
    if not launch.argv:
        return "it has no command"
    if len(set(launch.ports)) != len(launch.ports):
        return "two of its ports have one name"
    if launch.key and not launch.key_env:
        return "it has a key and no variable to give it in"
    return ""


def fingerprint(launch: Launch) -> str:
    """Of what it says. Fields at their default are left out, so that a field added later changes nothing."""
    plain = Launch(launch.id, launch.argv)
    said = attrs.asdict(launch, filter=lambda f, value: f.name == "argv" or value != getattr(plain, f.name, _ABSENT))
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=dict).encode()).hexdigest()


_ABSENT = object()
