"""What the process is waiting for: Trio's tasks by nursery, each with where it stands and what may end it.

Names, files and lines only, never a value.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import trio
from trio.lowlevel import Task

LINES_MAX = 20_000
_A_BATCH = 100
_TRIO = str(Path(trio.__file__).parent)
_NEVER_S = 1e9

Told = Task | trio.Nursery


async def task_tree() -> list[str]:
    """The tree as lines; siblings that look the same are one line with their number.

    The tree is taken in one go and described in batches, so a task may have ended before its turn.
    """
    lines: list[str] = []
    for number, (depth, told) in enumerate(_tree(LINES_MAX)):
        said = _task(told) if isinstance(told, Task) else _nursery(told)
        lines.append("  " * depth + said)
        if number % _A_BATCH == 0:
            await trio.lowlevel.checkpoint()
    if len(lines) == LINES_MAX:
        lines.append("… and more")
    return [line if count == 1 else f"{line}  ({count} alike)" for line, count in map(_counted, groupby(lines))]


def _counted(group: tuple[str, Iterator[str]]) -> tuple[str, int]:
    return group[0], sum(1 for _ in group[1])


def _tree(most: int) -> list[tuple[int, Told]]:
    root = trio.lowlevel.current_root_task()
    found: list[tuple[int, Told]] = []
    rest: list[tuple[int, Told]] = [] if root is None else [(0, root)]
    while rest and len(found) < most:
        depth, told = rest.pop()
        found.append((depth, told))
        rest.extend((depth + 1, one) for one in reversed(_below(told)))
    return found


def _below(told: Told) -> Sequence[Told]:
    if isinstance(told, Task):
        return told.child_nurseries
    return sorted(told.child_tasks, key=lambda task: task.name)


def _task(task: Task) -> str:
    scopes = ", ".join(filter(None, map(_scope, _scopes(task))))
    return f"{task.name}  {_where(task)}" + (f"  [{scopes}]" if scopes else "")


def _nursery(nursery: trio.Nursery) -> str:
    scope = _scope(nursery.cancel_scope)
    return f"nursery of {len(nursery.child_tasks)}" + (f"  [{scope}]" if scope else "")


def _scopes(task: Task) -> Iterator[trio.CancelScope]:
    """The cancel scopes the task itself has opened and stands in, innermost first.

    Trio shows a nursery's scope, but not these; a test notices when its names for them change.
    """
    nursery = task.parent_nursery
    above = nursery._cancel_status if nursery is not None else None
    own = {id(one.cancel_scope) for one in task.child_nurseries}
    status: Any = task._cancel_status
    while status is not None and status is not above:
        if id(status._scope) not in own:
            yield status._scope
        status = status._parent


def _scope(scope: trio.CancelScope) -> str:
    """What is out of the ordinary about it: nothing for one without deadline, shield and cancel."""
    said = []
    if scope.cancel_called:
        reason = scope._cancel_reason
        said.append(f"cancelled: {reason.reason or reason.source}" if reason else "cancelled")
    elif (left := scope.deadline - trio.current_time()) < _NEVER_S:
        said.append(f"deadline in {left:.1f} s")
    if scope.shield:
        said.append("shielded")
    return " ".join(said)


def _where(task: Task) -> str:
    """The innermost line outside Trio that the task is at."""
    at = "ended"
    for frame, line in task.iter_await_frames():
        code = frame.f_code
        if at == "ended" or not code.co_filename.startswith(_TRIO):
            at = f"{Path(code.co_filename).name}:{line} {code.co_name}"
    return at
