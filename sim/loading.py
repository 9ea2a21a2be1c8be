"""What an engine that has just started answers, and when it is ready: alone or with the other shards of its replica.

Rank 0 listens at ``peer``, the others connect to it and serve nothing. It is ready once all have come; when one
goes it makes no token any more and stays healthy, as engines whose workers are gone do.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import trio
from attrs import define, field, frozen

from llmgw.tasks.sockets import split_address

_RETRY_S = 0.2
_HELLO = b"rank %d\n"


@frozen
class LoadingSpec:
    """``health_after_s`` None: with the first completion."""

    ready_after_s: float = 0.0  # completions wait until then, once it is healthy
    health_after_s: float | None = None  # 503 until then
    ranks: int = 1
    peer: str = ""  # host:port where rank 0 is found


@define(eq=False)
class Loading:
    spec: LoadingSpec = field(factory=LoadingSpec)
    on_broken: Callable[[], None] = lambda: None
    healthy: bool = field(default=True, init=False)
    broken: bool = field(default=False, init=False)  # a shard that had come has gone
    _ready: trio.Event = field(factory=trio.Event, init=False)
    _together: trio.Event = field(factory=trio.Event, init=False)
    _came: set[int] = field(factory=set, init=False)

    def __attrs_post_init__(self) -> None:
        spec = self.spec
        first_s = spec.ready_after_s if spec.health_after_s is None else spec.health_after_s
        self.healthy = first_s <= 0 and spec.ranks <= 1
        if self.healthy and spec.ready_after_s <= 0:
            self._ready.set()

    async def wait_ready(self) -> None:
        await self._ready.wait()

    async def run(self) -> None:
        """Becomes healthy, then ready. Raises OSError when the peers' port is taken."""
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            if self.spec.ranks > 1:
                host, port = split_address(self.spec.peer)
                nursery.start_soon(partial(trio.serve_tcp, self._meet, port, host=host))
                await self._together.wait()
            after = self.spec.health_after_s
            await trio.sleep_until(began + (self.spec.ready_after_s if after is None else after))
            self.healthy = True
            await trio.sleep_until(began + self.spec.ready_after_s)
            self._ready.set()

    async def _meet(self, stream: trio.SocketStream) -> None:
        """One other shard, as long as it lives."""
        rank = await _rank_of(stream)
        if not 0 < rank < self.spec.ranks:
            return
        self._came.add(rank)
        if len(self._came) == self.spec.ranks - 1:
            self._together.set()
        await _wait_gone(stream)
        self.broken = True
        self.on_broken()


async def work(rank: int, peer: str, say: Callable[[str], None]) -> None:
    """A shard that is not the first: for ever, also when rank 0 has gone, as collective operations wait for ever."""
    host, port = split_address(peer)
    while True:
        try:
            stream = await trio.open_tcp_stream(host, port)
            break
        except OSError:
            await trio.sleep(_RETRY_S)
    with suppress(trio.BrokenResourceError):  # gone before it heard of us
        await stream.send_all(_HELLO % rank)
        say(f"rank {rank} has joined {peer}")
        await _wait_gone(stream)
    say(f"rank {rank} waits for {peer}, which has gone")
    await trio.sleep_forever()


async def _rank_of(stream: trio.SocketStream) -> int:
    said = bytearray()
    try:
        while b"\n" not in said and len(said) < 32:
            said += await stream.receive_some(32) or b"\n"
        return int(said.removeprefix(b"rank "))
    except (trio.BrokenResourceError, ValueError):
        return -1


async def _wait_gone(stream: trio.SocketStream) -> None:
    with suppress(trio.BrokenResourceError):
        while await stream.receive_some(64):
            continue
