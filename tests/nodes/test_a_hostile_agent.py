"""An agent that is slow, wrong or malicious: its own link ends, with a reason that is counted, and no other."""

import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from attrs import define, field

from agent.dialing import trusting
from llmgw.core.joining import Joined
from llmgw.core.shards import Launch
from llmgw.core.term import Term
from llmgw.nodes.limits import AgentsLimits, ClusterLimits
from llmgw.wire.agent_frames import Down, Hello, Lines, Refused, Report, Tail, Wanted, Welcome, line, read_down
from llmgw.wire.agent_joining import LINK, JoinAsked
from llmgw.wire.h2_stream import Body, End, H2Stream, Head
from tests.agent_links import AUTHORITY, Leader, agent_on, until

LIMITS = ClusterLimits(frames_per_second_max=5, bytes_per_second_max=65_536, frame_max=16_384)


@pytest.fixture
async def leader(tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[Leader]:
    leader = await Leader.make(tmp_path, nursery, AgentsLimits(connections_max=8), LIMITS)
    yield leader
    assert leader.failures == []
    leader.store.close()


@define(eq=False)
class Raw:
    """An agent that does what a test says, frame by frame."""

    stream: trio.abc.Stream
    h2: H2Stream
    lines: Lines = field(factory=Lines)
    frames: list[Down] = field(factory=list)
    ended: bool = False
    consumes: bool = True

    async def say(self, *texts: bytes) -> None:
        for text in texts:
            left = memoryview(text)
            while left:
                if self.ended:
                    raise trio.BrokenResourceError("the leader has ended it")
                left = left[self.h2.write(left) :]
                await self.flush()
                if left:
                    await self.hear()

    async def flush(self) -> None:
        await self.stream.send_all(self.h2.outgoing())

    async def hear(self) -> None:
        data = bytes(await self.stream.receive_some(65_536))
        self.ended = self.ended or not data
        for happening in self.h2.receive(data):
            match happening:
                case Body(part, size):
                    self.frames += [read_down(text) for text in self.lines.feed(part)]
                    if self.consumes:
                        self.h2.consumed(size)
                case End():
                    self.ended = True
                case Head():
                    pass
        await self.flush()

    async def hear_all(self) -> None:
        """Until the leader has ended it."""
        try:
            while not self.ended:
                await self.hear()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.ended = True

    @property
    def refused(self) -> str:
        assert isinstance(self.frames[-1], Refused), self.frames
        return self.frames[-1].why


async def shaken(leader: Leader) -> Any:
    tls = trio.SSLStream(leader.plain(), trusting(AUTHORITY.pem), server_hostname="leader.test", https_compatible=True)
    await tls.do_handshake()
    return tls


async def until_over(stream: trio.abc.Stream) -> None:
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        while await stream.receive_some(100):
            pass


async def raw(leader: Leader, name: str = "node-1", greet: bool = True) -> Raw:
    given = await leader.joining.join(await leader.token(), JoinAsked(name))
    assert isinstance(given, Joined)
    head = [(":method", "POST"), (":scheme", "https"), (":authority", "gw"), (":path", LINK)]
    agent = Raw(await shaken(leader), H2Stream.for_client([*head, ("authorization", f"Bearer {given.credential}")]))
    await agent.flush()
    if greet:
        await agent.say(line(hello(leader, name)))
        while not agent.frames:
            await agent.hear()
        assert isinstance(agent.frames[0], Welcome)
    return agent


def hello(leader: Leader, name: str = "node-1", **more: Any) -> Hello:
    return Hello(**({"v": 1, "cluster": leader.store.cluster_id, "node": name, "boot": "b"} | more))


# -- before anybody is known -----------------------------------------------------------------------------


async def test_a_handshake_that_takes_too_long_is_ended(leader, autojump_clock):
    stream = leader.plain()
    began = trio.current_time()
    await stream.send_all(b"\x16\x03\x01")

    await until_over(stream)

    await until(lambda: leader.listener.open == 0)
    assert trio.current_time() - began == pytest.approx(10, abs=0.1)
    assert leader.registry.counts["handshake_slow"] == 1


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 1000, b"\x16\x03\x01\x00\x05hello"])
async def test_what_is_no_tls_is_ended(leader, data, autojump_clock):
    stream = leader.plain()
    await stream.send_all(data)

    await until(lambda: leader.listener.open == 0)

    assert leader.registry.counts["handshake_failed"] == 1


async def test_who_does_not_speak_http2_is_ended(leader, autojump_clock):
    context = trusting(AUTHORITY.pem)
    context.set_alpn_protocols(["http/1.1"])
    tls = trio.SSLStream(leader.plain(), context, server_hostname="leader.test", https_compatible=True)
    await until_over(tls)

    await until(lambda: leader.listener.open == 0)
    assert leader.registry.counts["handshake_not_h2"] == 1


async def test_an_old_tls_is_not_spoken(leader, autojump_clock):
    context = trusting(AUTHORITY.pem)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    tls = trio.SSLStream(leader.plain(), context, server_hostname="leader.test", https_compatible=True)

    with pytest.raises(trio.BrokenResourceError):
        await tls.do_handshake()


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 5000])
async def test_what_is_no_http2_is_ended(leader, data, autojump_clock):
    tls = await shaken(leader)
    await tls.send_all(data)

    await until(lambda: leader.listener.open == 0)

    assert leader.registry.counts["malformed"] == 1


async def test_who_shows_a_credential_and_says_no_more_is_ended(leader, autojump_clock):
    agent = await raw(leader, greet=False)
    began = trio.current_time()

    await agent.hear_all()

    assert trio.current_time() - began == pytest.approx(10, abs=0.1)
    await until(lambda: leader.registry.counts["silent"] == 1)


async def test_strangers_make_room_and_keep_no_agent_out(leader, nursery, tmp_path, autojump_clock):
    agent = agent_on(tmp_path / "a", leader.dial, token=await leader.token())
    nursery.start_soon(agent.run)
    await until(lambda: leader.heard)
    links = leader.registry.nodes["node-1"].counts["links"]

    strangers = []
    for _ in range(20):
        if leader.listener._has_room():
            strangers.append(leader.plain())
        await trio.sleep(0.01)

    assert leader.listener.open <= 8
    assert leader.registry.counts["evicted"] == 13
    second = agent_on(tmp_path / "b", leader.dial, name="node-2", token=await leader.token())
    assert leader.listener._has_room()
    nursery.start_soon(second.run)
    await until(lambda: "node-2" in leader.registry.linked())
    assert leader.registry.nodes["node-1"].counts["links"] == links


# -- one that has a credential -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"{}\n", "can't be read"),
        (b"\xff\xff\n", "can't be read"),
        (b"[" * 5000 + b"\n", "can't be read"),
        (b'{"t":"wanted","rev":1}\n', "can't be read"),
        (line(Report(1)), "said report where a hello belongs"),
    ],
)
async def test_what_is_no_hello_is_refused(leader, text, says, autojump_clock):
    agent = await raw(leader, greet=False)
    await agent.say(text)
    await agent.hear_all()

    assert says in agent.refused
    assert not leader.registry.linked()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"v": 3}, "node-1 speaks version 3 of the link, this leader 1, one apart works: upgrade the control plane"),
        ({"v": 0}, "upgrade the agent"),
        ({"cluster": "other"}, "node-1 belongs to cluster other"),
        ({"cluster": ""}, "node-1 belongs to cluster none"),
        ({"node": "node-2"}, "this credential was given to node-1, not to node-2"),
        ({"seen": Term(0, 9, "x")}, "node-1 has obeyed term 0.9, this leader's is 0.3: stale"),
        ({"seen": Term(0, 3, "x")}, "conflict"),
    ],
)
async def test_a_hello_that_does_not_fit_is_refused_in_a_sentence(leader, wrong, says, autojump_clock):
    agent = await raw(leader, greet=False)
    await agent.say(line(hello(leader, **wrong)))
    await agent.hear_all()

    assert says in agent.refused
    assert not leader.registry.linked()


async def test_a_version_ahead_is_understood(leader, autojump_clock):
    agent = await raw(leader, greet=False)
    await agent.say(line(hello(leader, v=2)))
    while not agent.frames:
        await agent.hear()

    assert isinstance(agent.frames[0], Welcome)


async def test_a_frame_that_is_too_long_is_refused_before_it_is_whole(leader, autojump_clock):
    agent = await raw(leader)
    await agent.say(b'{"t":"report","seq":1,"has":["' + b"x" * 20_000)
    await agent.hear_all()

    assert "a frame of more than 16384 bytes" in agent.refused
    assert leader.registry.nodes["node-1"].counts["malformed"] == 1


@pytest.mark.parametrize("text", [line(Report(1)), line(Tail("m.g1.r0", "x" * 8000))], ids=["frames", "bytes"])
async def test_a_flood_ends_the_link_and_is_counted(leader, text, autojump_clock, nursery, tmp_path):
    other = agent_on(tmp_path / "o", leader.dial, name="node-2", token=await leader.token())
    nursery.start_soon(other.run)
    agent = await raw(leader)

    async def send() -> None:
        while True:
            await agent.say(text)

    with pytest.raises((trio.BrokenResourceError, trio.ClosedResourceError)):
        await send()

    node = leader.registry.nodes["node-1"]
    await until(lambda: not node.linked)
    assert node.counts["floods"] == 1
    assert "frames_per_second_max" in node.last_end
    assert node.counts["reports"] + node.counts["tails"] <= 51
    assert leader.registry.nodes["node-2"].linked
    assert leader.registry.nodes["node-2"].counts["links"] == 1


async def test_a_node_may_speak_as_fast_as_it_is_allowed_to(leader, autojump_clock, nursery):
    agent = await raw(leader)
    nursery.start_soon(agent.hear_all)
    for number in range(100):
        await agent.say(line(Report(number)))
        await trio.sleep(0.2)

    assert leader.registry.nodes["node-1"].counts["reports"] == 100


async def test_an_agent_that_never_reads_is_cut(leader, autojump_clock):
    """The socket below takes nothing: our write stalls."""
    leader.pair = trio.testing.lockstep_stream_pair
    agent = await raw(leader)
    began = trio.current_time()
    node = leader.registry.nodes["node-1"]

    async with trio.open_nursery() as nursery:

        async def reports() -> None:
            while node.linked:
                agent.h2.write(line(Report(1)))
                with trio.move_on_after(1), suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await agent.flush()
                await trio.sleep(0.5)

        nursery.start_soon(reports)
        await until(lambda: not node.linked, 60)
        nursery.cancel_scope.cancel()

    assert 9 <= trio.current_time() - began <= 16
    assert node.last_end == "nothing was taken for 10 s"


async def test_one_that_opens_no_window_holds_one_frame_of_ours_and_gets_the_newest_later(
    leader, autojump_clock, nursery
):
    agent = await raw(leader)
    agent.consumes = False
    node = leader.registry.nodes["node-1"]
    big = [Launch(f"m-{n}.g1.r0", ("x" * 3000,)) for n in range(5)]

    async def go_on() -> None:
        await agent.hear_all()

    nursery.start_soon(go_on)
    for rev in range(1, 200):
        assert leader.registry.want("node-1", rev, big) == ""
        if rev % 4 == 0:
            await agent.say(line(Report(rev)))
        await trio.sleep(0.06)

    session = node.link
    assert len(session._out) <= 1
    assert len(session._part) <= 16_384
    received = [frame.rev for frame in agent.frames if isinstance(frame, Wanted)]
    assert 0 < len(received) < 6

    agent.consumes = True
    agent.h2.consumed(60_000)
    await agent.flush()
    await until(lambda: isinstance(agent.frames[-1], Wanted) and agent.frames[-1].rev == 199)
    received = [frame.rev for frame in agent.frames if isinstance(frame, Wanted)]
    assert len(received) < 10


async def test_tails_of_what_nobody_reported_are_bounded(leader, autojump_clock):
    leader.registry.limits = ClusterLimits(frames_per_second_max=10_000, bytes_per_second_max=10**9)
    agent = await raw(leader)
    for number in range(600):
        await agent.say(line(Tail(f"m.g{number}.r0", "x")))
    await trio.testing.wait_all_tasks_blocked()
    node = leader.registry.nodes["node-1"]

    assert len(node.tails) == 512
    await agent.say(line(Report(1)))
    await trio.testing.wait_all_tasks_blocked()
    assert len(node.tails) == 16  # the last words of those that ended


async def test_what_is_too_much_to_say_is_refused_to_the_caller(leader, autojump_clock):
    why = leader.registry.want("node-1", 1, [Launch("m.g1.r0", ("x" * 20_000,))])

    assert why.startswith("what node-1 should run takes 20")
    assert why.endswith("cluster.frame_max is 16384")


async def test_an_error_of_ours_ends_one_connection_and_is_reported(leader, autojump_clock, nursery, tmp_path):
    other = agent_on(tmp_path / "o", leader.dial, name="node-2", token=await leader.token())
    nursery.start_soon(other.run)
    await until(lambda: leader.heard)

    def broken(node: Any) -> None:
        if node.name == "node-1":
            raise ZeroDivisionError

    leader.registry.on_report = broken
    agent = await raw(leader)
    await agent.say(line(Report(1)))
    await agent.hear_all()

    await until(lambda: leader.registry.counts["failed"] == 1)
    assert not leader.registry.nodes["node-1"].linked
    assert leader.registry.nodes["node-2"].linked
    assert [type(error) for error in leader.failures] == [ExceptionGroup]
    leader.failures.clear()


async def test_the_listener_outlives_a_shortage_and_ends_with_every_connection_when_cancelled(leader, nursery):
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    accept, fails = listener.accept, [OSError(24, "too many open files"), OSError(103, "aborted")]

    async def short() -> Any:
        if fails:
            raise fails.pop(0)
        return await accept()

    listener.accept = short
    with trio.CancelScope() as scope:

        async def one_connection() -> None:
            async with await trio.open_tcp_stream(*listener.socket.getsockname()) as stream:
                await until(lambda: leader.listener.open == 1)
                scope.cancel()
                await until_over(stream)

        nursery.start_soon(one_connection)
        await leader.listener.serve(listener)
    assert leader.listener.open == 0
    assert leader.registry.counts["accept_failures"] == 2
    with pytest.raises(trio.ClosedResourceError):
        await accept()
