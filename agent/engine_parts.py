"""What an engine's life uses of its node."""

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Protocol

import trio
from attrs import define, field

from agent import proc
from agent.cgroups import Leaf
from agent.groups import Group, MarkedGroup
from agent.places import Places, State
from agent.ports import Ports
from llmgw.core.agent_settings import AgentSettings


class GpuMemory(Protocol):
    """``agent.gpus.Gpus`` is one."""

    def free_mib(self, uuid: str) -> int | None:
        """Free now; None: not known."""

    def mib_of(self, instance: str) -> Mapping[str, int]:
        """Measured of one shard, by UUID."""

    def note_launch(self, instance: str, uuids: Iterable[str]) -> None:
        """Just before it starts."""

    def memory_back(self, instance: str, pids: Collection[int], uuids: Iterable[str]) -> str | None:
        """Why an ended engine's memory is not back; None: it is."""


class NoGpus:
    """Of a node of memory and cores."""

    def free_mib(self, uuid: str) -> int | None:
        return None

    def mib_of(self, instance: str) -> Mapping[str, int]:
        return {}

    def note_launch(self, instance: str, uuids: Iterable[str]) -> None:
        return

    def memory_back(self, instance: str, pids: Collection[int], uuids: Iterable[str]) -> str | None:
        return None


@define
class Bell:
    """Rung when there is something new to report; ``wait`` returns once for all rings since the last time."""

    _rung: trio.Event = field(factory=trio.Event, init=False)

    def ring(self) -> None:
        self._rung.set()

    async def wait(self) -> None:
        await self._rung.wait()
        self._rung = trio.Event()


@define(eq=False)
class Parts:
    settings: AgentSettings
    places: Places
    ports: Ports
    gpus: GpuMemory
    leaves: Path | None  # the folder of cgroup leaves; None: groups of processes
    address: Callable[[], str]
    say: Callable[[str], None]  # one line for the log
    changed: Bell = field(factory=Bell)

    def group(self, id: str, leaf: str | None = None, state: State | None = None) -> Group:
        """``leaf``: as written down when it started, which stands though the settings are others now."""
        where = leaf if leaf is not None else str(self.leaves / id) if self.leaves else ""
        return Leaf(Path(where)) if where else MarkedGroup(id, self.places.scope, state)

    @property
    def boot_id(self) -> str:
        return proc.boot_id()
