"""The store as a leader uses it: whatever it writes is refused once another process leads."""

from collections.abc import Callable
from typing import Any, TypeVar

from attrs import define

from llmgw.store.face import Written
from llmgw.store.leader import NotLeading

T = TypeVar("T")
Fence = Callable[[Any], None]  # on the connection of a transaction, as its last statement; raises NotLeading


@define(eq=False)
class Fenced:
    """``fence`` gives the one of the term that is led now; None: none is. ``refused`` hears of a fence that held.

    A write whose caller is cancelled is abandoned, for the fence makes its unknown outcome harmless.
    """

    store: Written
    fence: Callable[[], Fence | None]
    refused: Callable[[], None] = lambda: None

    async def write(self, change: Callable[[Any], T], *, abandon: bool = True) -> T:
        """Raises NotLeading, StoreUnavailable."""
        fence = self.fence()
        if fence is None:
            raise NotLeading("this control plane does not lead")

        def fenced(db: Any) -> T:
            result = change(db)
            fence(db.conn)
            return result

        try:
            return await self.store.write(fenced, abandon=abandon)
        except NotLeading:
            self.refused()
            raise

    async def read(self, question: Callable[[Any], T]) -> T:
        return await self.store.read(question)

    @property
    def cluster_id(self) -> str:
        return self.store.cluster_id
