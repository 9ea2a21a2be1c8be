"""What shadow mode found, for an operator who wonders whether to switch admission on."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from llmgw.core.identity import Band
from llmgw.gateway.shadow import FIRSTS_S, WAITS_S, added

CULPRITS_SHOWN = 5
Row = tuple[str, str, str, Mapping[str, Any]]  # model, band, tenant, a tally as JSON


def report(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """One a pool, by name: its bands from the top, and whose requests others waited behind, most first."""
    bands: dict[str, dict[str, dict[str, Any]]] = {}
    for model, band, _, tally in rows:
        of = bands.setdefault(model, {})
        of[band] = added(of.get(band, {}), tally)
    return [_pool(model, of) for model, of in sorted(bands.items())]


def _pool(model: str, bands: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    blamed: Counter[str] = Counter()
    for tally in bands.values():
        blamed.update(tally["blamed"])
    culprits = [_culprit(who, seconds) for who, seconds in blamed.most_common(CULPRITS_SHOWN) if seconds > 0]
    shown = [_band(band.value, bands[band.value]) for band in Band if band.value in bands]
    return {"model": model, "bands": shown, "culprits": culprits, "verdict": _verdict(shown, culprits)}


def _band(band: str, tally: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "band": band,
        "requests": tally["requests"],
        "wait_p50_s": quantile(WAITS_S, tally["waits"], 0.5),
        "wait_p99_s": quantile(WAITS_S, tally["waits"], 0.99),
        "would_503": tally["would"].get("503", 0),
        "would_504": tally["would"].get("504", 0),
        "first_token_alone_p50_s": quantile(FIRSTS_S, tally["alone"], 0.5),
        "first_token_alone_p99_s": quantile(FIRSTS_S, tally["alone"], 0.99),
        "first_token_behind_p50_s": quantile(FIRSTS_S, tally["behind"], 0.5),
        "first_token_behind_p99_s": quantile(FIRSTS_S, tally["behind"], 0.99),
        "behind": sum(tally["behind"]),
    }


def _culprit(who: str, seconds: float) -> dict[str, Any]:
    band, _, tenant = who.partition("/")
    return {"band": band, "tenant": tenant, "waited_behind_s": round(seconds, 1)}


def _verdict(bands: Sequence[Mapping[str, Any]], culprits: Sequence[Mapping[str, Any]]) -> str:
    hurt = next((one for one in bands if one["behind"]), None)
    if hurt is None or not culprits:
        return "nobody waited behind a lower band in an engine's queue: admission would change little"
    first = culprits[0]
    without = hurt["first_token_alone_p99_s"]
    return (
        f"{hurt['band']} waited behind {first['band']} of tenant {first['tenant']}: its first token took up to "
        f"{hurt['first_token_behind_p99_s']:g} s (p99) then"
        + (f", and {without:g} s otherwise" if without is not None else "")
        + "; with admission on it would go first"
    )


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """The upper bound of the bucket in which that share ends (the highest bound for what is above it); None: empty."""
    wanted, seen = share * sum(counts), 0
    if not wanted:
        return None
    for bound, count in zip(bounds, counts, strict=False):
        seen += count
        if count and seen >= wanted:
            return bound
    return bounds[-1]
