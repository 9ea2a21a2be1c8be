"""What an operator asks of a key, parsed once: one to make, or many to bring along."""

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from attrs import frozen

from llmgw.control.nearest import meant
from llmgw.core.identity import Band, Declined, KeyRecord, digest, shown, well_formed

NAME_MAX = 64
NOTE_MAX = 256
KEY_MIN, KEY_MAX = 8, 512
TIME_MAX = 1e11  # wall-clock seconds; beyond it milliseconds are meant, or nothing
HASHED = "sha256:"
PROBLEMS_SHOWN = 20
FIELDS = {"tenant", "band", "models", "expires_at", "note"}


@frozen
class KeyEntry:
    """``models`` empty: every model. ``expires_at``: wall-clock seconds."""

    tenant: str
    band: Band = Band.GOLD
    models: frozenset[str] = frozenset()
    expires_at: float | None = None
    note: str = ""
    key: str = ""  # for an import: the key itself, or ``sha256:<hex>`` of it; its repr must never be logged

    def __repr__(self) -> str:
        return f"KeyEntry(tenant={self.tenant!r}, band={str(self.band)!r}, key=***)"


def key_entry(raw: Mapping[str, Any], *, with_key: bool = False) -> KeyEntry | Declined:
    """One entry from JSON, TOML or CSV. Unknown fields are refused; times are seconds or ISO 8601."""
    allowed = FIELDS | ({"key"} if with_key else set())
    if strange := sorted(raw.keys() - allowed):
        return Declined("invalid", f"unknown field {strange[0]!r}", meant(strange[0], allowed))
    for needed in ("tenant", "key") if with_key else ("tenant",):
        if not isinstance(raw.get(needed), str) or not raw[needed]:
            return Declined("invalid", f"{needed} is missing", f"give {needed} as text")
    try:
        return KeyEntry(
            tenant=raw["tenant"],
            band=band_of(raw.get("band")),
            models=frozenset(_names(raw.get("models"))),
            expires_at=seconds_of(raw.get("expires_at")),
            note=_text(raw.get("note")),
            key=raw.get("key", ""),
        )
    except ValueError as error:
        return Declined("invalid", str(error))


def unfit(entry: KeyEntry, now: float, known_models: Collection[str] | None) -> Declined | None:
    """Why no such key may be made, the key itself aside."""
    if not (0 < len(entry.tenant) <= NAME_MAX and entry.tenant.isprintable() and entry.tenant.strip() == entry.tenant):
        return Declined("invalid", f"a tenant's name has 1 to {NAME_MAX} printable characters, no space at its ends")
    if len(entry.note) > NOTE_MAX or not entry.note.isprintable():
        return Declined("invalid", f"a note has at most {NOTE_MAX} printable characters")
    if entry.expires_at is not None and entry.expires_at <= now:
        return Declined("invalid", "the key would have expired already", "give a time to come")
    strange = sorted(entry.models.difference(known_models)) if known_models is not None else []
    if known_models is not None and strange:
        return Declined("unknown_model", f"no model is called {strange[0]!r}", meant(strange[0], known_models))
    return None


def imported(
    entries: Sequence[KeyEntry], ids: Sequence[str], now: float, known_models: Collection[str] | None
) -> list[KeyRecord] | Declined:
    """The records of an import, or every problem in it (``entry 3: …``), so that one correction is enough."""
    problems: list[str] = []
    first: dict[bytes, int] = {}
    records = []
    for number, (entry, id) in enumerate(zip(entries, ids, strict=True), start=1):
        hashed = _hashed(entry.key)
        problem = unfit(entry, now, known_models) or (hashed if isinstance(hashed, Declined) else None)
        if problem is not None or isinstance(hashed, Declined):
            problems.append(f"entry {number}: {problem}")
            continue
        if hashed in first:
            problems.append(f"entry {number}: the same key as entry {first[hashed]}")
        first.setdefault(hashed, number)
        records.append(_record(entry, id, hashed, now))
    if not entries:
        problems.append("there is no entry in it")
    return nothing_imported(problems) if problems else records


def nothing_imported(problems: Sequence[str], code: str = "invalid") -> Declined:
    more = f"; and {len(problems) - PROBLEMS_SHOWN} more" if len(problems) > PROBLEMS_SHOWN else ""
    return Declined(code, "nothing was imported: " + "; ".join(problems[:PROBLEMS_SHOWN]) + more)


def as_json(record: KeyRecord) -> dict[str, Any]:
    """What may be shown of a key, as the admin API, ctl and the audit show it."""
    return {
        "id": record.id,
        "shown": record.shown,
        "tenant": record.tenant,
        "band": str(record.band),
        "models": sorted(record.models),
        "created_at": record.created_at,
        "expires_at": record.expires_at,
        "revoked_at": record.revoked_at,
        "note": record.note,
    }


def band_of(value: object) -> Band:
    if value in (None, ""):
        return Band.GOLD
    try:
        return Band(str(value))
    except ValueError:
        raise ValueError(f"no band is called {value!r}; {meant(str(value), [str(b) for b in Band])}") from None


def seconds_of(value: object) -> float | None:
    """Wall-clock seconds from a number or ISO 8601; without a zone it is UTC."""
    if value in (None, ""):
        return None
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < TIME_MAX:
        return float(value)
    try:
        when = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        raise ValueError(f"expires_at {value!r} is neither seconds since 1970 nor a date like 2030-01-31") from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def digest_in(text: str) -> bytes | None:
    """The digest that ``sha256:<64 hexadecimal digits>`` names."""
    try:
        found = bytes.fromhex(text.removeprefix(HASHED)) if text.startswith(HASHED) else b""
    except ValueError:
        return None
    return found if len(found) == 32 else None


def as_entry(entry: KeyEntry) -> dict[str, Any]:
    """What ``key_entry`` reads, as JSON."""
    return {
        "tenant": entry.tenant,
        "band": str(entry.band),
        "models": sorted(entry.models),
        "expires_at": entry.expires_at,
        "note": entry.note,
    } | ({"key": entry.key} if entry.key else {})


def _names(value: object) -> list[str]:
    if value in (None, ""):
        return []
    if isinstance(value, str):  # CSV: separated by space or semicolon
        return value.replace(";", " ").split()
    if isinstance(value, list | tuple) and all(isinstance(v, str) and v for v in value):
        return list(value)
    raise ValueError(f"models must be a list of names, not {json.dumps(value, default=str)}")


def _text(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError("note must be text")
    return value


def _hashed(key: str) -> bytes | Declined:
    if key.startswith(HASHED):
        return digest_in(key) or Declined("invalid", "sha256: needs 64 hexadecimal digits after it")
    if not KEY_MIN <= len(key) <= KEY_MAX or not key.isascii() or not key.isprintable() or " " in key:
        return Declined("invalid", f"a key has {KEY_MIN} to {KEY_MAX} visible ASCII characters and no space")
    if not well_formed(key):
        return Declined("invalid", f"{shown(key)} claims to be ours but its checksum is wrong", "copy it again, whole")
    return digest(key)


def _record(entry: KeyEntry, id: str, hashed: bytes, now: float) -> KeyRecord:
    shows = f"{HASHED}{hashed.hex()[:8]}…" if entry.key.startswith(HASHED) else shown(entry.key)
    return KeyRecord(id, hashed, shows, entry.tenant, entry.band, entry.models, now, entry.expires_at, note=entry.note)
