"""Leadership where nobody else could lead: on SQLite the one process that holds the store's lock leads while it lives.

Its term is the number of this start. It stands aside while agents know of another leader (``core.lease_alone``): then
the store is one of several of its cluster. The same face as ``control.leadership``.
"""

import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from math import inf
from typing import NoReturn

import trio
from attrs import define, field

from llmgw.control.tenure import Tenure
from llmgw.core.explain import Considered, Explanation, Fact
from llmgw.core.lease_alone import Aside, Hearsay, Lift
from llmgw.core.lease_explained import Leader, Readiness, Transition, conflict
from llmgw.core.lease_facts import Addresses, LeaseLimits
from llmgw.core.term import Term
from llmgw.store.errors import StoreUnavailable
from llmgw.store.face import Store
from llmgw.store.leader import lift, term_of

AGAIN_S = 1.0
WHY = "the store is SQLite, and this process holds its lock"


async def _nothing(tenure: Tenure) -> None:
    await tenure.leaving.wait()


@define(eq=False)
class Alone:
    """Made by ``await Alone.load(store, limits)``; ``run`` is a service. ``led_under``: while it leads, its term."""

    store: Store
    led_under: Term
    limits: LeaseLimits = field(factory=LeaseLimits)
    lead: Callable[[Tenure], Awaitable[object]] = _nothing
    on_transition: Callable[[Transition], None] = lambda told: None
    report: Callable[[BaseException], None] = lambda error: None
    addresses: Addresses = field(factory=Addresses)
    since: float = field(factory=trio.current_time)  # it has led, or stood aside
    changed: trio.Event = field(factory=trio.Event, init=False)
    ready: bool = field(default=False, init=False)
    _hearsay: Hearsay = field(init=False)
    _tenure: Tenure = field(init=False)
    _aside: Aside | None = field(default=None, init=False)
    _conflict: Term | None = field(default=None, init=False)
    _above: Term | None = field(default=None, init=False)
    _to_lift: trio.Event = field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self._tenure = Tenure(self)
        self._hearsay = Hearsay(self.limits.ttl)

    @classmethod
    async def load(cls, store: Store, limits: LeaseLimits) -> "Alone":
        return cls(store, await store.read(term_of), limits)

    # -- questions ------------------------------------------------------------------------------------

    def may_act(self) -> bool:
        return self._above is None and self._aside is None

    @property
    def term(self) -> Term | None:
        """None: it stands aside."""
        return self.led_under if self._aside is None else None

    @property
    def away_s(self) -> float:
        """It asks nothing of the store by itself."""
        return 0.0

    def leader(self) -> Leader:
        since, state = trio.current_time() - self.since, "aside" if self._aside else "leading"
        return Leader(
            self.addresses.name, self.addresses, True, state, self.led_under, since, None, 0, self.ready
        )  # fmt: skip

    def explain(self) -> Explanation:
        here, aside, age_s = self._here, self._aside, trio.current_time() - self.since
        if aside is None:
            verdict, fact = f"{here}, this control plane, leads, term {self.led_under}", Fact(WHY, age_s)
            change = "a store that two can share: store.url = postgresql://…"
        else:
            verdict, fact = f"{here}, this control plane, stands aside", Fact(aside.why, age_s)
            change = aside.way_out
        because = (Considered(here, aside is None, () if aside is None else (_how_long(aside, age_s),)),)
        return Explanation("leader", verdict, (fact,), because, (change,), "llmgw ctl leader")

    def readiness(self, offline_grace_s: float) -> Readiness:
        if self._aside is not None:
            return Readiness(False, f"does not lead: {self._aside.why}", elsewhere=True)
        return Readiness(True, f"leads, term {self.led_under}")

    # -- what others tell -----------------------------------------------------------------------------

    def reached_at(self, addresses: Addresses) -> None:
        self.addresses = addresses

    def told(self, agent: str, seen: Term, heard_s: float | None) -> None:
        """An agent has obeyed a term that ours is not above: the store went back in time, or is one of several."""
        if self._aside is not None:
            return
        if seen.conflicts_with(self.led_under) and self._conflict != seen:
            self._conflict = seen
            self._say("leader.store_back", conflict(agent, seen))
        match self._hearsay.judge(self.led_under, agent, seen, heard_s, trio.current_time()):
            case Aside() as aside:
                self._stand_aside(aside)
            case Lift(above) if self._above is None or above.is_newer_than(self._above):
                self._above = above
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
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._lift)
            while True:
                if self._aside is None:
                    self._say("leader.began", f"{self._here} leads, term {self.led_under}")
                    await self._lead()
                await self._wait_aside()
        raise AssertionError("a service ends by being cancelled")

    async def _lead(self) -> None:
        """Until it stands aside."""
        self._tenure = Tenure(self)
        while self._aside is None:
            try:
                with self._tenure.scope:
                    await self.lead(self._tenure)
            except* Exception as errors:
                self.report(errors)
            await trio.sleep(AGAIN_S)

    async def _wait_aside(self) -> None:
        assert self._aside is not None
        await trio.sleep_until(self.since + self._aside.for_s)
        self._aside, self.since = None, trio.current_time()

    def _stand_aside(self, aside: Aside) -> None:
        self._aside, self.since, self._above = aside, trio.current_time(), None
        self._tenure.leaving.set()
        self._tenure.scope.deadline = self.since + self.limits.acks_within
        self._say("leader.store_back", f"{self._here} stands aside, {_how_long(aside, 0.0)}: {aside.why}")

    async def _lift(self) -> NoReturn:
        """The term is put above what was seen, and agents come back."""
        while True:
            await self._to_lift.wait()
            self._to_lift, above = trio.Event(), self._above
            if above is None:  # it stands aside
                continue
            try:
                self.led_under = await self.store.write(
                    partial(lift, term=self.led_under, above=above, nonce=secrets.token_hex(8))
                )
            except StoreUnavailable as error:
                self.report(error)
                await trio.sleep(AGAIN_S)
                self._to_lift.set()
                continue
            if self._above is above:
                self._above = None
            now = f"this leader's is {self.led_under} now"
            self._say("leader.lifted", f"agents had obeyed term {above}: the store went back in time; {now}")

    @property
    def _here(self) -> str:
        return self.addresses.name or "this control plane"

    def _say(self, kind: str, sentence: str) -> None:
        self.on_transition(Transition(kind, sentence, self.led_under))


def _how_long(aside: Aside, for_s: float) -> str:
    return "until it is started again" if aside.for_s == inf else f"for {max(0.0, aside.for_s - for_s):.1f} s"
