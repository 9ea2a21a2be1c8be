"""What this node says of itself: the whole of it, each time."""

import os
from pathlib import Path

from attrs import define, evolve, field

from agent.faces import Engines, Gpus
from llmgw.core.agent_settings import AgentSettings
from llmgw.tasks.rate import Bucket
from llmgw.wire.agent_frames import FRAME_MAX, Host, Obeys, Report, Tail, line

WHY_MAX = 500
TAILS_PER_S, TAILS_BURST_S = 20.0, 5.0  # with ten reports a second below what a leader lets pass
MIB = 1024  # of KiB


@define(eq=False)
class Reporter:
    """``obeys`` is set when a ``wanted`` was taken in; ``frame_max`` is the leader's bound."""

    settings: AgentSettings
    engines: Engines
    gpus: Gpus
    frame_max: int = FRAME_MAX
    obeys: Obeys = field(factory=Obeys, init=False)
    _seq: int = field(default=0, init=False)

    def report(self) -> Report:
        self._seq += 1
        engines, gpus = self.engines, self.gpus
        return Report(
            self._seq,
            self.obeys,
            host(self.settings, gpus.driver),
            tuple(gpus.seen()),
            engines.seen(),
            engines.orphans(),
            engines.has(),
        )

    def line(self, whole: Report) -> bytes:
        """One that would be too long says less of processes, and of reasons, rather than nothing."""
        text = line(whole)
        return text if len(text) <= self.frame_max else line(shortened(whole))


@define(eq=False)
class Tails:
    """Of one link: all tails first, as its leader may be a new one, then those that something was written to.

    They keep within a rate, the oldest first; of a shard that waits only the newest tail is kept.
    """

    engines: Engines
    _first: bool = field(default=True, init=False)
    _waiting: dict[str, Tail] = field(factory=dict, init=False)
    _rate: Bucket = field(factory=lambda: Bucket(TAILS_PER_S, TAILS_PER_S * TAILS_BURST_S), init=False)

    def due(self, now: float) -> list[Tail]:
        for tail in self._all() if self._first else self.engines.new_tails():
            self._waiting[tail.instance] = tail
        self._first = False
        due = []
        while self._waiting and self._rate.take(1, now):
            due.append(self._waiting.pop(next(iter(self._waiting))))
        return due

    def _all(self) -> list[Tail]:
        return [tail for shard in self.engines.seen() if (tail := self.engines.tail(shard.id)) is not None]


def shortened(report: Report) -> Report:
    gpus = tuple(evolve(gpu, processes=()) for gpu in report.gpus)
    shards = tuple(evolve(shard, why=shard.why[:WHY_MAX], pids=shard.pids[:8]) for shard in report.shards)
    orphans = tuple(evolve(one, why=one.why[:WHY_MAX], pids=one.pids[:8]) for one in report.orphans[:100])
    return Report(report.seq, report.obeys, report.host, gpus, shards, orphans, report.has)


def host(settings: AgentSettings, driver: str) -> Host:
    """The machine, as far as /proc tells."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        text = ""
    kib = {name: int(rest.split()[0]) for name, _, rest in (row.partition(":") for row in text.splitlines()) if rest}
    return Host(
        memory_mib=kib.get("MemTotal", 0) // MIB,
        memory_free_mib=kib.get("MemAvailable", 0) // MIB,
        reserved_mib=settings.memory_reserved // (MIB * MIB),
        cores=os.cpu_count() or 0,
        load=round(os.getloadavg()[0], 2),
        driver=driver,
    )
