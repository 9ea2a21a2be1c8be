"""Waiting for one word, without losing it.

An event per waiter leaks what was granted when a cancel and a grant meet in one tick. Here whoever waits is
parked with an abort function: either the word comes first, and then the waiter *has* it, cancelled or not; or
the cancel does, and then ``left`` is called at that instant, before anybody else runs.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

import outcome
import trio
from attrs import define, field

W = TypeVar("W")


@define(eq=False)
class Waiter(Generic[W]):
    """One task and the one word it waits for."""

    _word: "outcome.Value[W] | None" = field(default=None, init=False)
    _task: trio.lowlevel.Task | None = field(default=None, init=False)

    @property
    def told(self) -> bool:
        return self._word is not None

    def tell(self, word: W) -> None:
        """Say it, once. Whoever waits runs at the next turn of the loop."""
        assert self._word is None, "a waiter is told once"
        self._word = outcome.Value(word)
        if self._task is not None:
            task, self._task = self._task, None
            trio.lowlevel.reschedule(task, self._word)

    async def wait(self, left: Callable[[], None]) -> W:
        """The word. A cancel before it comes calls ``left``, and nobody may tell any more.

        Between the word and this call's return there is no checkpoint: what it grants is in the caller's hands.
        """
        if self._word is not None:
            await trio.lowlevel.cancel_shielded_checkpoint()
            return self._word.unwrap()
        self._task = trio.lowlevel.current_task()

        def give_up(_: object) -> trio.lowlevel.Abort:
            self._task = None
            left()
            return trio.lowlevel.Abort.SUCCEEDED

        word: W = await trio.lowlevel.wait_task_rescheduled(give_up)
        return word
