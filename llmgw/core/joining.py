"""How a node comes in: the join token's text, and what is known of a node that has joined.

A join token is ``llmgw-join-<id>-<secret>-<CA>``: the id may be shown, the secret is kept as a digest, and
``<CA>`` is the first 32 hex digits of the SHA-256 of the CA certificate (DER), so that a machine that has
nothing but the token can tell the real control plane from another. The idea is kubeadm's
(``--discovery-token-ca-cert-hash``) and K3s' (``K10<hash>::``).
"""

import hashlib
import re
from collections.abc import Mapping

from attrs import field, frozen

from llmgw.core.drain import Drain
from llmgw.core.identity import ALPHABET, new_id, new_key

JOIN_PREFIX = "llmgw-join-"
CREDENTIAL_PREFIX = "llmgw-node-"
CA_DIGITS = 32
ID_LENGTH = 16
NAME_MAX = 63
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)


@frozen
class JoinToken:
    id: str
    secret: str = field(repr=False)
    ca: str  # CA_DIGITS hex digits

    @property
    def text(self) -> str:
        return f"{JOIN_PREFIX}{self.id}-{self.secret}-{self.ca}"

    @property
    def public(self) -> str:
        """What may be shown to anybody: it opens nothing but the CA certificate."""
        return JOIN_PREFIX + self.id

    def vouches_for(self, certificate: bytes) -> bool:
        """Whether this is the CA certificate (DER) that the token's maker meant."""
        return ca_digits(certificate) == self.ca


@frozen
class JoinTokenRecord:
    """One join token as the store keeps it; wall-clock seconds, ``uses_max`` 0: any number."""

    id: str
    digest: bytes = field(repr=False)  # of the secret
    created_at: float
    created_by: str
    expires_at: float
    revoked_at: float | None = None
    uses_max: int = 0
    uses: int = 0

    def why_not(self, now: float) -> str:
        """Why nobody joins with it any more; empty: they may."""
        if self.revoked_at is not None:
            return f"join token {self.id} was revoked"
        if now >= self.expires_at:
            return f"join token {self.id} has expired"
        if self.uses_max and self.uses >= self.uses_max:
            return f"join token {self.id} was used {self.uses} times, which is all it allows"
        return ""


@frozen
class NodeRecord:
    """One node as the store keeps it. ``target`` is what an operator asked of it; times are wall-clock seconds."""

    name: str
    credential: bytes = field(repr=False)  # digest
    joined_at: float
    joined_with: str  # the join token's id
    labels: Mapping[str, str] = field(factory=dict)
    address: str = ""
    boot: str = ""
    version: str = ""
    target: str = "schedulable"
    target_by: str = ""
    target_at: float | None = None
    target_why: str = ""
    seen_at: float | None = None
    given_up_at: float | None = None
    replaced: bytes | None = field(default=None, repr=False)  # digest of the credential before this one
    removed_at: float | None = None
    removed_why: str = ""
    drain: Drain | None = None


@frozen
class Admitted:
    """Whose credential it is."""

    node: str


@frozen
class Unwelcome:
    """Why somebody is not let in, in a sentence."""

    why: str

    def __str__(self) -> str:
        return self.why


@frozen
class Joined:
    """What a node keeps for ever after it joined."""

    cluster: str
    node: str
    credential: str = field(repr=False)


def new_join_token(chance: bytes, more_chance: bytes, ca: str) -> JoinToken:
    """From two times 32 random bytes and the CA's digits."""
    secret = new_key(chance, "")[:32]
    return JoinToken(new_id(more_chance, ""), secret, ca)


def read_join_token(text: str) -> JoinToken | None:
    """None for what is none."""
    id, dash, rest = text.strip().removeprefix(JOIN_PREFIX).partition("-")
    secret, dash2, ca = rest.partition("-")
    whole = text.strip().startswith(JOIN_PREFIX) and dash and dash2
    if not whole or not id or not secret or not _made_of(id + secret, ALPHABET):
        return None
    return JoinToken(id, secret, ca) if len(ca) == CA_DIGITS and _made_of(ca, "0123456789abcdef") else None


def ca_digits(certificate: bytes) -> str:
    """Of a CA certificate in DER."""
    return hashlib.sha256(certificate).hexdigest()[:CA_DIGITS]


def may_be_named(node: str) -> bool:
    """Names stand in URLs, metrics and file names."""
    return bool(_NAME.fullmatch(node))


def _made_of(text: str, alphabet: str) -> bool:
    return not set(text) - set(alphabet)
