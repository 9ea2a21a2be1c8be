"""Who else could lead, where several share a store: we sign, and read who else did."""

from collections.abc import Callable
from typing import NoReturn

import trio
from attrs import define, field

from llmgw.control.leadership import Candidacy
from llmgw.core.standbys import BEAT_S, RollCall, Signed, Standby
from llmgw.store.control_planes import every, forget, leave, sign
from llmgw.store.errors import StoreUnavailable
from llmgw.store.face import Database, Store

LEAVES_WITHIN_S = 1.0


@define(eq=False)
class Standbys:
    """``run`` is a service; ``leave`` is said once, when this process takes no lead any more."""

    store: Store
    leadership: Candidacy
    failed: Callable[[str], object] = lambda why: None
    _roll: RollCall = field(init=False)
    _left: bool = field(default=False, init=False)
    _failing: bool = field(default=False, init=False)  # and it was said

    def __attrs_post_init__(self) -> None:
        self._roll = RollCall(self.leadership.state.holder)

    def standbys(self) -> tuple[Standby, ...] | None:
        """See ``RollCall.standbys``."""
        return self._roll.standbys(self.leadership.leads_as, trio.current_time())

    async def run(self) -> NoReturn:
        while True:
            if not self._left:
                await self.sign()
            await trio.sleep(BEAT_S)

    async def sign(self) -> None:
        roll = self._roll
        dead = roll.forgotten(trio.current_time())

        def change(db: Database) -> list[Signed]:
            sign(db, roll.own, self.leadership.state.addresses)
            forget(db, dead)
            return every(db.conn)

        try:
            rows = await self.store.write(change)
        except StoreUnavailable as error:  # after a while nothing is known of others
            if not self._failing:
                self.failed(str(error))
            self._failing = True
            return
        self._failing = False
        self._roll = roll.after(rows, trio.current_time())

    async def leave(self) -> None:
        """Nobody shall count on us any more. A store that is away hears nothing of it; then our silence says so."""
        self._left = True
        with trio.move_on_after(LEAVES_WITHIN_S):
            try:
                await self.store.write(lambda db: leave(db, self._roll.own), abandon=True)
            except StoreUnavailable as error:
                self.failed(str(error))
