"""Looking inside a running process: its tasks, and where its time goes. Names and lines, never values."""

import math
import signal
import threading
from collections import Counter
from contextlib import suppress
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
        if threading.current_thread() is not threading.main_thread():
            raise Problem(501, "thread", "a profile can be taken where llmgw runs in the main thread only")
        async with one_at_a_time:
            stacks = await sample(seconds)
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


async def sample(seconds: float) -> Counter[str]:
    """Collapsed stacks of this thread, as flame graphs want them, looked at every 5 ms.

    By a timer's signal, whose handler runs between two steps of the very thread. Another thread can't be the
    observer: a loop that lets go of the GIL for a microsecond at each system call starves it just when it is busy
    (measured: no sample in a whole second). Raises ValueError off the main thread.
    """
    stacks: Counter[str] = Counter()

    def look(_number: int, frame: FrameType | None) -> None:
        with suppress(Exception):  # it would come out of whatever line the loop is at
            stack = _collapsed(frame)
            stacks[stack if stack in stacks or len(stacks) < STACKS_MAX else "(others)"] += 1

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, INTERVAL_S, INTERVAL_S)
    try:
        await trio.sleep(seconds)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)  # a late one would end the process by default
    return stacks


def _collapsed(frame: FrameType | None) -> str:
    names: list[str] = []
    while frame is not None and len(names) < _DEPTH_MAX:
        code = frame.f_code
        names.append(f"{code.co_filename.rsplit('/', 1)[-1]}:{code.co_name}:{frame.f_lineno}")
        frame = frame.f_back
    return ";".join(reversed(names))
