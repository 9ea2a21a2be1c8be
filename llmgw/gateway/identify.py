"""Who asks: the key in a request's headers, and what the gateway may say when it is none."""

from llmgw.core.identity import KeyRecord, KeyRing, well_formed
from llmgw.core.outcome import Outcome, Refusal
from llmgw.gateway.exchange import Headers

# One text for unknown, revoked and expired: what a stranger may learn of a key is nothing.
_WRONG = Refusal(Outcome.UNAUTHENTICATED, "the API key is not valid here; check it, or ask your operator for one")
_MISSING = Refusal(
    Outcome.UNAUTHENTICATED,
    "no API key was given; send it as `Authorization: Bearer sk-…`, `x-api-key` or `api-key`",
)


def identify(headers: Headers, ring: KeyRing, now: float) -> KeyRecord | Refusal:
    """The record behind a request's key; ``now`` in wall-clock seconds."""
    given = keys_in(headers)
    if not given:
        return _MISSING
    chosen = next((key for key in given if well_formed(key)), None)
    if chosen is None:
        return _WRONG
    return ring.find(chosen, now) or _WRONG


def keys_in(headers: Headers) -> list[str]:
    """Every key given: Authorization first, then x-api-key, then api-key."""
    found: dict[bytes, str] = {}
    for name, value in headers:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            if scheme.lower() == b"bearer" and key.strip():
                found.setdefault(name, key.strip().decode("latin-1"))
        elif name in (b"x-api-key", b"api-key") and value.strip():
            found.setdefault(name, value.strip().decode("latin-1"))
    return [found[name] for name in (b"authorization", b"x-api-key", b"api-key") if name in found]
