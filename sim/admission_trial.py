"""What interactive requests feel while batch jobs run, with admission on and off: ``python -m sim.admission_trial``.

Three engines of 32 slots, 500 bronze requests at any time, and interactive platinum ones; the figures are held
against the same platinum requests on idle engines.
"""

from random import Random
from statistics import median

from attrs import evolve, field, frozen

from llmgw.core.bands import AdmissionLimits
from llmgw.core.identity import Band
from sim.admitting import Gateway, Told
from sim.figures import Figures, figures
from sim.loads import Ask, Closed, Poisson
from sim.queueing import Agenda

OFF, ON = AdmissionLimits(mode="off"), AdmissionLimits(mode="on")


@frozen
class Trial:
    """The load and the pool. Seconds."""

    engines: tuple[Told, ...] = (Told(capacity=32),) * 3
    limits: AdmissionLimits = ON
    bronze: int = 500
    platinum_per_s: float = 3.0
    burst: int = 1
    asks: tuple[Ask, Ask] = (Ask(Band.BRONZE), Ask(Band.PLATINUM, decode_s=1.0))
    warm_s: float = 30.0
    lasts_s: float = 300.0


@frozen
class Result:
    platinum: Figures
    bronze: Figures
    unqueued_s: float  # how long before the end some engine's queue was last empty; 0: now
    gateway: Gateway = field(repr=False)


def run(trial: Trial, seed: int) -> Result:
    """The same seed gives the same platinum requests at the same times, whatever else is different."""
    gateway = Gateway(Agenda(), Random(f"gateway {seed}"), trial.engines, trial.limits)
    bronze, platinum = trial.asks
    if trial.bronze:
        Closed(gateway, bronze, Random(f"bronze {seed}"), count=trial.bronze).start()
    if trial.platinum_per_s:
        rate = trial.platinum_per_s / trial.burst
        Poisson(gateway, platinum, Random(f"platinum {seed}"), rate=rate, size=trial.burst).start(trial.warm_s)
    gateway.agenda.run(trial.warm_s + trial.lasts_s)
    return Result(
        figures(gateway, Band.PLATINUM, trial.warm_s),
        figures(gateway, Band.BRONZE, trial.warm_s),
        gateway.agenda.now - max(one.engine.unqueued_at for one in gateway.stations),
        gateway,
    )


@frozen
class Compared:
    """One seed: platinum's p99 against idle, and bronze's throughput against what it has with admission off."""

    idle: Result
    off: Result
    on: Result

    def ttft(self, one: Result) -> float:
        return one.platinum.ttft.p99 / self.idle.platinum.ttft.p99

    def total(self, one: Result) -> float:
        return one.platinum.total.p99 / self.idle.platinum.total.p99

    @property
    def bronze(self) -> float:
        return self.on.bronze.per_s / self.off.bronze.per_s


def compared(trial: Trial, seed: int) -> Compared:
    idle = run(evolve(trial, bronze=0), seed)
    return Compared(idle, run(evolve(trial, limits=OFF), seed), run(trial, seed))


def with_ceiling(bronze: float) -> AdmissionLimits:
    """The default limits but for bronze's ceiling."""
    return AdmissionLimits(ceilings={"platinum": 2.0, "gold": 1.0, "silver": max(0.95, bronze), "bronze": bronze})


def table(found: list[Compared]) -> str:
    head = "| seed | first token: idle | off | on | whole: idle | off | on | bronze/s: off | on | of off |"
    lines = [head, "| --- " * 10 + "|"]
    for seed, one in enumerate(found):
        idle, off, on = one.idle, one.off, one.on
        ttft = f"{idle.platinum.ttft.p99:.3f} s | {one.ttft(off):.1f}x | {one.ttft(on):.2f}x"
        total = f"{idle.platinum.total.p99:.2f} s | {one.total(off):.1f}x | {one.total(on):.2f}x"
        rates = f"{off.bronze.per_s:.1f} | {on.bronze.per_s:.1f} | {one.bronze:.0%}"
        lines.append(f"| {seed} | {ttft} | {total} | {rates} |")
    return "\n".join(lines)


def ceilings_table(seeds: int, decode_s: float) -> str:
    """By bronze's ceiling, the median of the seeds: for single arrivals and for bursts of ten."""
    lines = [
        f"| bronze's ceiling, jobs of {decode_s:g} s | first token, p99 | in bursts of ten | bronze of off |",
        "| --- " * 4 + "|",
    ]
    asks = (evolve(Trial().asks[0], decode_s=decode_s), Trial().asks[1])
    for ceiling in (1.0, 0.95, 0.9, 0.85, 0.8):
        trial = Trial(limits=with_ceiling(ceiling), asks=asks, warm_s=30.0 + 5 * decode_s)
        single = [compared(trial, seed) for seed in range(seeds)]
        bursts = [compared(evolve(trial, burst=10), seed) for seed in range(seeds)]
        ttft, in_bursts = (median(one.ttft(one.on) for one in found) for found in (single, bursts))
        bronze = median(one.bronze for one in single)
        lines.append(f"| {ceiling:g} | {ttft:.2f}x | {in_bursts:.2f}x | {bronze:.0%} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table([compared(Trial(), seed) for seed in range(10)]))
    for seconds in (2.0, 20.0):
        print(f"\n{ceilings_table(3, seconds)}")
