"""What an engine's processes use, and whether its port is its own: looked at once a period, off the loop."""

from collections.abc import Iterable, Mapping

from attrs import define, field, frozen

from agent import listeners
from agent.groups import Group
from agent.listeners import Listener
from agent.proc import TICKS_PER_S, Table, process


@frozen
class Asked:
    """One engine, as a thread may see it."""

    id: str
    group: Group
    ports: Mapping[str, int]
    own_sockets: frozenset[int]


@frozen
class Measured:
    pids: tuple[int, ...] = ()
    rss_bytes: int = 0
    ticks: Mapping[tuple[int, int], int] = field(factory=dict)  # (pid, start) -> CPU time
    stranger: str = ""  # who listens in its place
    own_sockets: frozenset[int] = frozenset()


@define
class Sample:
    """What is known of it by now. ``cpu_ms`` only rises, whichever of its processes end."""

    pids: tuple[int, ...] = ()
    rss_bytes: int = 0
    cpu_ms: int = 0
    stranger: str = ""
    own_sockets: frozenset[int] = frozenset()
    _ticks: Mapping[tuple[int, int], int] = field(factory=dict, init=False)

    def take(self, now: Measured) -> None:
        more = sum(ticks - self._ticks.get(who, 0) for who, ticks in now.ticks.items())
        self.cpu_ms += max(0, more) * 1000 // TICKS_PER_S
        self._ticks = now.ticks
        self.pids, self.rss_bytes = now.pids, now.rss_bytes
        self.stranger, self.own_sockets = now.stranger, now.own_sockets


def measure(engines: Iterable[Asked]) -> dict[str, Measured]:
    """Blocks: a thread's work."""
    engines = tuple(engines)
    # A leaf names its processes; only without one is everybody on the machine looked at.
    table = Table.read() if any(not one.group.leaf for one in engines) else None
    listening = listeners.listening() if engines else {}
    return {one.id: _measured(one, table, listening) for one in engines}


def _measured(engine: Asked, table: Table | None, listening: dict[int, frozenset[int]]) -> Measured:
    pids = engine.group.pids(table)
    processes = [one for pid in pids if (one := process(pid)) is not None]
    own, stranger = _whose(engine, pids, listening)
    return Measured(
        pids,
        sum(one.rss_bytes for one in processes),
        {(one.pid, one.start): one.ticks for one in processes},
        stranger,
        own,
    )


def _whose(engine: Asked, pids: tuple[int, ...], listening: dict[int, frozenset[int]]) -> tuple[frozenset[int], str]:
    """Its own sockets that listen, and what is to be said when others do on its ports.

    Sockets known as its own are not looked for again: reading every descriptor of every process is the costly part.
    """
    there = frozenset[int]().union(*(listening.get(port, frozenset()) for port in engine.ports.values()))
    own = there & engine.own_sockets
    if there - own:
        own |= there & listeners.inodes_of(pids)
    taken = [
        f"port {port} ({name}) is listened on by somebody else"
        for name, port in engine.ports.items()
        if listeners.who(port, listening, own) is Listener.STRANGER
    ]
    return own, ", ".join(taken)
