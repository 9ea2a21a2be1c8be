"""How full an endpoint and a pool are (design: admission)."""

from attrs import frozen


@frozen
class Sample:
    """One scrape of an engine's metrics. ``at`` on Trio's clock; None = the engine does not say."""

    at: float
    running: int | None = None
    waiting: int | None = None
    waiting_capacity: int | None = None  # waiting for a slot, where the engine tells reasons apart
    kv: float | None = None  # 0..1, the worst of several data-parallel ranks
    loaded_adapters: frozenset[str] = frozenset()
    adapters_max: int | None = None
    process_start: float | None = None  # another value: a new engine process
