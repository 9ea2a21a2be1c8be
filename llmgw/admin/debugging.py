"""Looking inside a running process: its tasks, and where its time goes. Names and lines, never values."""

import math
import sys
import threading
from collections import Counter
from types import FrameType
from typing import Any

import trio
from quart import Response, request
from quart_trio import QuartTrio

from llmgw.admin.gatekeeping import Gatekeeper, Problem
from llmgw.admin.services import AppSettings
from llmgw.admin.tasks import task_tree
from llmgw.core.identity import Role

INTERVAL_S = 0.005
STACKS_MAX = 10_000  # different ones; a stack is a line of about 1 KiB
_DEPTH_MAX = 60
_TEXT = "text/plain; charset=utf-8"


def add_routes(app: QuartTrio, keeper: Gatekeeper, settings: AppSettings) -> None:
    one_at_a_time = trio.Lock()

    @app.get("/debug/tasks")
    @keeper.needs(Role.ADMIN)
    async def tasks() -> Any:
        return Response("\n".join([*await task_tree(), ""]), content_type=_TEXT)

    @app.get("/debug/profile")
    @keeper.needs(Role.ADMIN)
    async def profile() -> Any:
        seconds = _seconds(request.args.get("seconds", "5"), settings.profile_seconds_max)
        if one_at_a_time.locked():
            raise Problem(409, "busy", "a profile is being taken", "wait for it to end")
        async with one_at_a_time:
            stacks = await sample(threading.get_ident(), seconds)
        lines = [f"{stack} {count}" for stack, count in stacks.most_common()]
        return Response("\n".join([*lines, ""]), content_type=_TEXT)


def _seconds(text: str, most: float) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= most:
        raise Problem(400, "query", f"seconds must be above 0 and at most {most:g}")
    return seconds


async def sample(thread: int, seconds: float) -> Counter[str]:
    """Collapsed stacks of one thread, as flame graphs want them, looked at every 5 ms from another."""
    stacks: Counter[str] = Counter()
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(INTERVAL_S):
            frame = sys._current_frames().get(thread)
            if frame is None:
                continue
            stack = _collapsed(frame)
            stacks[stack if stack in stacks or len(stacks) < STACKS_MAX else "(others)"] += 1

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
