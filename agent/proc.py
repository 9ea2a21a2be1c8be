"""What the kernel says of processes: who they are, whose children, which marks they carry."""

import os
import signal
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from attrs import define, field, frozen

INSTANCE, AGENT, SHIM = "LLMGW_INSTANCE", "LLMGW_AGENT", "LLMGW_SHIM"
SIM_BOOT = "LLMGW_SIM_BOOT"  # the boot of a simulated machine; the shim knows it too
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_ENVIRON_MAX = 1024 * 1024


@frozen
class Process:
    """``start`` and ``ticks``: in clock ticks; ``start`` since the boot."""

    pid: int
    state: str
    ppid: int
    sid: int
    ticks: int
    start: int
    rss_bytes: int

    @property
    def lives(self) -> bool:
        return self.state not in "ZXx"


def process(pid: int) -> Process | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    part = text.rpartition(b")")[2].split()  # the name before it may hold anything
    return Process(
        pid,
        state=part[0].decode(),
        ppid=int(part[1]),
        sid=int(part[3]),
        ticks=int(part[11]) + int(part[12]),
        start=int(part[19]),
        rss_bytes=int(part[21]) * PAGE_BYTES,
    )


def pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def environ(pid: int) -> Mapping[str, str]:
    """As it was at exec; empty where we may not look."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            text = file.read(_ENVIRON_MAX)
    except OSError:
        return {}
    pairs = (item.partition(b"=") for item in text.split(b"\0") if item)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


@cache
def boot_id() -> str:
    if os.environ.get(SIM_BOOT):
        return os.environ[SIM_BOOT]
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def pidfd_of(pid: int, start: int) -> int | None:
    """A handle on exactly this process, or None when it is gone. The time is read after opening: no race is left."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return None
    found = process(pid)
    if found is None or found.start != start:
        os.close(fd)
        return None
    return fd


def send(fd: int, number: int) -> None:
    """To whom a pidfd stands for; nothing when it has ended."""
    try:
        signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return


def kill(found: Process) -> None:
    """SIGKILL to this process and no other that may have its number by now."""
    fd = pidfd_of(found.pid, found.start)
    if fd is None:
        return
    try:
        send(fd, signal.SIGKILL)
    finally:
        os.close(fd)


@define
class Table:
    """All processes at one moment; environments are read when asked for."""

    processes: Mapping[int, Process]
    _marks: dict[int, tuple[str, str, str]] = field(factory=dict, init=False)

    @classmethod
    def read(cls) -> "Table":
        found = (process(pid) for pid in pids())
        return cls({p.pid: p for p in found if p is not None and p.lives})

    def below(self, pid: int) -> Iterator[Process]:
        """Its descendants."""
        children: dict[int, list[Process]] = {}
        for one in self.processes.values():
            children.setdefault(one.ppid, []).append(one)
        waiting = list(children.get(pid, ()))
        while waiting:
            one = waiting.pop()
            yield one
            waiting += children.get(one.pid, ())

    def of_instance(self, scope: str) -> Iterator[tuple[Process, str]]:
        """Those that carry an instance's mark of this agent."""
        for one in self.processes.values():
            agent, instance, _ = self._mark(one.pid)
            if agent == scope and instance:
                yield one, instance

    def shim_of(self, scope: str, instance: str) -> Process | None:
        for one in self.processes.values():
            agent, _, shim = self._mark(one.pid)
            if agent == scope and shim == instance:
                return one
        return None

    def _mark(self, pid: int) -> tuple[str, str, str]:
        if pid not in self._marks:
            env = environ(pid)
            self._marks[pid] = (env.get(AGENT, ""), env.get(INSTANCE, ""), env.get(SHIM, ""))
        return self._marks[pid]
