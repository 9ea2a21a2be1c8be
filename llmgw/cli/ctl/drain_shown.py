"""How a drain looks to people: what it would do, how far it has got, what it waits on."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import click

from llmgw.cli.ctl.session import Session
from llmgw.cli.ctl.show import Column, drawn, formed, spanned
from llmgw.cli.ctl.targeting import Subject
from llmgw.cli.failure import Exit, Failure, printable
from llmgw.core.drain import Target

DRAINED = str(Target.DRAINED)
MOVES = (
    Column("REPLICA", "replica"),
    Column("MODEL", "model"),
    Column("TO", "to_shown"),
    Column("WHY", "why"),
    Column("REQUESTS", "requests"),
    Column("OLDEST", "oldest_shown", "span"),
    Column("TAKES", "takes_shown", "span"),
)
Status = Mapping[str, Any]


def is_over(status: Status) -> bool:
    """A blocked one goes on trying until its grace is over."""
    return status.get("left_s") is None


def drain_of(session: Session, subject: Subject) -> Status | None:
    """None: it is not drained, or not any more."""
    try:
        found: Status | None = session.get(f"{subject.path}/drain")["drain"]
    except Failure as failure:
        if failure.exit_code != Exit.NOT_FOUND:
            raise
        return None
    return found


def progress(subject: Subject, status: Status) -> str:
    """ "draining, 1 of 3 replicas replaced, 44 min left"."""
    return ", ".join([str(status["state"]), *_parts(subject, status)])


def _parts(subject: Subject, status: Status) -> Iterator[str]:
    if not subject.is_endpoint:
        replaced = status["replaced"]
        number = len({*status["planned"], *replaced, *status["left"]})
        yield f"{len(replaced)} of {counted(number, 'replica')} replaced"
    if status["cut"]:
        # What had not begun to answer at a node is tried elsewhere.
        yield f"{'' if subject.is_endpoint else 'at most '}{counted(status['cut'], 'request')} cut"
    if not is_over(status):
        yield time_left(status)


def time_left(status: Status) -> str:
    left_s = status["left_s"]
    return f"{spanned(left_s)} left" if left_s > 0 else "its grace is over"


def waits(status: Status) -> str:
    return "; ".join(map(str, status["waits_on"]))


def shown_with(node: Mapping[str, Any], status: Status | None) -> str:
    """A node's target, and how far its drain has got."""
    target = node["target"]
    if status is not None:
        return progress(Subject(str(node["name"])), status)
    since = f" {formed(time.time() - target['at'], 'age')}" if target["by"] else ""
    return f"{target['target']}{since}" if target["target"] != Target.SCHEDULABLE else str(target["target"])


def asked(target: Mapping[str, Any]) -> str:
    """ "cordoned by ann: new fans"."""
    by = f" by {target['by']}" if target["by"] else ""
    return f"{target['target']}{by}" + (f": {target['why']}" if target["why"] else "")


def blocked_in(plan: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What can go nowhere."""
    return [move for move in plan["moves"] if move["blocked"]]


def print_begun(subject: Subject, answer: Mapping[str, Any]) -> None:
    """What was asked for, and where each replica will go."""
    status = answer["drain"]
    if is_over(status):
        click.echo(printable(str(status["said"] or answer["said"])))
        return
    click.echo(printable(str(answer["said"])))
    for sentence in status["waits_on"] if subject.is_endpoint else map(_goes, answer["plan"]["moves"]):
        click.echo(printable(f"  {sentence}"))
    stops = status["at_deadline"] == "stop"
    if subject.is_endpoint:
        then = f"requests that are there then are {'cut' if stops else 'kept'}"
    else:
        then = f"what could not go elsewhere by then is {'stopped' if stops else 'kept'}"
    click.echo(f"{time_left(status)}; {then}")


def _goes(move: Mapping[str, Any]) -> str:
    if move["to"]:
        return f"{move['replica']} goes to {', '.join(move['to'])}"
    return f"{move['replica']} {'can go nowhere now' if move['blocked'] else 'stays until it has ended'}: {move['why']}"


def print_plan(subject: Subject, plan: Mapping[str, Any]) -> None:
    moves = plan["moves"]
    if not moves:
        click.echo(printable(f"no replica is on {subject.name}"))
        return
    click.echo(drawn([_move(move) for move in moves], MOVES))


def _move(move: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **move,
        "to_shown": move["to"] or ("nowhere" if move["blocked"] else ""),
        "oldest_shown": move["oldest_s"] if move["requests"] else None,
        "takes_shown": move["takes_s"] or None,
    }


def counted(number: int, what: str) -> str:
    if number == 1:
        return f"1 {what}"
    return f"{number} {what}{'es' if what.endswith('s') else 's'}"
