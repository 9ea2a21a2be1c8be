"""The bands, and what each may: how full its pool may be, what it is due, how long it may wait."""

from collections.abc import Mapping
from enum import StrEnum
from math import inf

from attrs import field, frozen

from llmgw.core.identity import Band
from llmgw.core.settings import Unit, setting

CEILINGS = {Band.PLATINUM.value: 2.0, Band.GOLD.value: 1.0, Band.SILVER.value: 0.95, Band.BRONZE.value: 0.9}
TTL_S = {Band.PLATINUM.value: 30.0, Band.GOLD.value: 60.0, Band.SILVER.value: 120.0, Band.BRONZE.value: 600.0}


class Mode(StrEnum):
    OFF = "off"
    SHADOW = "shadow"
    ON = "on"


@frozen
class AdmissionLimits:
    """``[admission]``"""

    mode: str = setting(
        "on", Unit.TEXT, "off: nobody waits; shadow: nobody waits, and it is reckoned who would", choices=tuple(Mode)
    )
    ceilings: Mapping[str, float] = setting(
        None, Unit.TABLE, "a band is admitted while its pool's saturation is below this; 1 is full",
        of=Unit.RATIO, factory=lambda: dict(CEILINGS),
    )  # fmt: skip
    floors: Mapping[str, float] = setting(
        None, Unit.TABLE, "share of grants a band is due while it waits, whatever waits above it",
        of=Unit.RATIO, factory=lambda: dict.fromkeys(CEILINGS, 0.0),
    )  # fmt: skip
    ttl: Mapping[str, float] = setting(
        None, Unit.TABLE, "how long one may wait in queues, by band", of=Unit.SECONDS, factory=lambda: dict(TTL_S)
    )
    queue_limit: float = setting(5.0, Unit.RATIO, "requests waiting in an engine that make it full", at_least=1)
    kv_limit: float = setting(0.8, Unit.RATIO, "share of its KV cache that makes it full", at_least=0.05, at_most=1)
    sample_stale: float = setting(
        2.0, Unit.SECONDS, "a sample this old is dropped; of an engine that had them, and we were awake, it means full",
        at_least=0.1,
    )  # fmt: skip
    queue_seats_max: int = setting(1000, Unit.COUNT, "requests of one band that may wait, over all pools", at_least=1)
    queue_bytes_max: int = setting(64 * 1024**2, Unit.BYTES, "what their bodies may hold together", at_least=1024)
    overflow_after: float = setting(
        10.0, Unit.SECONDS, "whoever has waited this long takes a fallback on saturated, if the model has one"
    )
    tenants_max: int = setting(1000, Unit.COUNT, "tenants counted by name in a pool's queue", at_least=1)

    def rules(self, own: "PoolBands | None" = None) -> "tuple[BandRule, ...]":
        """One a band, the highest first. A pool's own word comes before this, and what neither says has its default."""
        own = own or PoolBands()
        ceilings, ttl = {**CEILINGS, **self.ceilings, **own.ceilings}, {**TTL_S, **self.ttl, **own.ttl}
        floors = {**self.floors, **own.floors}
        return tuple(
            BandRule(band, ceilings[band.value], floors.get(band.value, 0.0), ttl[band.value]) for band in Band
        )


@frozen
class PoolBands:
    """What one model says of its bands, in place of ``[admission]``."""

    ceilings: Mapping[str, float] = field(factory=dict)
    floors: Mapping[str, float] = field(factory=dict)
    ttl: Mapping[str, float] = field(factory=dict)


@frozen
class BandRule:
    band: Band
    ceiling: float  # saturation below which it is granted
    floor: float = 0.0  # share of grants it is due while somebody of it waits
    ttl_s: float = inf  # how long one may wait
