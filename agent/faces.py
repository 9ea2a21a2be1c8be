"""What the agent's link asks of the node's engines and GPUs. ``agent.engines`` and ``agent.gpus`` are these."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from llmgw.core.gpus import Gpu
from llmgw.core.shards import Orphan, ShardSeen
from llmgw.wire.agent_frames import Tail, Wanted


class Change(Protocol):
    async def wait(self) -> None:
        """Until something is to be reported at once; each change is told once."""
        ...


class Engines(Protocol):
    address: str
    """Where this node is reached, for launches that name no host."""

    @property
    def changed(self) -> Change: ...
    async def adopt(self) -> None: ...
    def obey(self, wanted: Wanted) -> None: ...
    def seen(self) -> tuple[ShardSeen, ...]: ...
    def reported(self, shards: Iterable[ShardSeen]) -> None:
        """A report with these was sent."""
        ...

    def orphans(self) -> tuple[Orphan, ...]: ...
    def has(self) -> tuple[str, ...]:
        """Of the paths that ``wanted`` asks about, those that are here."""
        ...

    def tail(self, id: str) -> Tail | None: ...
    def new_tails(self) -> tuple[Tail, ...]:
        """Of every engine that wrote something since its tail was asked for."""
        ...

    def logs(self, id: str, most: int) -> tuple[str, int | None]:
        """Text, and the age of its last line in ms. Raises an Exception that says why there are none."""
        ...

    async def run(self) -> None: ...


class Gpus(Protocol):
    @property
    def driver(self) -> str: ...
    def seen(self) -> Sequence[Gpu]: ...
    def clear(self, uuid: str, cause: str) -> bool:
        """An operator has looked at it; whether anything of that cause spoke against it."""
        ...

    async def run(self) -> None: ...
