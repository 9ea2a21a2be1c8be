"""Which processes belong to one instance, however they were started, and how all of them end.

With cgroup v2 a leaf per instance answers both. Without: everything below the shim, which is a subreaper; once the
shim is dead, the engine's session; and whatever carries the instance's mark in its environment.
"""

from collections.abc import Iterator
from typing import Protocol

from attrs import frozen

from agent.places import State
from agent.proc import Process, Table, kill


class Group(Protocol):
    @property
    def leaf(self) -> str:
        """The cgroup's folder, or empty."""

    def make(self) -> None:
        """Raises OSError."""

    def pids(self, table: Table | None = None) -> tuple[int, ...]:
        """Who lives; ``table`` spares a scan where one was just made."""

    def kill(self) -> None:
        """SIGKILL to all at once; call it again until nobody is left."""

    def remove(self) -> None:
        """When it is empty."""


@frozen
class MarkedGroup:
    """``state``: of the shim and the engine, once they are known."""

    instance: str
    scope: str
    state: State | None = None
    leaf: str = ""

    def make(self) -> None:
        return

    def pids(self, table: Table | None = None) -> tuple[int, ...]:
        return tuple(sorted(one.pid for one in self._members(table or Table.read())))

    def kill(self) -> None:
        for one in self._members(Table.read()):
            kill(one)

    def remove(self) -> None:
        return

    def _members(self, table: Table) -> list[Process]:
        found = {one.pid: one for one, instance in table.of_instance(self.scope) if instance == self.instance}
        found.update((one.pid, one) for one in self._known(table))
        return list(found.values())

    def _known(self, table: Table) -> Iterator[Process]:
        if self.state is None:
            return
        shim = table.processes.get(self.state.shim_pid)
        if shim is not None and shim.start == self.state.shim_start:
            yield from table.below(shim.pid)
        else:
            yield from self._of_session(table, self.state)

    def _of_session(self, table: Table, state: State) -> Iterator[Process]:
        """A session's number is free for others only once all its members are gone; a leader that is not the
        engine means just that."""
        leader = table.processes.get(state.pid)
        if leader is not None and leader.start != state.start:
            return
        yield from (one for one in table.processes.values() if one.sid == state.pid and one.start >= state.start)
