"""``30d``, ``12h`` or a date: when a key ends, how long something shall last."""

import re

import click

from llmgw.cli.failure import Exit, Failure
from llmgw.control.key_entries import TIME_MAX, seconds_of

UNITS_S = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400, "y": 365 * 86400}


def ends_at(text: str | None, now: float) -> float | None:
    """Wall-clock seconds; None for never. A date without a zone is UTC."""
    if not text or text == "never":
        return None
    ends = _seconds(text, now)
    if ends is not None and ends >= TIME_MAX:
        raise Failure(f"--expires {text!r} is thousands of years away", Exit.USAGE, "say never, or 1y")
    return ends


def _seconds(text: str, now: float) -> float | None:
    if found := re.fullmatch(r"(\d{1,6})(s|min|h|d|w|y)", text):
        return now + int(found[1]) * UNITS_S[found[2]]
    if text.isdigit():
        raise Failure(f"--expires {text!r} has no unit", Exit.USAGE, f"say {text}d, {text}h, or a date")
    try:
        return seconds_of(text)
    except ValueError as error:
        raise Failure(f"--expires {text!r} is no time", Exit.USAGE, "say 30d, 12h, 2030-01-31 or never") from error


def span_s(span: str, option: str) -> int:
    """Seconds, from 1. Raises click.UsageError, which names the option."""
    found = re.fullmatch(r"(\d{1,6})(s|m|min|h|d|w)", span.strip())
    if not found or not int(found[1]):
        raise click.UsageError(f"{option} {span!r} is no span of time; say 30min, 24h or 7d")
    return int(found[1]) * UNITS_S[found[2]]
