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

_CARRIERS = (b"authorization", b"x-api-key", b"api-key")  # the first that carries a well-formed key is it


def identify(headers: Headers, ring: KeyRing, now: float) -> KeyRecord | Refusal:
    """The record behind a request's key; ``now`` in wall-clock seconds."""
    given = keys_in(headers)
    if isinstance(given, Refusal):
        return given
    if not given:
        return _MISSING
    for name in _CARRIERS:
        key = given.get(name)
        if key is not None and well_formed(key):
            return ring.find(key, now) or _WRONG
    return _WRONG


def keys_in(headers: Headers) -> dict[bytes, str] | Refusal:
    """Every key given, by the header that carries it. One header that gives two is nobody's to choose from."""
    found: dict[bytes, str] = {}
    for name, value in headers:
        if name not in _CARRIERS:
            continue
        key = value.strip()
        if name == b"authorization":
            scheme, _, key = key.partition(b" ")
            key = key.strip() if scheme.lower() == b"bearer" else b""
        text = key.decode("latin-1")
        if text and found.setdefault(name, text) != text:
            return Refusal(Outcome.BAD_REQUEST, f"two different {name.decode()} headers were given; send one")
    return found
