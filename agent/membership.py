"""Which cluster this node belongs to, and what it shows there: written down once, when it joins."""

import ssl
from pathlib import Path

import msgspec
from attrs import define, field

from agent import atomic
from agent.dialing import Dial, NoLink, ask
from agent.given_token import HOW, read_given
from agent.places import Places
from agent.proc import boot_id
from llmgw import __version__
from llmgw.core.agent_settings import AgentSettings
from llmgw.core.joining import JoinToken, ca_digits
from llmgw.core.term import NO_TERM
from llmgw.wire.agent_frames import Malformed
from llmgw.wire.agent_joining import CA, JOIN, Denied, JoinAsked, JoinGiven, encode, read

ENGINES_TOLD = 4


class NotIn(Exception):
    """This node is no member there and can't become one; its text says why and what to do."""


class OtherCluster(NotIn):
    """Engines of the cluster it belongs to run here, and the other one would end them."""


class TurnedAway(NotIn):
    """By a control plane, in its words. ``leader``: ask there. ``cluster``: its own, if it said so."""

    def __init__(self, why: str, leader: str = "", cluster: str = "") -> None:
        super().__init__(why)
        self.leader, self.cluster = leader, cluster


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
    _refused: str = field(default="", init=False)  # why a token was, and we are in with another
    _spent: str = field(default="", init=False)  # the id of that token
    _elsewhere: dict[str, str] = field(factory=dict, init=False)  # of one that leads to another cluster: id -> which

    def __attrs_post_init__(self) -> None:
        self.joined = atomic.read_value(self._file, Joined)

    @property
    def _file(self) -> Path:
        return self.places.data / "node.json"

    @property
    def _pinned(self) -> Path:
        return pinned_ca(self.places)

    async def ensure(self, server: str) -> Joined:
        """Joined, through this control plane if need be. Raises NotIn, NoLink, OSError."""
        given, known = read_given(self.settings.join_token), self.joined
        token = given.token
        if known is not None and (given.gone or not self.settings.join_token or self._was_used(token, known)):
            return known
        if given.wrong:
            raise NotIn(given.wrong)
        if token is None:
            raise NotIn(f"this node has joined no cluster: set agent.join_token: {HOW}")
        try:
            return await self._join(server, token)
        except OtherCluster:
            raise
        except NotIn as error:
            if known is None or (isinstance(error, TurnedAway) and error.leader):
                raise
            self._spent, self._refused = token.id, str(error)
            return known

    def _was_used(self, token: JoinToken | None, known: Joined) -> bool:
        return token is not None and token.id in (known.token, self._spent)

    @property
    def keeps_name(self) -> str:
        """The name it joined with, if it is called otherwise now and nothing changes that; else empty."""
        token, known = read_given(self.settings.join_token).token, self.joined
        stays = known is not None and known.node != self.name and (token is None or token.id == known.token)
        return known.node if known is not None and stays else ""

    # -- what to do -------------------------------------------------------------------------------------

    @property
    def way_back(self) -> str:
        """For a node whose credential counts no more."""
        token, known = read_given(self.settings.join_token).token, self.joined
        said = f"to come in again it needs a new join token: {HOW}"
        if self._refused:
            return f"{said}; the one that it was given now was refused: {self._refused}"
        if token is not None and known is not None and token.id == known.token:
            return (
                f"{said}; the token {token.id} that it was given now is the one it joined with, and no token is used "
                "here twice: each start would make a new credential, and two machines of one name would push each "
                "other out by turns"
            )
        return said

    @property
    def belonging(self) -> str:
        """For a node that meets a control plane whose CA it does not trust."""
        if self.settings.ca:
            return f"agent.ca is {self.settings.ca}: is that the CA of this control plane?"
        if self.joined is None:
            return ""
        return (
            f"{self.places.data} belongs to cluster {self.joined.cluster} now, as {self.joined.node}, and trusts its "
            "CA alone: set agent.servers to a control plane of that cluster, or, to move to the one asked or if its "
            f"CA was made anew, join with a new token of it: {HOW}"
        )

    def no_member_of(self, cluster: str, server: str) -> str:
        """What is wrong where a control plane of that cluster does not know our credential; empty: it is of ours."""
        known = self.joined
        if known is None or cluster in ("", known.cluster):
            return ""
        return (
            f"it is of cluster {cluster}, and this node, {known.node}, is of cluster {known.cluster}: "
            f"take {server} out of agent.servers"
        )

    def ca(self) -> bytes:
        """The CA to trust. Raises NotIn, OSError."""
        return trusted_ca(self.settings, self.places)

    # -- joining ----------------------------------------------------------------------------------------

    async def _join(self, server: str, token: JoinToken) -> Joined:
        self._refuse_to_move(token)
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
        self._take_leave(given, token)
        if not self.settings.ca:
            atomic.write(self._pinned, ca)
        joined = Joined(given.cluster, given.node, given.credential, token.id)
        atomic.write_value(self._file, joined)
        self.joined = joined
        return joined

    def _refuse_to_move(self, token: JoinToken) -> None:
        """Before anything is asked there: who asks is written down as a node. Raises OtherCluster, OSError."""
        if self.joined is None:
            return
        other = self._elsewhere.get(token.id, "")
        if not self.settings.ca and self._pinned.exists() and not _vouched(token, self._pinned.read_bytes()):
            other = other or "another cluster, or of another CA"
        if other and (engines := self._engines()):
            raise self._other_cluster(self.joined, other, engines)

    def _take_leave(self, given: JoinGiven, token: JoinToken) -> None:
        """Of the cluster before, whose terms mean nothing in the next one. Raises OtherCluster, OSError."""
        known = self.joined
        if known is None or known.cluster == given.cluster:
            return
        if engines := self._engines():
            # One token at a time: the settings don't change while the agent runs, but its file may.
            other = f"cluster {given.cluster} (which has a node {given.node} now that never comes)"
            self._elsewhere = {token.id: other}
            raise self._other_cluster(known, other, engines)
        self.places.write_seen(NO_TERM)

    def _engines(self) -> list[str]:
        return [place.id for place in self.places.all() if place.may_run(boot_id())]

    def _other_cluster(self, known: Joined, other: str, engines: list[str]) -> OtherCluster:
        few = ", ".join(engines[:ENGINES_TOLD]) + (", ..." if len(engines) > ENGINES_TOLD else "")
        name, data = known.node, self.places.data
        return OtherCluster(
            f"the join token is of {other}, but {data} belongs to cluster {known.cluster} as {name} and has "
            f"{len(engines)} of its engines ({few}), which the other cluster would end. Either start the agent for "
            f"cluster {known.cluster[:8]} without this token, stop them there (`llmgw ctl scale MODEL 0`), then "
            f"`llmgw ctl nodes remove {name}` there and join here; or use another --data-dir. If it is the same "
            "cluster with a new CA, set agent.ca to its ca.pem"
        )

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
            why = "its CA has another fingerprint; is the token of another cluster?"
            raise NotIn(f"{server} is not who the join token means: {why}")
        return bytes(answer.body)


def pinned_ca(places: Places) -> Path:
    return places.data / "ca.pem"


def trusted_ca(settings: AgentSettings, places: Places) -> bytes:
    """Raises NotIn, OSError."""
    if settings.ca:
        return Path(settings.ca).expanduser().read_bytes()
    pinned = pinned_ca(places)
    if pinned.exists():
        return pinned.read_bytes()
    raise NotIn(f"there is no CA to trust: {pinned} has gone; set agent.ca, or join again with a new token")


def denied(body: bytes | bytearray, server: str) -> TurnedAway:
    try:
        said = read(Denied, bytes(body))
    except Malformed:
        return TurnedAway(f"{server} refused without a reason that can be read")
    return TurnedAway(said.why, said.leader, said.cluster)


def _vouched(token: JoinToken, pem: bytes) -> bool:
    try:
        return ca_digits(ssl.PEM_cert_to_DER_cert(pem.decode("ascii").strip())) == token.ca
    except (ValueError, UnicodeDecodeError):
        return False
