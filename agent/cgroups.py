"""The cgroup v2 folder in which each engine gets a leaf of its own, where this machine lets us have one.

Layout: ``<base>/<instance>``; the shim stays outside. A memory controller, where it can be had, also counts
what the kernel killed for want of memory.
"""

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from attrs import frozen

from agent.proc import Table, kill, process

REMOVE_WITHIN_S = 0.5


@frozen
class Leaf:
    folder: Path

    @property
    def leaf(self) -> str:
        return str(self.folder)

    def make(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):  # only so that memory.events exists; it needs a parent without processes
            (self.folder.parent / "cgroup.subtree_control").write_text("+memory", encoding="ascii")

    def pids(self, table: Table | None = None) -> tuple[int, ...]:
        found: set[int] = set()
        for folder in self._folders():
            with suppress(OSError):  # gone meanwhile: so are its processes
                found.update(map(int, (folder / "cgroup.procs").read_text(encoding="ascii").split()))
        # Zero: a process of another PID namespace, which has no number here.
        return tuple(sorted(pid for pid in found if pid))

    def kill(self) -> None:
        try:
            (self.folder / "cgroup.kill").write_text("1", encoding="ascii")
        except FileNotFoundError:
            self._kill_each()  # kernels before 5.14, or no leaf

    def _kill_each(self) -> None:
        for pid in self.pids():
            one = process(pid)
            if one is not None:
                kill(one)

    def remove(self) -> None:
        """A leaf is busy for a moment after its last process; one that stays so is found at the next start."""
        until = time.monotonic() + REMOVE_WITHIN_S
        for folder in sorted(self._folders(), reverse=True):  # children first
            while not _removed(folder) and time.monotonic() < until:
                time.sleep(0.005)
        with suppress(OSError):  # others are in it
            self.folder.parent.rmdir()

    def _folders(self) -> Iterator[Path]:
        """With those an engine made for itself."""
        for folder, _, _ in os.walk(self.folder):
            yield Path(folder)


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def base(asked: str, scope: str) -> Path | None:
    """Where this agent's leaves go, or None: groups of processes then. ``asked``: ``agent.cgroup``."""
    above = Path(asked) if asked else _own()
    if above is None or not _usable(above):
        return None
    # Two agents on one machine keep apart.
    return above / f"llmgw-{hashlib.sha256(scope.encode()).hexdigest()[:10]}"


def _own() -> Path | None:
    """The folder of the cgroup this process is in, in whichever place the unified hierarchy is mounted."""
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    inside = Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="replace")
    mine = next((line.split("::", 1)[1] for line in inside.splitlines() if line.startswith("0::")), None)
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 ") and mine is not None:
            root, point = before.split()[3:5]
            return Path(point) / mine.removeprefix(root).lstrip("/")
    return None


def _usable(folder: Path) -> bool:
    probe = folder / f"llmgw-probe-{os.getpid()}"
    try:
        probe.mkdir()
    except OSError:
        return False
    try:
        # To move a process one needs to write where it comes from, too.
        return os.access(probe / "cgroup.procs", os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK)
    finally:
        probe.rmdir()
