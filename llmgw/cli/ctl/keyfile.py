"""A file of keys to bring along: JSON lines, CSV or TOML, one meaning."""

import csv
import json
import tomllib
from collections.abc import Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from llmgw.cli.failure import Exit, Failure
from llmgw.control.key_entries import KeyEntry, key_entry
from llmgw.core.identity import Declined

FORMATS = ("jsonl", "csv", "toml")
BY_SUFFIX = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".toml": "toml"}


def read_keys(name: str, text: str, form: str | None) -> list[KeyEntry]:
    """Every entry, or a Failure that names every line that is wrong."""
    form = form or BY_SUFFIX.get(Path(name).suffix.lower()) or ("jsonl" if name == "-" else None)
    if form is None:
        raise Failure(f"{name}: which format is it?", Exit.USAGE, f"say --format {'|'.join(FORMATS)}")
    entries, problems = [], []
    for where, raw in _raw(name, text, form):
        entry = raw if isinstance(raw, Declined) else key_entry(raw, with_key=True)
        if isinstance(entry, Declined):
            problems.append(f"{name}:{where}: {entry}")
        else:
            entries.append(entry)
    if problems:
        raise Failure(f"nothing was imported: {name} has problems", Exit.USAGE, problems=tuple(problems[:50]))
    if not entries:
        raise Failure(f"{name} has no key in it", Exit.USAGE, "`llmgw ctl keys import --help` shows the formats")
    return entries


def _raw(name: str, text: str, form: str) -> Iterator[tuple[str, Mapping[str, Any] | Declined]]:
    match form:
        case "jsonl":
            yield from _json_lines(text)
        case "csv":
            for number, row in enumerate(csv.DictReader(StringIO(text)), start=2):
                extra = row.pop(None, None)
                yield str(number), Declined("invalid", "more cells than columns") if extra else row
        case _:
            try:
                found = tomllib.loads(text).get("keys", [])
            except tomllib.TOMLDecodeError as error:
                raise Failure(f"{name}: {error}", Exit.USAGE) from error
            for number, raw in enumerate(found if isinstance(found, list) else [], start=1):
                yield f"keys[{number}]", _table(raw)


def _json_lines(text: str) -> Iterator[tuple[str, Mapping[str, Any] | Declined]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            yield str(number), _table(json.loads(line))
        except ValueError as error:
            yield str(number), Declined("invalid", f"not a JSON object in one line: {error}")


def _table(raw: Any) -> Mapping[str, Any] | Declined:
    return raw if isinstance(raw, dict) else Declined("invalid", "not an object with tenant and key")
