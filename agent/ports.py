"""Which ports engines get: out of one range, reserved under one lock, tried again just before they are used."""

import errno
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

from attrs import define, field

LENT = Path("/proc/sys/net/ipv4/ip_local_port_range")
KEPT = Path("/proc/sys/net/ipv4/ip_local_reserved_ports")
_NAMED = 5  # of those who hold the ports, in an error


class NoPorts(Exception):
    """The range has too few left; the text says who has them."""


@define
class Ports:
    """Every method is synchronous, and that is the lock: no other task runs in between."""

    first: int
    last: int
    _held: dict[int, str] = field(factory=dict, init=False)
    _next: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._next = self.first

    @classmethod
    def parse(cls, text: str) -> "Ports":
        """Raises ValueError."""
        first, dash, last = text.partition("-")
        low, high = int(first), int(last if dash else first)
        if not 0 < low <= high <= 65535:
            raise ValueError(f"agent.ports: {text!r} is no range of ports, such as 20000-20999")
        return cls(low, high)

    def reserve(self, instance: str, names: Iterable[str]) -> dict[str, int]:
        """One free port for each name. Raises NoPorts, and then none is kept."""
        got: dict[str, int] = {}
        try:
            for name in names:
                got[name] = self._take(instance)
        except NoPorts:
            for port in got.values():
                del self._held[port]
            raise
        return got

    def renew(self, instance: str, had: Mapping[str, int]) -> tuple[dict[str, int], tuple[int, ...]]:
        """The same ports, but for those that somebody has bound meanwhile; and which these were. Raises NoPorts."""
        lost = tuple(port for port in had.values() if not is_free(port))
        # A new one first: the old would be found free by nobody else, but reserved it can't be chosen again.
        fresh = {name: self._take(instance) if port in lost else port for name, port in had.items()}
        for port in lost:
            self._held.pop(port, None)
        return fresh, lost

    def hold(self, instance: str, ports: Iterable[int]) -> None:
        """Those of an engine that was there before us, in the range or not."""
        self._held.update(dict.fromkeys(ports, instance))

    def release(self, instance: str) -> None:
        """After its end. A port that somebody still listens on is found taken when it is tried."""
        for port in [port for port, holder in self._held.items() if holder == instance]:
            del self._held[port]

    def of(self, instance: str) -> tuple[int, ...]:
        return tuple(port for port, holder in self._held.items() if holder == instance)

    def _take(self, instance: str) -> int:
        # Onwards from the last one: what was just given back rests for a while.
        order: list[int] = [*range(self._next, self.last + 1), *range(self.first, self._next)]
        for port in order:
            if port not in self._held and is_free(port):
                self._held[port] = instance
                self._next = port + 1 if port < self.last else self.first
                return port
        raise NoPorts(self._exhausted())

    def _exhausted(self) -> str:
        size = self.last - self.first + 1
        held = [port for port in self._held if self.first <= port <= self.last]
        who = sorted({self._held[port] for port in held})
        names = ", ".join(who[:_NAMED]) + (f" and {len(who) - _NAMED} more" if len(who) > _NAMED else "")
        by = f" by {names}" if names else ""
        return (
            f"agent.ports {self.first}-{self.last} has no free port: {len(held)} of {size} are reserved{by},"
            f" {size - len(held)} are used by others"
        )

    def advice(self) -> str:
        """A line for the administrator when the kernel may lend these ports to outgoing connections; or empty."""
        try:
            low, high = map(int, LENT.read_text(encoding="ascii").split())
            kept = KEPT.read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return ""
        if self.last < low or self.first > high or _covers(kept, self.first, self.last):
            return ""
        return (
            f"the kernel lends ports {low}-{high} to outgoing connections; keep ours with"
            f" `sysctl -w net.ipv4.ip_local_reserved_ports={kept + ',' if kept else ''}{self.first}-{self.last}`"
        )


def _covers(kept: str, first: int, last: int) -> bool:
    ranges = (part.partition("-") for part in kept.split(",") if part)
    return any(int(low) <= first and last <= int(high or low) for low, _, high in ranges)


def is_free(port: int) -> bool:
    """Whether a server could have it on any address: neither a listener nor somebody's connection is on it."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as both:
            both.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            both.bind(("::", port))
            return True
    except OSError as error:
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            return False
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as one:
        try:
            one.bind(("", port))
        except OSError:
            return False
        return True
