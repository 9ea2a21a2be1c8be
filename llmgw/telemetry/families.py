"""Families of metrics that somebody else reckons at the scrape, as Prometheus' text, a family a piece."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attrs import frozen

from llmgw.telemetry.shown import ESCAPES


@frozen
class Family:
    """``samples``: labels and value; a counter's name ends in ``_total``."""

    name: str
    what: str
    samples: tuple[tuple[Mapping[str, str], float], ...]
    kind: str = "gauge"


def single(name: str, what: str, value: float, kind: str = "gauge") -> Family:
    """Of a single sample, without labels."""
    return Family(name, what, (({}, float(value)),), kind)


def tallied(counts: Mapping[Any, float], labels: Iterable[str]) -> tuple[tuple[Mapping[str, str], float], ...]:
    """Samples of what was counted by these labels, in order: a key is their values, or the value of the only one."""
    names = tuple(labels)
    return tuple(
        (dict(zip(names, key if isinstance(key, tuple) else (key,), strict=True)), float(value))
        for key, value in sorted(counts.items())
    )


def text(families: Iterable[Family]) -> Iterator[bytes]:
    for family in families:
        lines = [f"# HELP {family.name} {family.what}\n# TYPE {family.name} {family.kind}\n"]
        for labels, value in family.samples:
            said = ",".join(f'{key}="{one.translate(ESCAPES)}"' for key, one in labels.items())
            lines.append(f"{family.name}{{{said}}} {value}\n" if said else f"{family.name} {value}\n")
        yield "".join(lines).encode("utf-8", "replace")
