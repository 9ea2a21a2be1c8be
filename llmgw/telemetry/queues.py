"""How waiting looks to Prometheus.

Written as text, a pool at a time: models, bands and tenants multiply, and the loop also relays streams.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from llmgw.telemetry.shown import ESCAPES, cumulative

Facts = Mapping[str, Any]
Lines = Callable[[str, str, Facts], Iterator[str]]


def text(pools: Iterable[Facts]) -> Iterator[bytes]:
    """``pools``: one mapping a pool, with its ``model``; by band ``depth``, ``bytes``, ``waits`` (buckets) and
    ``refusals`` (by reason); ``tenants`` by band and tenant; ``saturation``, None where there is none."""
    facts = list(pools)
    for name, kind, what, lines in _FAMILIES:
        yield f"# HELP {name} {what}\n# TYPE {name} {kind}\n".encode()
        for one in facts:
            model = f'model="{str(one["model"]).translate(ESCAPES)}"'
            yield "".join(lines(name, model, one)).encode("utf-8", "replace")


def _by_band(key: str) -> Lines:
    def lines(name: str, model: str, pool: Facts) -> Iterator[str]:
        for band, value in pool[key].items():
            yield f'{name}{{{model},band="{band}"}} {value}\n'

    return lines


def _waits(name: str, model: str, pool: Facts) -> Iterator[str]:
    for band, buckets in pool["waits"].items():
        if not buckets.count:
            continue  # a band that never waited has no such series
        labels = f'{model},band="{band}"'
        for bound, count in cumulative(buckets):
            yield f'{name}_bucket{{{labels},le="{bound}"}} {count}\n'
        yield f"{name}_sum{{{labels}}} {buckets.sum}\n{name}_count{{{labels}}} {buckets.count}\n"


def _refusals(name: str, model: str, pool: Facts) -> Iterator[str]:
    for band, reasons in pool["refusals"].items():
        for reason, count in reasons.items():
            yield f'{name}{{{model},band="{band}",reason="{reason}"}} {count}\n'


def _tenants(name: str, model: str, pool: Facts) -> Iterator[str]:
    for (band, tenant), count in pool["tenants"].items():
        yield f'{name}{{{model},band="{band}",tenant="{tenant.translate(ESCAPES)}"}} {count}\n'


def _saturation(name: str, model: str, pool: Facts) -> Iterator[str]:
    if pool["saturation"] is not None:
        yield f"{name}{{{model}}} {pool['saturation']}\n"


_FAMILIES: tuple[tuple[str, str, str, Lines], ...] = (
    ("llmgw_pool_saturation", "gauge", "1 is full; absent while no endpoint is usable", _saturation),
    ("llmgw_queue_depth", "gauge", "requests that wait", _by_band("depth")),
    ("llmgw_queue_bytes", "gauge", "what their bodies hold", _by_band("bytes")),
    ("llmgw_queue_wait_seconds", "histogram", "of those that waited and were let through", _waits),
    ("llmgw_queue_refusals_total", "counter", "requests that waited in vain, or found no room to wait", _refusals),
    ("llmgw_queue_tenant_waiting", "gauge", "requests that wait, of tenants that have any", _tenants),
)
