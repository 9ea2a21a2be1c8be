"""On which connection does the engine answer? A reset is below what an exchange can do."""

from contextvars import ContextVar
from typing import Protocol, runtime_checkable

from attrs import frozen

from llmgw.gateway.door import Listener
from llmgw.tasks.streams import Stream


@runtime_checkable
class _Resettable(Protocol):
    def reset(self) -> None: ...


# Set where a connection is accepted; the task that serves it inherits the value.
_answered_on: ContextVar[Stream | None] = ContextVar("answered_on", default=None)


@frozen
class Noticing:
    """A listener that lets each connection's task know its stream."""

    _listener: Listener

    async def accept(self) -> Stream:
        stream = await self._listener.accept()
        _answered_on.set(stream)
        return stream

    def close(self) -> None:
        self._listener.close()


def reset_connection() -> None:
    """With a TCP reset, as a host that crashed; nothing where the stream knows none."""
    stream = _answered_on.get()
    if isinstance(stream, _Resettable):
        stream.reset()
