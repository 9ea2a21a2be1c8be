"""One request and its answer, as whoever answers it sees them; the door hands it out.

Both the gateway's road and the simulated engine are such a handler.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from llmgw.core.outcome import Refusal
from llmgw.tasks.alarms import Alarm

Headers = list[tuple[bytes, bytes]]  # names in lower case, in the order they came


class Refused(Exception):
    """Raised while the request is read: the client must be told this, and the connection closed."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class Exchange(Protocol):
    """Answer exactly once: ``answer``, or ``start`` then ``send`` … then ``end``.

    The handler runs in a cancel scope that ends the moment the client has left; sends after that raise
    ``llmgw.tasks.streams.Broken``. An exception that leaves the handler becomes a 500, or a cut
    connection when the answer had begun.
    """

    id: str  # our request id
    method: str  # "GET", "POST", "HEAD", …
    path: str  # as sent, without the query, still percent-encoded
    query: str
    headers: Headers
    peer: str  # the client's address
    received_at: float  # when the head was whole, Trio's clock
    alarm: Alarm  # one a connection, for whatever the request waits for
    gone_at: float | None  # when the client was seen to leave

    @property
    def first(self) -> dict[bytes, bytes]:
        """Each header's first value."""
        ...

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header; the name in lower case."""
        ...

    @property
    def answered(self) -> bool:
        """Whether the status line has left."""
        ...

    @property
    def done(self) -> bool:
        """Whether the answer is whole, or cut."""
        ...

    @property
    def client_gone(self) -> bool: ...

    async def body(self) -> bytes:
        """The whole body, decoded; raises Refused (408, 413, 415, 400, 503) or Broken."""
        ...

    async def answer(
        self,
        status: int,
        body: bytes,
        headers: Iterable[tuple[bytes, bytes]] = (),
        content_type: bytes = b"application/json",
    ) -> None:
        """A whole answer in one send; Content-Length, Date and the request id are ours."""
        ...

    async def start(self, status: int, headers: Iterable[tuple[bytes, bytes]] = (), length: int | None = None) -> None:
        """The head of an answer of unknown (chunked) or given length; it leaves with the first ``send``."""
        ...

    async def flush(self) -> None:
        """The head leaves now, alone, if it has not left yet."""
        ...

    async def send(self, data: bytes) -> None:
        """One piece of the body, in one send to the socket. Backpressure: waits while the client does not read."""
        ...

    async def end(self) -> None:
        """The answer is whole."""
        ...

    def cut(self) -> None:
        """The answer can't be made whole: the connection closes without a last chunk, so the client can tell."""
        ...


Handler = Callable[[Exchange], Awaitable[None]]
