"""Who sends what to a modelled gateway, and when."""

from collections.abc import Callable
from math import inf
from random import Random

from attrs import define, field, frozen

from llmgw.core.identity import Band
from sim.admitting import Gateway
from sim.queueing import Fate, Work


@frozen
class Ask:
    """What one kind of request takes on an engine that has a slot for it."""

    band: Band
    tenant: str = ""  # empty: the band's name
    first_s: tuple[float, float] = (0.2, 0.3)  # first token, least and most
    decode_s: float = 2.0  # mean; lengths are exponential, as nobody knows where an answer ends
    fixed: bool = False  # lengths are not drawn
    kv: tuple[int, int] = (0, 0)  # tokens it holds, least and most
    patience_s: float = inf  # mean of when its client leaves

    def work(self, now: float, rng: Random, over: Callable[[Work], None] | None = None) -> Work:
        decode_s = self.decode_s if self.fixed or not self.decode_s else rng.expovariate(1 / self.decode_s)
        return Work(
            self.band,
            self.tenant or self.band.value,
            rng.uniform(*self.first_s),
            decode_s,
            now,
            kv=rng.randint(*self.kv),
            patience_s=inf if self.patience_s == inf else rng.expovariate(1 / self.patience_s),
            over=over,
        )


@define(eq=False)
class Load:
    gateway: Gateway
    ask: Ask
    rng: Random
    until: float = field(default=inf, kw_only=True)
    sent: int = field(default=0, init=False)

    def _arrive(self, over: Callable[[Work], None] | None = None) -> None:
        self.sent += 1
        self.gateway.arrive(self.ask.work(self.gateway.agenda.now, self.rng, over))


@define(eq=False)
class Closed(Load):
    """So many at any time: each that is over is replaced at once, or as soon as it was told to come back."""

    count: int = field(kw_only=True)

    def start(self, at: float = 0.0) -> "Closed":
        for _ in range(self.count):
            self.gateway.agenda.after(at - self.gateway.agenda.now, self._arrive, self._replace)
        return self

    def _replace(self, work: Work) -> None:
        agenda = self.gateway.agenda
        if agenda.now >= self.until:
            return
        if work.fate is Fate.FULL:
            agenda.after(work.retry_after_s, self._arrive, self._replace)
        else:
            self._arrive(self._replace)


@define(eq=False)
class Poisson(Load):
    """Independent of each other; ``size`` come together."""

    rate: float = field(kw_only=True)  # of arrivals, a second
    size: int = field(default=1, kw_only=True)

    def start(self, at: float = 0.0) -> "Poisson":
        self.gateway.agenda.after(at - self.gateway.agenda.now + self._pause(), self._come)
        return self

    def _pause(self) -> float:
        return self.rng.expovariate(self.rate)

    def _come(self) -> None:
        if self.gateway.agenda.now >= self.until:
            return
        for _ in range(self.size):
            self._arrive()
        self.gateway.agenda.after(self._pause(), self._come)
