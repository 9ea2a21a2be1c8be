"""What became of an engine while no agent watched it: read from its folder, proved against the kernel.

Blocking, and a wedged process may hold it up: it runs in threads that are given up after a while. So it only looks;
a thread that wakes when nobody waits for it any more must not kill or write.
"""

import os
import time

import msgspec
from attrs import field, frozen

from agent import atomic, proc, shim
from agent.engine_parts import Parts
from agent.groups import Group, MarkedGroup
from agent.places import EnginePlace, Intent, Spec, State
from agent.proc import Table
from llmgw.core.shards import Exit

SHIM_WRITES_WITHIN_S = 2.0


@frozen
class Running:
    """Ours, proved: the same boot, pid, start and group. ``note``: what of its record had to be found again."""

    state: State
    pidfd: int
    group: Group
    spec: Spec | None
    key: str = field(repr=False)
    rebuilt: bool = False  # the state is not on disk
    note: str = ""


@frozen
class Gone:
    """Its main process has ended. Others of it may be left: ``pids``."""

    state: State | None
    group: Group
    spec: Spec | None
    pids: tuple[int, ...]
    exit: Exit | None
    note: str = ""


@frozen
class Lost:
    why: str
    spec: Spec | None


@frozen
class NeverStarted:
    """It could not be."""

    why: str
    spec: Spec | None


@frozen
class NeverRan:
    """The agent ended before it did anything that lasts; a fetch may still run."""


class NotSettled(OSError):
    """Its shim is being born and has written nothing yet."""


Found = Running | Gone | Lost | NeverStarted | NeverRan


@frozen
class Record:
    """What a folder says."""

    spec: Spec | None
    state: State | None
    exit: Exit | None
    intent: Intent | None
    garbage: tuple[str, ...]  # files that were set aside

    @property
    def stopping(self) -> bool:
        """A stop was asked and not ended: it goes on without another word."""
        return self.intent is not None and self.intent.what == "stop"

    @property
    def note(self) -> str:
        return f"set aside, unreadable: {', '.join(self.garbage)}" if self.garbage else ""


def read(place: EnginePlace) -> Record:
    """Raises OSError."""
    spec, state, intent = place.read_spec(), place.read_state(), place.read_intent()
    if spec is not None and spec.id != place.id:
        spec = None
    return Record(spec, state, place.read_exit(), intent, place.set_aside())


def look(place: EnginePlace, parts: Parts, table: Table) -> tuple[Found, bool]:
    """What it is, and whether its stop goes on. Blocks. Raises OSError."""
    record = read(place)
    return examine(place, parts, table, record), record.stopping


def examine(place: EnginePlace, parts: Parts, table: Table, record: Record) -> Found:
    if record.state is None and place.has_shim():
        table = _wait_for_state(place)
        record = read(place)
    if record.state is not None:
        return _with_state(place, parts, table, record, record.state)
    return _without_state(place, parts, table, record)


def _wait_for_state(place: EnginePlace) -> Table:
    """An agent was killed a moment ago and its shim has not written yet; or the file is lost."""
    until = time.monotonic() + SHIM_WRITES_WITHIN_S
    while not place.state.exists() and place.has_shim() and time.monotonic() < until:
        if atomic.was_set_aside(place.state):
            break
        time.sleep(0.01)
    return Table.read()


# --- with a record of its processes


def _with_state(place: EnginePlace, parts: Parts, table: Table, record: Record, state: State) -> Found:
    if state.boot_id != parts.boot_id:
        return Lost("the machine was restarted", record.spec)
    group = parts.group(place.id, record.spec.leaf if record.spec else state.leaf, state)
    pids = group.pids(table)
    pidfd = _living(state)
    if pidfd is None:
        return Gone(state, group, record.spec, pids, record.exit, _left(pids, record.note))
    if state.pid not in pids and state.pid in MarkedGroup(place.id, parts.places.scope).pids(table):
        # Somebody moved it to another cgroup; its mark proves as much.
        group = MarkedGroup(place.id, parts.places.scope, state)
        pids = group.pids(table)
    why = _not_ours(state, pids, record.spec)
    if why:
        os.close(pidfd)
        return Gone(state, group, record.spec, pids, record.exit, why)
    return Running(state, pidfd, group, record.spec, _key(state), state is not record.state, record.note)


def _living(state: State) -> int | None:
    pidfd = proc.pidfd_of(state.pid, state.start)
    if pidfd is None:
        return None
    found = proc.process(state.pid)
    if found is None or not found.lives:
        os.close(pidfd)
        return None
    return pidfd


def _not_ours(state: State, pids: tuple[int, ...], spec: Spec | None) -> str:
    if state.pid not in pids:
        return f"pid {state.pid} runs, but not in the group of this instance"
    if spec is not None and spec.hash != state.spec_hash:
        return "what runs is not what is written down"
    return ""


def _left(pids: tuple[int, ...], note: str) -> str:
    orphans = f"orphans: its main process is gone, {len(pids)} of its others are not" if pids else ""
    return "; ".join(filter(None, (orphans, note)))


# --- without


def _without_state(place: EnginePlace, parts: Parts, table: Table, record: Record) -> Found:
    found = _rebuilt(place, parts, table, record)
    if found is not None:
        return _with_state(place, parts, table, record, found)
    group = parts.group(place.id, record.spec.leaf if record.spec else None)
    pids = group.pids(table)
    fetching = record.spec is None and not record.garbage and not group.leaf
    if pids and not fetching:
        return Gone(None, group, record.spec, pids, record.exit, _left(pids, record.note))
    if place.has_shim():
        raise NotSettled("its shim has written nothing yet")
    if record.intent is not None and record.intent.what == "failed":
        return NeverStarted(record.intent.why, record.spec)
    if record.exit is not None or place.state.name in record.garbage:
        return Gone(None, group, record.spec, (), record.exit, record.note)
    return NeverRan()


def _rebuilt(place: EnginePlace, parts: Parts, table: Table, record: Record) -> State | None:
    """From its shim, which carries in its environment what it was started with."""
    found = table.shim_of(parts.places.scope, place.id)
    if found is None:
        return None
    main = next((p for p in table.processes.values() if p.ppid == found.pid and p.sid == p.pid), None)
    if main is None:
        return None
    told = _told(proc.environ(found.pid).get(shim.RECORD, ""))
    return State(
        boot_id=parts.boot_id,
        shim_pid=found.pid,
        shim_start=found.start,
        pid=main.pid,
        start=main.start,
        pgid=main.pid,
        ports=told.ports,
        spec_hash=told.hash,
        host=told.host,
        leaf=told.leaf,
        at=time.time(),
    )


@frozen
class _Told:
    ports: dict[str, int] = field(factory=dict)
    hash: str = ""
    host: str = ""
    leaf: str = ""


def _told(text: str) -> _Told:
    try:
        return msgspec.json.decode(text.encode(), type=_Told)
    except msgspec.DecodeError:
        return _Told()


def _key(state: State) -> str:
    """The engine's key, which is in no file: kept out of what its log shows."""
    found = proc.process(state.shim_pid)
    if found is None or found.start != state.shim_start:
        return ""
    return proc.environ(state.shim_pid).get(shim.KEY, "")


def _close(fd: int) -> None:

    os.close(fd)


def strangers(parts: Parts, known: frozenset[str]) -> dict[str, tuple[int, ...]]:
    """Instance -> pids, of processes with our mark, or in a leaf of ours, that no folder tells of. Blocks."""
    found: dict[str, set[int]] = {}
    for one, id in Table.read().of_instance(parts.places.scope):
        found.setdefault(id, set()).add(one.pid)
    if parts.leaves is not None and parts.leaves.is_dir():
        for leaf in parts.leaves.iterdir():
            if leaf.is_dir() and (pids := parts.group(leaf.name).pids()):
                found.setdefault(leaf.name, set()).update(pids)
    return {id: tuple(sorted(pids)) for id, pids in found.items() if id not in known}
