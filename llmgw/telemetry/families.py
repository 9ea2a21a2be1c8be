"""Families of metrics that somebody else reckons at the scrape, as Prometheus' text, a family a piece."""

from collections.abc import Iterable, Iterator, Mapping

from attrs import frozen

from llmgw.telemetry.shown import ESCAPES


@frozen
class Family:
    """``samples``: labels and value; a counter's name ends in ``_total``."""

    name: str
    what: str
    samples: tuple[tuple[Mapping[str, str], float], ...]
    kind: str = "gauge"


def text(families: Iterable[Family]) -> Iterator[bytes]:
    for family in families:
        lines = [f"# HELP {family.name} {family.what}\n# TYPE {family.name} {family.kind}\n"]
        for labels, value in family.samples:
            said = ",".join(f'{key}="{one.translate(ESCAPES)}"' for key, one in labels.items())
            lines.append(f"{family.name}{{{said}}} {value}\n" if said else f"{family.name} {value}\n")
        yield "".join(lines).encode("utf-8", "replace")
