"""Leadership where nobody else could lead: on SQLite the one process that holds the data lock leads while it lives.

Its term is the number of this start. The same face as ``control.leadership``.
"""

import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NoReturn

import trio
from attrs import define, field

from llmgw.control.tenure import Tenure
from llmgw.core.explain import Considered, Explanation, Fact
from llmgw.core.lease_explained import Leader, Readiness, Transition
from llmgw.core.lease_facts import Addresses
from llmgw.core.term import Term
from llmgw.store.errors import StoreUnavailable
from llmgw.store.face import Store
from llmgw.store.leader import lift, term_of

AGAIN_S = 1.0
WHY = "the store is SQLite, and this process holds its data lock"


async def _nothing(tenure: Tenure) -> None:
    await tenure.leaving.wait()


@define(eq=False)
class Alone:
    """Made by ``await Alone.load(store)``; ``run`` is a service."""

    store: Store
    term: Term
    lead: Callable[[Tenure], Awaitable[object]] = _nothing
    on_transition: Callable[[Transition], None] = lambda told: None
    report: Callable[[BaseException], None] = lambda error: None
    addresses: Addresses = field(factory=Addresses)
    began_at: float = field(factory=trio.current_time)
    changed: trio.Event = field(factory=trio.Event, init=False)
    ready: bool = field(default=False, init=False)
    _tenure: Tenure = field(init=False)
    _above: Term | None = field(default=None, init=False)
    _to_lift: trio.Event = field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self._tenure = Tenure(self)

    @classmethod
    async def load(cls, store: Store) -> "Alone":
        return cls(store, await store.read(term_of))

    # -- questions ------------------------------------------------------------------------------------

    def may_act(self) -> bool:
        return self._above is None

    @property
    def away_s(self) -> float:
        """It asks nothing of the store by itself."""
        return 0.0

    def leader(self) -> Leader:
        since = trio.current_time() - self.began_at
        return Leader(
            self.addresses.name, self.addresses, True, "leading", self.term, since, None, 0, self.ready
        )  # fmt: skip

    def explain(self) -> Explanation:
        name = self.addresses.name or "this control plane"
        return Explanation(
            "leader",
            f"{name}, this control plane, leads, term {self.term}",
            (Fact(WHY, trio.current_time() - self.began_at),),
            (Considered(name, True),),
            ("a store that two can share: store.url = postgresql://…",),
            "llmgw ctl leader",
        )

    def readiness(self, offline_grace_s: float) -> Readiness:
        return Readiness(True, f"leads, term {self.term}")

    # -- what others tell -----------------------------------------------------------------------------

    def reached_at(self, addresses: Addresses) -> None:
        self.addresses = addresses

    def told(self, agent: str, seen: Term, heard_s: float | None) -> None:
        """An agent has obeyed a term that ours is not above: the store went back in time."""
        if self._above is None or seen.is_newer_than(self._above):
            self._above = seen
            self._to_lift.set()

    def serving(self, ready: bool) -> None:
        self.ready = ready

    def look(self) -> None:
        """Nobody could have taken the lead."""

    def resign(self, why: str) -> bool:
        return False

    async def stop(self) -> None:
        """The lead ends with the process."""

    async def wait_handed_over(self) -> None:
        """There is nobody to wait for."""

    # -- the service ----------------------------------------------------------------------------------

    async def run(self) -> NoReturn:
        here = self.addresses.name or "this control plane"
        self.on_transition(Transition("leader.began", f"{here} leads, term {self.term}", self.term))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._lift)
            while True:
                try:
                    await self.lead(self._tenure)
                except* Exception as errors:
                    self.report(errors)
                await trio.sleep(AGAIN_S)
        raise AssertionError("a service ends by being cancelled")

    async def _lift(self) -> NoReturn:
        """The term is put above what was seen, and agents come back."""
        while True:
            await self._to_lift.wait()
            self._to_lift, above = trio.Event(), self._above
            assert above is not None
            try:
                self.term = await self.store.write(
                    partial(lift, term=self.term, above=above, nonce=secrets.token_hex(8))
                )
            except StoreUnavailable as error:
                self.report(error)
                await trio.sleep(AGAIN_S)
                self._to_lift.set()
                continue
            if self._above is above:
                self._above = None
            what = f"agents had obeyed term {above}: the store went back in time; this leader's is {self.term} now"
            self.on_transition(Transition("leader.lifted", what, self.term))
