"""The narrow face through which door and engine client speak to a connection.

Three implementations: a socket on the watcher (``sockets.py``), TLS over one (``tls.py``) and an
in-memory pipe (``memory.py``) for tests and simulation.
"""

from collections.abc import Callable
from typing import Protocol


class Broken(Exception):
    """The connection is gone: reset, closed by us, or its peer left while we sent."""


class Stalled(Broken):
    """The peer took no byte for as long as it may."""


class Interrupted(Exception):
    """A wait for bytes was interrupted by ``Stream.interrupt``; nothing is lost, receive again."""


class Stream(Protocol):
    """One connection. One task receives and one sends at a time; both may be the same task."""

    on_hangup: Callable[[], None] | None
    """Called once, from the watcher, when the peer has left, even behind bytes nobody has read."""

    @property
    def gone(self) -> bool:
        """Whether the peer has hung up (its end-of-file may still lie behind unread bytes)."""
        ...

    @property
    def peer(self) -> str:
        """The peer's address without its port."""
        ...

    async def receive(self, most: int = 65536) -> bytes:
        """Bytes as they come, at least one; ``b""`` at the end. Raises Broken, Interrupted. Cancel-safe."""
        ...

    def interrupt(self) -> None:
        """The receive that waits, or the next that would have to, raises Interrupted."""
        ...

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        """All of it, or Broken (Stalled after ``write_stall`` seconds without progress).

        A cancel does not interrupt bytes half sent: only the peer's leaving or a stall does.
        """
        ...

    def finish_sending(self) -> None:
        """Nothing more comes from us; the peer may still send."""
        ...

    def close(self) -> None:
        """At once and synchronous; what was not sent may be lost. Closing twice is fine."""
        ...


class Connect(Protocol):
    """Open a connection; raises OSError. Its deadline is the caller's cancel scope."""

    async def __call__(self, host: str, port: int, tls: object | None = None) -> Stream: ...
