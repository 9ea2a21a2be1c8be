"""The driver asked from a process of its own, which can be ended when a call hangs.

A process that hangs in the kernel does not die before its call returns: it is left behind and counted, and
beyond ``LEFT_MOST`` of them no other is started.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import trio
from attrs import define, field

from agent.inventory import NotAnswered
from agent.nvml_child import FAILED
from llmgw.core.gpu_reading import Reading
from llmgw.tasks.keep_running import doubling

LEFT_MOST = 3
_LINE_MAX = 4 * 1024**2
_CLOSE_S = 0.5
_PAUSE_S, _PAUSE_MOST_S = 1.0, 60.0
_COMMAND = (sys.executable, "-m", "agent.nvml_child")

_decode = msgspec.json.Decoder(Reading).decode


@define(eq=False)
class DriverChild:
    """An inventory over NVML. Cancelling ``read`` ends the process, and the next one starts another after a pause."""

    command: tuple[str, ...] = _COMMAND
    env: Mapping[str, str] = field(factory=dict)  # besides our own
    kill: "Callable[[subprocess.Popen[bytes]], None]" = lambda process: process.kill()
    _child: "subprocess.Popen[bytes] | None" = field(default=None, init=False)
    _left: "list[subprocess.Popen[bytes]]" = field(factory=list, init=False)
    _pauses: Iterator[float] = field(init=False)
    _not_before: float = field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        self._pauses = doubling(_PAUSE_S, _PAUSE_MOST_S)

    async def read(self) -> Reading:
        """Raises NotAnswered. Has no deadline of its own: cancel it."""
        self._reap()
        child = self._child or self._started()
        whole = False
        try:
            reading = await self._asked(child)
            whole = True
        except (OSError, msgspec.DecodeError, NotAnswered) as error:
            raise NotAnswered(f"the process that asks the driver failed: {error}") from None
        finally:
            if not whole:
                self._give_up(child)
        self._pauses = doubling(_PAUSE_S, _PAUSE_MOST_S)
        return reading

    def close(self) -> None:
        """For good. Waits a moment for those that were ended, so that none is left unreaped."""
        if self._child is not None:
            self._end(self._child)
            self._child = None
        for child in self._left:
            self.kill(child)
            with suppress(subprocess.TimeoutExpired):
                child.wait(_CLOSE_S)
        self._reap()

    @property
    def pid(self) -> int | None:
        """Of the process that is asked now."""
        return None if self._child is None else self._child.pid

    def forgive(self) -> None:
        """The next reading need not wait out the pause."""
        self._not_before = 0.0

    @property
    def left(self) -> int:
        """Processes that were ended and are not gone."""
        return len(self._left)

    def _started(self) -> "subprocess.Popen[bytes]":
        if len(self._left) >= LEFT_MOST:
            raise NotAnswered(f"{len(self._left)} processes hang in the driver, and no other is started")
        wait_s = self._not_before - trio.current_time()
        if wait_s > 0:
            raise NotAnswered(f"the driver did not answer; asked again in {wait_s:.0f} s")
        try:
            child = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                env={**os.environ, "PYTHONPATH": _path(), **self.env},
                start_new_session=True,  # a Ctrl-C at the agent is not meant for it
            )
        except OSError as error:
            self._pause()
            raise NotAnswered(f"{self.command[0]}: {error.strerror}") from None
        assert child.stdin is not None
        assert child.stdout is not None
        os.set_blocking(child.stdin.fileno(), False)
        os.set_blocking(child.stdout.fileno(), False)
        self._child = child
        return child

    async def _asked(self, child: "subprocess.Popen[bytes]") -> Reading:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"\n")  # a pipe that is empty takes a byte
        line = bytearray()
        while not line.endswith(b"\n"):
            await trio.lowlevel.wait_readable(child.stdout.fileno())
            more = os.read(child.stdout.fileno(), 65536)
            if not more:
                raise NotAnswered(f"it ended ({await _ending(child)})")
            line += more
            if len(line) > _LINE_MAX:
                raise NotAnswered(f"it said more than {_LINE_MAX} bytes")
        if line.startswith(FAILED.encode()):
            raise NotAnswered(line[1:].decode("utf-8", "replace").strip())
        return _decode(line)

    def _give_up(self, child: "subprocess.Popen[bytes]") -> None:
        self._end(child)
        self._child = None
        self._pause()

    def _end(self, child: "subprocess.Popen[bytes]") -> None:
        self.kill(child)  # does nothing to one that is gone already
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()
        self._left.append(child)

    def _pause(self) -> None:
        self._not_before = trio.current_time() + next(self._pauses)

    def _reap(self) -> None:
        self._left = [child for child in self._left if child.poll() is None]


def _path() -> str:
    """So that the child finds this very code, wherever it was installed or run from."""
    ours = str(Path(__file__).parent.parent)
    return os.pathsep.join(filter(None, (ours, os.environ.get("PYTHONPATH", ""))))


async def _ending(child: "subprocess.Popen[bytes]") -> str:
    """How, once its output has ended; its death comes a moment later."""
    fd = os.pidfd_open(child.pid)
    try:
        with trio.move_on_after(_CLOSE_S):
            await trio.lowlevel.wait_readable(fd)
    finally:
        os.close(fd)
    code = child.poll()
    return "its output is closed" if code is None else f"signal {-code}" if code < 0 else f"code {code}"
