"""Whose word counts here: the newest term this node has obeyed, written down before anything is done under it."""

from collections.abc import Awaitable, Callable
from typing import Any

import trio
from attrs import define, field

from agent.places import Places
from llmgw.core.term import Term


@define(eq=False)
class Terms:
    """``run_blocking`` is a thread; tests run inline. Older terms never come back, whatever is connected."""

    places: Places
    run_blocking: Callable[..., Awaitable[Any]] = trio.to_thread.run_sync
    seen: Term = field(init=False)
    _heard_at: float | None = field(default=None, init=False)  # Trio's clock, a frame of the newest term

    def __attrs_post_init__(self) -> None:
        self.seen = self.places.read_seen()

    def why_not(self, term: Term) -> str:
        """Why a leader of that term is not obeyed; empty: it is."""
        if self.seen.is_newer_than(term):
            return f"stale: its term is {term}, and {self.seen} was obeyed here already"
        if self.seen.conflicts_with(term):
            return f"conflict: two leaders claim term {term}, and the other one was obeyed here"
        return ""

    def heard(self, term: Term) -> None:
        if not self.seen.is_newer_than(term):
            self._heard_at = trio.current_time()

    def read_again(self) -> None:
        """This node has joined another cluster, whose terms begin anew."""
        self.seen, self._heard_at = self.places.read_seen(), None

    @property
    def heard_ms(self) -> int | None:
        """Since a frame of the newest term came; None: none has since the agent started."""
        return None if self._heard_at is None else round((trio.current_time() - self._heard_at) * 1000)

    async def take(self, term: Term) -> None:
        """On disk when this returns. Raises OSError: then nothing may be done under it."""
        if term.is_newer_than(self.seen):
            await self.run_blocking(self.places.write_seen, term)
            if term.is_newer_than(self.seen):
                self.seen = term
