"""A leader's listener and agents that talk to it over TLS in memory, so that a mock clock can jump."""

import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import trio
import trio.testing
import trustme
from attrs import define, field

from agent.dialing import NoLink, trusting, unverified
from agent.link import LeaderLink
from agent.membership import Membership
from agent.places import Places
from agent.report import Reporter
from agent.terms import Terms
from llmgw.control.joining import Invited, Joining
from llmgw.core.agent_settings import AgentSettings
from llmgw.core.gpus import Gpu
from llmgw.core.identity import Operator, Role
from llmgw.core.joining import ca_digits
from llmgw.core.shards import Orphan, ShardSeen
from llmgw.core.term import Term
from llmgw.nodes.connection import House
from llmgw.nodes.limits import AgentsLimits, ClusterLimits
from llmgw.nodes.listener import AgentListener
from llmgw.nodes.registry import LiveNode, NotLeading, Registry
from llmgw.store.place import Place
from llmgw.store.sqlite import SqliteStore, open_store
from llmgw.store.turn import inline
from llmgw.wire.agent_frames import Tail, Wanted

ME = Operator("me", Role.ADMIN)
TERM = Term(0, 3, "nonce")


async def at_once(work: Callable[..., Any], *of: Any) -> Any:
    """Instead of a thread: a mock clock would jump while it works."""
    return work(*of)


class Authority:
    """A CA and the context of a listener with its certificate; making keys takes a while, so one is shared."""

    def __init__(self) -> None:
        self.ca = trustme.CA(key_type=trustme.KeyType.ECDSA)
        self.pem = self.ca.cert_pem.bytes()
        self.digits = ca_digits(ssl.PEM_cert_to_DER_cert(self.pem.decode()))

    def context(self, *names: str, **more: Any) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0
        context.set_alpn_protocols(["h2"])
        self.ca.issue_cert(*(names or ("leader.test",)), **more).configure_cert(context)
        return context


AUTHORITY = Authority()
CONTEXT = AUTHORITY.context()


class Cable(trio.abc.Stream):
    """An agent's end of a connection that may lose everything without a word, as when a host loses power."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.dead_up = self.dead_down = self.takes_nothing = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if self.takes_nothing:
            await trio.sleep_forever()
        if self.dead_up:
            await trio.lowlevel.checkpoint()
        else:
            await self.stream.send_all(data)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        while True:
            data = await self.stream.receive_some(max_bytes)
            if not self.dead_down:
                return bytes(data)

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        if self.dead_up:
            await trio.lowlevel.checkpoint()
        else:
            await self.stream.aclose()


class Bell:
    """As ``agent.engine_parts`` has it."""

    def __init__(self) -> None:
        self._rung = trio.Event()

    def ring(self) -> None:
        self._rung.set()

    async def wait(self) -> None:
        await self._rung.wait()
        self._rung = trio.Event()


@define(eq=False, slots=False)
class FakeEngines:
    """Says what a test tells it to, and remembers what it was told."""

    told: list[Wanted] = field(factory=list)
    shards: tuple[ShardSeen, ...] = ()
    shown: list[ShardSeen] = field(factory=list)
    text: dict[str, str] = field(factory=dict)
    fresh: set[str] = field(factory=set)
    there: frozenset[str] = frozenset()
    changed: Bell = field(factory=Bell)
    address: str = ""
    obeying: Callable[[Wanted], None] = lambda wanted: None

    async def adopt(self) -> None: ...

    def obey(self, wanted: Wanted) -> None:
        self.obeying(wanted)
        self.told.append(wanted)

    def seen(self) -> tuple[ShardSeen, ...]:
        return self.shards

    def reported(self, shards: Any) -> None:
        self.shown += shards

    def orphans(self) -> tuple[Orphan, ...]:
        return ()

    def has(self) -> tuple[str, ...]:
        return tuple(path for path in self.told[-1].paths if path in self.there) if self.told else ()

    def wrote(self, id: str, text: str) -> None:
        self.text[id] = text
        self.fresh.add(id)

    def tail(self, id: str) -> Tail | None:
        self.fresh.discard(id)
        return Tail(id, self.text[id], 2000) if id in self.text else None

    def new_tails(self) -> tuple[Tail, ...]:
        return tuple(tail for id in sorted(self.fresh) if (tail := self.tail(id)) is not None)

    def logs(self, id: str, most: int) -> tuple[str, int | None]:
        if id not in self.text:
            raise LookupError(f"there is no {id} here")
        return self.text[id][-most:], 1500

    async def run(self) -> None:
        await trio.sleep_forever()


class FakeGpus:
    driver = ""

    def __init__(self) -> None:
        self.against = {("GPU-1", "xid 79")}

    def clear(self, uuid: str, cause: str) -> bool:
        known = (uuid, cause) in self.against
        self.against.discard((uuid, cause))
        return known

    def seen(self) -> tuple[Gpu, ...]:
        return (Gpu("GPU-1", 0, "H100", 81_559),)

    async def run(self) -> None:
        await trio.sleep_forever()


@define(eq=False)
class Leader:
    """``listener.serve_one`` gets each connection; ``lead`` may be changed by a test."""

    store: SqliteStore
    joining: Joining
    registry: Registry
    listener: AgentListener
    nursery: trio.Nursery
    lead: Term | NotLeading = TERM
    heard: list[LiveNode] = field(factory=list)
    newer: list[tuple[str, Term]] = field(factory=list)
    failures: list[BaseException] = field(factory=list)
    context: ssl.SSLContext = field(default=CONTEXT)
    pair: Callable[[], tuple[trio.abc.Stream, trio.abc.Stream]] = trio.testing.memory_stream_pair
    connections: list[Cable] = field(factory=list)  # the agents' ends, without TLS
    reachable: bool = True
    address: str = ""

    @classmethod
    async def make(
        cls,
        folder: Path,
        nursery: trio.Nursery,
        agents: AgentsLimits | None = None,
        cluster: ClusterLimits | None = None,
        now: Callable[[], float] = lambda: 1_000.0,
    ) -> "Leader":
        store = open_store(Place(folder, folder / "llmgw.db"), lambda: inline)
        joining = await Joining.load(store, lambda: AUTHORITY.digits, now)
        registry = Registry(store.cluster_id, cluster or ClusterLimits(), lambda: TERM)
        house = House(registry, joining, agents or AgentsLimits(), lambda: AUTHORITY.pem)
        listener = AgentListener(house, lambda: CONTEXT, lambda what, error: None)
        leader = cls(store, joining, registry, listener, nursery)
        joining.on_ended = registry.forget
        registry.lead = lambda: leader.lead
        registry.on_report = leader.heard.append
        registry.on_newer_term = lambda node, term, heard_s: leader.newer.append((node.name, term))
        listener.context = lambda: leader.context
        listener.report = lambda what, error: leader.failures.append(error)
        return leader

    async def token(self, **how: Any) -> str:
        invited = await self.joining.invite(ME, **how)
        assert isinstance(invited, Invited), invited
        return invited.token.text

    def plain(self) -> trio.abc.Stream:
        """A connection before TLS."""
        if not self.reachable:
            raise NoLink("leader.test: connection refused")
        ours, theirs = self.pair()
        self.nursery.start_soon(partial(self.listener.serve_one, theirs, "10.0.0.9"))
        self.connections.append(Cable(ours))
        return self.connections[-1]

    async def dial(self, server: str, ca: bytes | None) -> trio.abc.Stream:
        context = unverified() if ca is None else trusting(ca)
        stream = self.plain()
        tls = trio.SSLStream(stream, context, server_hostname="leader.test", https_compatible=True)
        try:
            await tls.do_handshake()
        except trio.BrokenResourceError as error:
            await trio.aclose_forcefully(stream)
            raise NoLink(str(error.__cause__)) from None
        return tls


@define(eq=False)
class Agent:
    link: LeaderLink
    engines: FakeEngines
    membership: Membership
    terms: Terms
    said: list[str]
    scope: trio.CancelScope = field(factory=trio.CancelScope)

    async def run(self) -> None:
        with self.scope:
            await self.link.run()

    @property
    def stream(self) -> Any:
        assert self.link.talk is not None
        return self.link.talk.stream


def agent_on(folder: Path, dial: Any, name: str = "node-1", token: str = "", **settings: Any) -> Agent:
    settings.setdefault("servers", ("leader.test:7443",))
    about = AgentSettings(name=name, data_dir=str(folder), join_token=token, **settings)
    places = Places(folder)
    places.prepare()
    engines, terms, said = FakeEngines(), Terms(places, at_once), []
    membership = Membership(about, places, name, dial)
    reporter = Reporter(about, engines, FakeGpus(), 256 * 1024)
    link = LeaderLink(about, membership, terms, engines, reporter, dial, said.append, lambda: 0.5)
    return Agent(link, engines, membership, terms, said)


async def until(true: Callable[[], object], within_s: float = 20.0) -> None:
    """Under a mock clock this takes no time; on a real one it looks often."""
    with trio.fail_after(within_s):
        while not true():  # noqa: ASYNC110 -- what it waits for is any fact, not one that rings
            await trio.sleep(0.02)
