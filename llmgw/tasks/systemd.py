"""What systemd is told of a service, and the sockets it holds for one: sd_notify(3), sd_listen_fds(3).

Without systemd nothing is told and nothing is held. The variables are taken out of the environment, so that no
process started later takes them for its own.
"""

import socket
from collections.abc import Iterable, MutableMapping
from contextlib import ExitStack
from typing import NoReturn

import trio
from attrs import define, field

FIRST_FD = 3  # SD_LISTEN_FDS_START
MICRO = 1_000_000


class WrongSockets(Exception):
    """What systemd hands over is not what can be used; its text says what and how to name it."""


@define(eq=False)
class Notify:
    """``address`` None: nobody listens. ``watchdog_s``: a life sign is due within this."""

    address: str | None = None
    watchdog_s: float | None = None
    failed: str = field(default="", init=False)  # why systemd was not told, the last time it was not

    @classmethod
    def taken_from(cls, environ: MutableMapping[str, str], pid: int) -> "Notify":
        """Raises ValueError for a watchdog time that is no number."""
        address = environ.pop("NOTIFY_SOCKET", "") or None
        usec, whose = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        mine = whose in ("", str(pid))
        return cls(address, int(usec) / MICRO if usec and mine and address else None)

    def ready(self, status: str) -> None:
        """It serves: what waits for the unit goes on."""
        self._tell("READY=1", f"STATUS={_line(status)}")

    def reloading(self) -> None:
        self._tell("RELOADING=1", f"MONOTONIC_USEC={int(trio.current_time() * MICRO)}")

    def stopping(self, status: str) -> None:
        self._tell("STOPPING=1", f"STATUS={_line(status)}")

    def extend(self, seconds: float, status: str) -> None:
        """It may take so much longer from now on to stop, whatever TimeoutStopSec= says."""
        self._tell(f"EXTEND_TIMEOUT_USEC={int(seconds * MICRO)}", f"STATUS={_line(status)}")

    async def watchdog(self) -> NoReturn:
        """Service: a life sign from this very loop, so that one that stalls is noticed. For ever."""
        if self.watchdog_s is None:
            await trio.sleep_forever()
        while True:
            self._tell("WATCHDOG=1")
            await trio.sleep(self.watchdog_s / 3)

    def _tell(self, *lines: str) -> None:
        """One datagram. A service that can't tell goes on serving; ``failed`` says why."""
        if self.address is None:
            return
        path = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
                sock.sendto("\n".join(lines).encode(), path)
        except OSError as error:
            self.failed = str(error)
        else:
            self.failed = ""


def activated(
    environ: MutableMapping[str, str], pid: int, names: Iterable[str], first: int = FIRST_FD
) -> dict[str, socket.socket]:
    """The listening sockets that systemd holds for this process, by FileDescriptorName=. Raises WrongSockets."""
    count, whose = environ.pop("LISTEN_FDS", ""), environ.pop("LISTEN_PID", "")
    called = environ.pop("LISTEN_FDNAMES", "").split(":")
    if not count or whose != str(pid):
        return {}
    known, found = tuple(names), dict[str, socket.socket]()
    with ExitStack() as refused:
        for fd, name in zip(range(first, first + int(count)), called, strict=False):
            sock = refused.enter_context(_socket(fd, name))
            if name not in known:
                raise WrongSockets(
                    f"a socket is called {name!r}: FileDescriptorName= must be one of {', '.join(known)}"
                )
            if name in found:
                raise WrongSockets(f"two sockets are called {name!r}: one address each")
            found[name] = _listening(sock, name)
        refused.pop_all()
    return found


def _socket(fd: int, name: str) -> socket.socket:
    try:
        sock = socket.socket(fileno=fd)
    except OSError as error:
        raise WrongSockets(f"{name}: descriptor {fd} is no socket: {error.strerror}") from None
    sock.set_inheritable(False)
    return sock


def _listening(sock: socket.socket, name: str) -> socket.socket:
    stream = sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM
    if not stream or not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise WrongSockets(f"{name}: not a listening TCP socket; write ListenStream=host:port and Accept=no")
    sock.setblocking(False)
    return sock


def _line(text: str) -> str:
    return " ".join(text.split())
