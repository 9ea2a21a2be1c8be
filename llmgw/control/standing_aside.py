"""For how long a control plane that leads no more serves what it knew of replicas.

As long as balancers need to notice that it is not ready, and until whoever came before that has been sent somewhere.
From then on nobody tells it what becomes of replicas: new requests are refused, those that run are finished.
"""

from collections.abc import Callable, Iterable, Mapping, Sized
from typing import NoReturn, Protocol

import trio
from attrs import define, field

from llmgw.control.publishing import Routes
from llmgw.core.replicas import Phase, Replica

EVERY_S = 0.25


class UnderWay(Protocol):
    """A request at this gateway."""

    received: float

    @property
    def tries(self) -> Sized:
        """The engines that it was sent to."""


@define(eq=False)
class StandingAside:
    """Stands between whoever leads and the gateway; ``route`` tells that, ``routes`` is what was told last.

    ``another_leads``: this process stands by, and is not ready for that reason. ``pause_s``: server.balancer_pause.
    """

    another_leads: Callable[[], bool]
    pause_s: Callable[[], float]
    under_way: Callable[[], Iterable[UnderWay]]
    tell: Callable[[Routes], None]
    routes: Routes = field(factory=dict, init=False)
    _since: float | None = field(default=None, init=False)  # so long it has not been ready
    _known: Routes = field(factory=dict, init=False)  # until it stood aside

    def route(self, routes: Routes) -> None:
        self.routes = routes
        self.tell(routes)

    def lead(self, rows: Mapping[str, Replica]) -> Routes:
        """A term of ours begins: what was known and still is a row serves at once. An incarnation never moves."""
        known, self._known, self._since = self.routes or self._known, {}, None
        there = {row.endpoint_id for row in rows.values() if row.phase is Phase.WANTED}
        kept = {model: tuple(one for one in its if one.id in there) for model, its in known.items()}
        routes = {model: its for model, its in kept.items() if its}
        if routes != self.routes:
            self.route(routes)
        return routes

    async def run(self) -> NoReturn:
        """Service."""
        while True:
            self.look(trio.current_time())
            await trio.sleep(EVERY_S)

    def look(self, now: float) -> None:
        if not self.another_leads():
            self._since = None
            return
        if self._since is None:
            self._since = now
        until = self._since + self.pause_s()
        if self.routes and now >= until and not self._waits(until):
            self._known = self.routes
            self.route({})

    def _waits(self, until: float) -> bool:
        """Somebody who came in time has not been sent to an engine yet."""
        return any(one.received <= until and not len(one.tries) for one in self.under_way())
