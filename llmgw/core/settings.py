"""How a setting describes itself: its default, its unit, what it is for.

Each room owns a frozen class of limits made of these fields; ``config`` reads the metadata to parse
``"30s"`` and ``"64MiB"``, to refuse what makes no sense, and to write the example file.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any

import attrs


class Unit(Enum):
    SECONDS = "duration"  # "250ms", "30s", "5min", "1h"; a bare number is seconds
    BYTES = "size"  # "512", "64KiB", "1GiB"; a bare number is bytes
    COUNT = "count"
    RATIO = "ratio"
    TEXT = "text"
    FLAG = "flag"
    ADDRESS = "address"  # "127.0.0.1:7440", "[::1]:7440"
    PATH = "path"
    SECRET = "secret"  # "@/path", "@name" or the value itself
    LIST = "list"  # of text
    TABLE = "table"  # name -> value of `of`


def setting(
    default: Any,
    unit: Unit,
    help: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    choices: tuple[str, ...] = (),
    of: Unit | None = None,
    factory: Callable[[], Any] | None = None,
) -> Any:
    """An attrs field with what the config, its example and its errors need to know.

    Durations are floats in seconds, sizes are ints in bytes. ``of`` is the unit of a table's values.
    """
    metadata = {
        "unit": unit,
        "help": help,
        "at_least": at_least,
        "at_most": at_most,
        "choices": choices,
        "of": of,
    }
    if factory is not None:
        return attrs.field(factory=factory, metadata=metadata)
    return attrs.field(default=default, metadata=metadata)
