"""Plain requests at a rate, for journeys that count what fails."""

import trio
from attrs import define, field

from tests.journeys.clustering import Asked
from tests.journeys.talking import Clients, chat


@define(eq=False)
class Steady:
    """So many a second, whatever becomes of them."""

    clients: Clients
    a_second: float
    asked: list[Asked] = field(factory=list, init=False)
    over: bool = field(default=False, init=False)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            at = trio.current_time()
            while not self.over:
                at += 1 / self.a_second
                await trio.sleep_until(at)
                nursery.start_soon(self._one)

    async def _one(self) -> None:
        began = trio.current_time()
        try:
            answer = await self.clients.ask(chat("plain", max_tokens=1))
        except (trio.BrokenResourceError, OSError):
            answer = None
        self.asked.append(Asked(began, trio.current_time(), answer))

    def failed(self) -> list[Asked]:
        return [one for one in self.asked if one.answer is None or one.answer.status != 200 or not one.answer.whole]
