"""What a node and the agent listener say around the link: paths, joining, its own drain, and a refusal."""

from collections.abc import Mapping
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from llmgw.core.drain import AtDeadline
from llmgw.core.identity import WHY_MAX
from llmgw.wire.agent_frames import Malformed

LINK = "/agent/v1/link"  # POST, with the node's credential
JOIN = "/agent/v1/join"  # POST, with a join token
CA = "/agent/v1/ca"  # GET, with a join token's public part
DRAIN = "/agent/v1/drain"  # PUT and GET, with the node's credential: its own drain and nobody else's
BODY_MAX = 16 * 1024
GRACE_MAX_S = 7 * 24 * 3600.0


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


class DrainAsked(msgspec.Struct, frozen=True):
    """A node asks to be drained until it boots again; ``boot``: this boot's id."""

    boot: Annotated[str, Meta(min_length=1, max_length=128)]
    grace_s: Annotated[float, Meta(gt=0, le=GRACE_MAX_S)]
    at_deadline: AtDeadline = AtDeadline.STOP
    why: Annotated[str, Meta(max_length=WHY_MAX)] = ""


class DrainTold(msgspec.Struct, frozen=True):
    """``state``: draining, drained or blocked; empty: it is not to be drained. ``left_s`` None: it has ended."""

    state: str = ""
    target: str = ""
    by: str = ""  # who asked for the target
    left_s: float | None = None
    left: tuple[str, ...] = ()  # replicas
    waits_on: tuple[str, ...] = ()  # sentences
    said: str = ""  # how it ended
    heard: bool = True  # its agent is


class Denied(msgspec.Struct, frozen=True):
    """The body of every answer that is not 200. ``leader``: host:port of the agent listener that leads, if known.

    ``cluster``: whose listener it is, told to who shows a credential that counts for nothing there.
    """

    why: str
    leader: str = ""
    cluster: str = ""


T = TypeVar("T", JoinAsked, JoinGiven, DrainAsked, DrainTold, Denied)
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
