"""Looking inside a running process: its Trio tasks, and where its time goes. Names and lines, never values."""

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import Any

import trio
from quart import Response, request
from quart_trio import QuartTrio

from llmgw.admin.gatekeeping import Gatekeeper, Problem
from llmgw.admin.services import AppSettings
from llmgw.core.identity import Role

_INTERVAL_S = 0.005
_DEPTH_MAX = 60
_TASKS_MAX = 20_000


def add_routes(app: QuartTrio, keeper: Gatekeeper, settings: AppSettings) -> None:
    one_at_a_time = trio.Lock()

    @app.get("/debug/tasks")
    @keeper.needs(Role.ADMIN)
    async def tasks() -> Any:
        return Response("\n".join(task_tree()) + "\n", content_type="text/plain; charset=utf-8")

    @app.get("/debug/profile")
    @keeper.needs(Role.ADMIN)
    async def profile() -> Any:
        seconds = _seconds(request.args.get("seconds", "5"), settings.profile_seconds_max)
        if one_at_a_time.locked():
            raise Problem(409, "busy", "a profile is being taken", "wait for it to end")
        async with one_at_a_time:
            stacks = await sample(threading.get_ident(), seconds)
        lines = [f"{stack} {count}" for stack, count in stacks.most_common()]
        return Response("\n".join(lines) + "\n", content_type="text/plain; charset=utf-8")


def _seconds(text: str, most: float) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= most:
        raise Problem(400, "query", f"seconds must be above 0 and at most {most:g}")
    return seconds


def task_tree() -> Iterator[str]:
    """Every task by nursery, with its deadlines: at most 20,000 lines."""
    root = trio.lowlevel.current_root_task()
    lines = _task_lines(root, 0) if root is not None else iter(())
    for number, line in enumerate(lines):
        if number >= _TASKS_MAX:
            yield "… more"
            return
        yield line


def _task_lines(task: trio.lowlevel.Task, depth: int) -> Iterator[str]:
    yield f"{'  ' * depth}{task.name}  {_where(task)}"
    for nursery in task.child_nurseries:
        scope = nursery.cancel_scope
        left = scope.deadline - trio.current_time()
        deadline = f"  deadline in {left:.1f} s" if left < 1e9 else ""
        state = "  cancelled" if scope.cancel_called else ""
        yield f"{'  ' * (depth + 1)}nursery of {len(nursery.child_tasks)}{deadline}{state}"
        for child in sorted(nursery.child_tasks, key=lambda one: one.name):
            yield from _task_lines(child, depth + 2)


def _where(task: trio.lowlevel.Task) -> str:
    """The innermost line of ours that the task is at."""
    at = ""
    for frame, line in task.iter_await_frames():
        name = frame.f_code.co_filename
        if "/trio/" not in name:
            at = f"{name.rsplit('/', 1)[-1]}:{line} {frame.f_code.co_name}"
    return at


async def sample(thread: int, seconds: float) -> Counter[str]:
    """Collapsed stacks of one thread, looked at every 5 ms from another."""
    stacks: Counter[str] = Counter()
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(_INTERVAL_S):
            frame = sys._current_frames().get(thread)
            if frame is not None:
                stacks[_collapsed(frame)] += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, look)
        try:
            await trio.sleep(seconds)
        finally:
            stop.set()
    return stacks


def _collapsed(frame: FrameType | None) -> str:
    names: list[str] = []
    while frame is not None and len(names) < _DEPTH_MAX:
        code = frame.f_code
        names.append(f"{code.co_filename.rsplit('/', 1)[-1]}:{code.co_name}:{frame.f_lineno}")
        frame = frame.f_back
    return ";".join(reversed(names))
