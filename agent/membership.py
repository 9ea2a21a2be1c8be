"""Which cluster this node belongs to, and what it shows there: written down once, when it joins."""

import ssl
from pathlib import Path

import msgspec
from attrs import define, field

from agent import atomic
from agent.dialing import Dial, NoLink, ask
from agent.places import Places
from agent.proc import boot_id
from llmgw import __version__
from llmgw.core.agent_settings import AgentSettings
from llmgw.core.joining import JoinToken, ca_digits, read_join_token
from llmgw.wire.agent_frames import Malformed
from llmgw.wire.agent_joining import CA, JOIN, Denied, JoinAsked, JoinGiven, encode, read


class NotIn(Exception):
    """This node is no member and can't become one; its text says why and what to do. ``leader``: ask there."""

    def __init__(self, why: str, leader: str = "") -> None:
        super().__init__(why)
        self.leader = leader


class Joined(msgspec.Struct, frozen=True):
    cluster: str
    node: str
    credential: str
    token: str  # the id of the join token it came with


@define(eq=False)
class Membership:
    """A join token that was not used yet is used, even by a node that belongs somewhere: that is how it moves."""

    settings: AgentSettings
    places: Places
    name: str
    dial: Dial
    joined: Joined | None = field(default=None, init=False, repr=False)
    _token: JoinToken | None = field(default=None, init=False, repr=False)
    _spent: bool = field(default=False, init=False)  # the token was refused, and we are in with another

    def __attrs_post_init__(self) -> None:
        self.joined = atomic.read_value(self._file, Joined)

    @property
    def _file(self) -> Path:
        return self.places.data / "node.json"

    @property
    def _pinned(self) -> Path:
        return self.places.data / "ca.pem"

    async def ensure(self, server: str) -> Joined:
        """Joined, through this control plane if need be. Raises NotIn, NoLink, OSError."""
        token = self._read_token()
        known = self.joined
        if known is not None and (token is None or token.id == known.token or self._spent):
            return known
        if token is None:
            raise NotIn("this node has joined no cluster: set agent.join_token to one from `llmgw ctl nodes invite`")
        try:
            return await self._join(server, token)
        except NotIn as error:
            if known is None or error.leader:
                raise
            self._spent = True
            return known

    def ca(self) -> bytes:
        """The CA to trust. Raises NotIn, OSError."""
        if self.settings.ca:
            return Path(self.settings.ca).expanduser().read_bytes()
        if self._pinned.exists():
            return self._pinned.read_bytes()
        raise NotIn(f"there is no CA to trust: {self._pinned} has gone; set agent.ca, or join again with a new token")

    async def _join(self, server: str, token: JoinToken) -> Joined:
        ca = await self._ca_to_join(server, token)
        stream = await self.dial(server, ca)
        head = {":method": "POST", ":path": JOIN, "authorization": f"Bearer {token.text}"}
        asked = JoinAsked(self.name, boot_id(), __version__, self.settings.address, dict(self.settings.labels))
        answer = await ask(stream, server, head, encode(asked))
        if answer.status != 200:
            raise denied(answer.body, server)
        try:
            given = read(JoinGiven, bytes(answer.body))
        except Malformed as error:
            raise NoLink(f"{server}: {error}") from None
        if not self.settings.ca:
            atomic.write(self._pinned, ca)
        joined = Joined(given.cluster, given.node, given.credential, token.id)
        atomic.write_value(self._file, joined)
        self.joined = joined
        return joined

    async def _ca_to_join(self, server: str, token: JoinToken) -> bytes:
        """It is pinned once the join has succeeded: a node that moves belongs to its old cluster until then."""
        try:
            known = self.ca()
        except NotIn:
            known = b""
        if known and (self.settings.ca or _vouched(token, known)):
            return known
        return await self._fetch_ca(server, token)

    async def _fetch_ca(self, server: str, token: JoinToken) -> bytes:
        """From whoever answers: only the token's public part is shown, and only what its hash vouches for is kept."""
        stream = await self.dial(server, None)
        head = {":method": "GET", ":path": CA, "authorization": f"Bearer {token.public}"}
        answer = await ask(stream, server, head, None)
        if answer.status != 200:
            raise denied(answer.body, server)
        if not _vouched(token, bytes(answer.body)):
            raise NotIn(f"{server} is not who the join token means: its CA has another fingerprint")
        return bytes(answer.body)

    def _read_token(self) -> JoinToken | None:
        text = self.settings.join_token
        if text.startswith("@"):
            try:
                text = Path(text[1:]).expanduser().read_text(encoding="ascii")
            except (OSError, UnicodeDecodeError):
                text = ""  # a token file may be gone once it was used
        return read_join_token(text) if text else None


def denied(body: bytes | bytearray, server: str) -> NotIn:
    try:
        said = read(Denied, bytes(body))
    except Malformed:
        return NotIn(f"{server} refused without a reason that can be read")
    return NotIn(said.why, said.leader)


def _vouched(token: JoinToken, pem: bytes) -> bool:
    try:
        return ca_digits(ssl.PEM_cert_to_DER_cert(pem.decode("ascii").strip())) == token.ca
    except (ValueError, UnicodeDecodeError):
        return False
