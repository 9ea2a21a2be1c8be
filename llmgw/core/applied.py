"""What an action makes of a replica's row. Pure: names, generations and the wall clock come in."""

import re
from collections.abc import Mapping

import attrs

from llmgw.core.actions import (
    Action,
    Again,
    Blocked,
    Create,
    Fail,
    Forget,
    Leave,
    Renew,
    Return,
    Settled,
    Start,
    Stop,
    StopFirst,
    Waits,
)
from llmgw.core.replicas import Phase, Replica

_SLUG_MAX = 48


def slug(model: str) -> str:
    """A model's name as a part of a directory's: letters, digits, dots and dashes."""
    kept = re.sub(r"[^a-z0-9.]+", "-", model.lower()).strip("-.")
    return kept[:_SLUG_MAX].strip("-.") or "model"


def created(action: Create, number: int, wall: float) -> Replica:
    return Replica(
        f"{slug(action.model)}-{number}",
        action.model,
        action.spec,
        why=action.why,
        reason=action.why,
        since=wall,
        made_at=wall,
        replaces=action.replaces,
        avoid=action.avoid,
        home=action.prefer,
        only=action.only,
        replaces_for=action.kind,
    )


def after(row: Replica, action: Action, wall: float, generation: int = 0) -> Replica | None:
    """The row as it is from now on; None: it is forgotten. ``generation``: the one that a Start begins."""
    match action:
        case Start(placed=placed, why=why):
            only = row.only if row.replaces else ()  # a move that has come about binds it no longer
            return _to(
                row, Phase.WANTED, why, wall, generation=generation, shards=placed.shards, home=placed.nodes,
                avoid=(), only=only,
            )  # fmt: skip
        case Blocked(why=why) | Waits(why=why):
            return row if row.why == why else attrs.evolve(row, why=why)
        case Fail(why=why, crashes=crashes, pause_s=pause_s, served=served, elsewhere=elsewhere):
            return _to(
                row,
                Phase.RESTARTING,
                why,
                wall,
                crashes=crashes,
                retry_at=wall + pause_s,
                last_end=why,
                restores=None if served else row.restores,
                stop_first=row.stop_first and not served,
                home=() if elsewhere else row.home,
                failed_on=row.home if elsewhere else row.failed_on,
                reason=f"it failed {why}",
            )
        case Renew(spec=spec, restart=restart, why=why, gave_up_on=gave_up_on):
            phase = Phase.RESTARTING if restart else row.phase
            return _to(
                row, phase, why, wall, spec=spec, reason=why, crashes=0, retry_at=wall, leave_why="",
                gave_up_on=gave_up_on, restores=None if gave_up_on else row.restores,
                avoid=row.move_from, only=row.move_to, move_from=(), move_to=(),
            )  # fmt: skip
        case StopFirst(restores=restores):
            return attrs.evolve(row, stop_first=True, restores=restores)
        case Again(why=why):
            return _to(row, Phase.WAITING, why, wall, shards=(), first_host="", first_ports={})
        case Settled():
            return attrs.evolve(
                row, replaces="", replaces_for="", avoid=(), only=()
            )  # what it moved away from is settled too
        case Leave(why=why):
            return _to(row, Phase.LEAVING, why, wall)
        case Return(why=why):
            return _to(row, Phase.WANTED, why, wall)
        case Stop(why=why):
            return _to(row, Phase.STOPPING, why, wall)
        case Forget():
            return None
    raise AssertionError(f"{action} makes no row of a row")


def _to(row: Replica, phase: Phase, why: str, wall: float, **changes: object) -> Replica:
    made: Replica = attrs.evolve(row, phase=phase, why=why, since=wall, **changes)  # type: ignore[arg-type]
    return made


def applied(
    rows: Mapping[str, Replica], action: Action, wall: float, number: int = 0, generation: int = 0
) -> dict[str, Replica]:
    """All rows after one action."""
    if isinstance(action, Create):
        made = created(action, number, wall)
        return {**rows, made.name: made}
    row = after(rows[action.replica], action, wall, generation)
    left = {name: kept for name, kept in rows.items() if name != action.replica}
    return left if row is None else {**left, row.name: row}
