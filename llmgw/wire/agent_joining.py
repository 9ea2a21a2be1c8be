"""What an agent and the agent listener say around the link: paths, joining, and a refusal before any frame."""

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from llmgw.wire.agent_frames import Malformed

LINK = "/agent/v1/link"  # POST, with the node's credential
JOIN = "/agent/v1/join"  # POST, with a join token
CA = "/agent/v1/ca"  # GET, with a join token's public part
BODY_MAX = 16 * 1024


class JoinAsked(msgspec.Struct, frozen=True):
    node: str
    boot: str = ""
    version: str = ""
    address: str = ""
    labels: Mapping[str, str] = {}


class JoinGiven(msgspec.Struct, frozen=True):
    cluster: str
    node: str
    credential: str


class Denied(msgspec.Struct, frozen=True):
    """The body of every answer that is not 200. ``leader``: host:port of the agent listener that leads, if known."""

    why: str
    leader: str = ""


T = TypeVar("T", JoinAsked, JoinGiven, Denied)
encode = msgspec.json.Encoder().encode


def read(kind: type[T], text: bytes) -> T:
    """Raises Malformed."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"a body that can't be read: {error}") from None


def bearer(fields: Mapping[str, str]) -> str:
    """The token of a head; empty without one."""
    scheme, _, token = fields.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
