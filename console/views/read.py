"""What a value of the management API says; and what stands for one that is null, missing or of another kind.

An older or a newer control plane may answer too, and a screen that fails shows less than one that shows a dash.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, tzinfo
from math import isfinite
from typing import Any

Json = Mapping[str, Any]
NOTHING: Json = {}


def text(row: Json, key: str, otherwise: str = "") -> str:
    value = row.get(key)
    return otherwise if value is None or value == "" else str(value)


def amount(row: Json, key: str) -> float | None:
    """None: nobody knows."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        return None
    return value


def count(row: Json, key: str) -> int:
    """0 where nobody knows."""
    return int(amount(row, key) or 0)


def flag(row: Json, key: str, otherwise: bool = False) -> bool:
    value = row.get(key)
    return value if isinstance(value, bool) else otherwise


def part(row: Json, key: str) -> Json:
    value = row.get(key)
    return value if isinstance(value, Mapping) else NOTHING


def rows(row: Json, key: str) -> Sequence[Json]:
    return [one for one in _listed(row, key) if isinstance(one, Mapping)]


def words(row: Json, key: str) -> Sequence[str]:
    return [str(one) for one in _listed(row, key) if one is not None]


def size(row: Json, key: str) -> int | None:
    """How many there are in a list; None: nobody knows."""
    value = row.get(key)
    return len(value) if isinstance(value, list | tuple) else None


def moment(row: Json, key: str, form: str = "%m-%d %H:%M:%S", zone: tzinfo | None = None) -> str:
    """A wall time, in the console's zone unless said; "": nobody knows, or no calendar has it."""
    at = amount(row, key)
    try:
        return "" if at is None else f"{datetime.fromtimestamp(at, zone):{form}}"
    except (OverflowError, ValueError, OSError):
        return ""


def _listed(row: Json, key: str) -> Sequence[Any]:
    value = row.get(key)
    return value if isinstance(value, list | tuple) else ()
