"""What became of the requests of a modelled gateway: waits, first tokens, throughput, by band."""

from collections import Counter
from collections.abc import Iterable
from math import ceil

from attrs import frozen

from llmgw.core.identity import Band
from sim.admitting import Gateway
from sim.queueing import Fate


def quantile(values: Iterable[float], share: float) -> float:
    """The least value that ``share`` of them do not pass; 0 of none."""
    known = sorted(values)
    return known[max(0, ceil(share * len(known)) - 1)] if known else 0.0


@frozen
class Times:
    """Seconds."""

    p50: float
    p99: float


def times(values: Iterable[float]) -> Times:
    known = list(values)
    return Times(quantile(known, 0.5), quantile(known, 0.99))


@frozen
class Figures:
    """Of one band."""

    requests: int  # that were over, whatever became of them
    per_s: float  # of those that were served
    wait: Times
    ttft: Times
    total: Times
    fates: Counter[Fate]


def figures(gateway: Gateway, band: Band, since: float = 0.0) -> Figures:
    """Of the requests of a band that arrived after ``since``, and were over by now."""
    over = [work for work in gateway.done if work.band is band and work.arrived >= since]
    done = [work for work in over if work.fate is Fate.DONE]
    ended = sum(1 for work in gateway.done if work.band is band and work.fate is Fate.DONE and work.ended_at >= since)
    span = gateway.agenda.now - since
    return Figures(
        len(over),
        ended / span if span else 0.0,
        times(work.wait_s for work in done),
        times(work.ttft_s for work in done),
        times(work.total_s for work in done),
        Counter(work.fate for work in over),
    )


def grants(gateway: Gateway, since: float = 0.0) -> Counter[Band]:
    """How many of each band went on after they had waited."""
    return Counter(band for at, band in gateway.grants if at >= since)
