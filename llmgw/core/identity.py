"""Who asks: keys, what they allow, and the snapshot every request looks them up in.

A key is ``sk-llmgw-`` + 32 random base62 characters + 6 characters of CRC-32, so that a typo (and a
leaked-secret scanner) can be told from a key without asking anybody. Keys brought from elsewhere need
no checksum. Only SHA-256 digests are kept.
"""

import hashlib
import hmac
import zlib
from collections.abc import Mapping
from enum import StrEnum

from attrs import field, frozen

PREFIX = "sk-llmgw-"
TOKEN_PREFIX = "llmgw-adm-"  # an operator's token has the form of a key, so a scanner knows it too
ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
BODY_LENGTH = 32
CHECK_LENGTH = 6
SHOWN = 16  # characters of a key that lists and logs may show
WHY_MAX = 500  # characters of a reason: it stands in lists, events and each row that it changes


class Band(StrEnum):
    """Priority classes, highest first."""

    PLATINUM = "platinum"
    GOLD = "gold"
    SILVER = "silver"
    BRONZE = "bronze"


class Role(StrEnum):
    """What an operator may do; each may do what those before it may."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def may(self, needed: "Role") -> bool:
        ranks = list(Role)
        return ranks.index(self) >= ranks.index(needed)


@frozen
class Operator:
    """Who acts on the admin side: the name their token was given, and its role."""

    name: str
    role: Role


@frozen
class TokenRecord:
    """One admin token as the store keeps it."""

    name: str
    digest: bytes = field(repr=False)
    role: Role
    created_at: float
    created_by: str


@frozen
class Declined:
    """Why an operator's change was not made, as a value. ``code`` is for programs, the rest for people."""

    code: str  # "unknown_tenant", "unknown_model", "duplicate", "not_found", "ambiguous", "invalid"
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


@frozen
class KeyRecord:
    """One key as the store keeps it; wall-clock seconds, ``models`` empty = every model."""

    id: str
    digest: bytes  # SHA-256 of the whole key
    shown: str  # the first characters, for lists and logs
    tenant: str
    band: Band = Band.GOLD
    models: frozenset[str] = frozenset()
    created_at: float = 0.0
    expires_at: float | None = None
    revoked_at: float | None = None
    note: str = ""
    band_name: str = field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "band_name", self.band.value)

    def allows(self, model: str) -> bool:
        return not self.models or model in self.models

    def live(self, now: float) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@frozen
class KeyRing:
    """Every key, by digest: what the request road holds while the store is somewhere else."""

    by_digest: Mapping[bytes, KeyRecord] = field(factory=dict, repr=False)
    revision: int = 0

    def find(self, key: str, now: float) -> KeyRecord | None:
        """The live record of a key, or None: unknown, revoked and expired look the same."""
        wanted = digest(key)
        record = self.by_digest.get(wanted)
        # Always compared, so that an unknown key costs what a known one does.
        same = hmac.compare_digest(record.digest if record else wanted, wanted)
        return record if record is not None and same and record.live(now) else None


def digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def new_key(chance: bytes, prefix: str = PREFIX) -> str:
    """A key (or, with TOKEN_PREFIX, an operator's token) from at least 32 random bytes.

    62 does not divide 256, so one byte a character would favour some; a big integer's base-62 digits
    of 32 bytes (256 bits for 190 needed) are even to one part in 2**60.
    """
    if len(chance) < 32:
        raise ValueError("a key needs 32 random bytes")
    body = _base62(int.from_bytes(chance, "big"), BODY_LENGTH)
    return prefix + body + checksum(body, prefix)


def new_id(chance: bytes, prefix: str = "key_") -> str:
    """A short name for what is kept, not secret: 16 random bytes make a collision unthinkable."""
    return prefix + _base62(int.from_bytes(chance, "big"), 16)


def checksum(body: str, prefix: str = PREFIX) -> str:
    return _base62(zlib.crc32((prefix + body).encode("utf-8", "surrogateescape")), CHECK_LENGTH)


def well_formed(key: str, prefix: str = PREFIX) -> bool:
    """Whether a key that claims to be ours carries its checksum; a foreign key is always well formed."""
    if not key.startswith(prefix):
        return True
    rest = key[len(prefix) :]
    return len(rest) == BODY_LENGTH + CHECK_LENGTH and checksum(rest[:BODY_LENGTH], prefix) == rest[BODY_LENGTH:]


def shown(key: str) -> str:
    """What may be shown of a key: never more than a third of it."""
    return key[: min(SHOWN, len(key) // 3)] + "…"


def _base62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, 62)
        digits.append(ALPHABET[digit])
    return "".join(reversed(digits))
