"""The network between an agent and its control plane, for a test that cuts it."""

from contextlib import suppress

import trio
from attrs import define, field

from tests.journeys.clustering import block_of_ports


@define(eq=False)
class Cable:
    """Between one agent and the control plane. Cut, it swallows what comes from either end, as a dead switch does."""

    to: int
    port: int = field(factory=lambda: block_of_ports(1))
    whole: bool = field(default=True, init=False)
    _scopes: set[trio.CancelScope] = field(factory=set, init=False)  # of its connections

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        await trio.serve_tcp(self._serve, self.port, host="127.0.0.1", task_status=task_status)

    def cut(self) -> None:
        self.whole = False

    def mend(self) -> None:
        """What hung on it meanwhile is over; the next connection goes through."""
        self.whole = True
        for scope in self._scopes:
            scope.cancel()

    async def _serve(self, near: trio.SocketStream) -> None:
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            with suppress(OSError, trio.BrokenResourceError):
                await self._join(near, scope)
        self._scopes.discard(scope)

    async def _join(self, near: trio.SocketStream, scope: trio.CancelScope) -> None:
        async with near, await trio.open_tcp_stream("127.0.0.1", self.to) as far, trio.open_nursery() as both:
            both.start_soon(self._carry, near, far, scope)
            both.start_soon(self._carry, far, near, scope)

    async def _carry(self, source: trio.SocketStream, target: trio.SocketStream, scope: trio.CancelScope) -> None:
        """Until either end has gone: then the other one goes too, unless it can't know."""
        with suppress(trio.BrokenResourceError):
            while piece := await source.receive_some(65536):
                if self.whole:
                    await target.send_all(piece)
        if self.whole:
            scope.cancel()
