"""An agent whose leader is wrong, slow or not the one it means: its engines stay, and what it holds is bounded."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from attrs import define, field

from agent import atomic
from agent.membership import Joined
from agent.places import Places
from llmgw.core.shards import Launch, ShardSeen, ShardState
from llmgw.core.term import Term
from llmgw.tasks.duplex import GONE
from llmgw.wire.agent_frames import Hello, Lines, Logs, LogsAsked, Refused, Report, Up, Wanted, Welcome, line, read_up
from llmgw.wire.h2_stream import Body, H2Stream, Head
from tests.agent_links import AUTHORITY, TERM, Agent, agent_on, until

CLUSTER = "c" * 32
WELCOME = Welcome(TERM, 1000, cluster=CLUSTER)


@define(eq=False)
class Scripted:
    """A leader that says what a test tells it to. ``consumes``: whether it lets the agent go on."""

    nursery: trio.Nursery
    first: tuple[bytes, ...] = (line(WELCOME),)
    status: int = 200
    consumes: bool = True
    pair: Callable[[], Any] = trio.testing.memory_stream_pair
    heard: list[Up] = field(factory=list)
    streams: list[trio.abc.Stream] = field(factory=list)
    h2: H2Stream = field(factory=H2Stream.for_server)
    left: int = 0

    async def dial(self, server: str, ca: bytes | None) -> trio.abc.Stream:
        ours, theirs = self.pair()
        self.h2 = H2Stream.for_server()
        self.streams.append(theirs)
        self.nursery.start_soon(self._serve, theirs, self.h2)
        return ours

    async def _serve(self, stream: trio.abc.Stream, h2: H2Stream) -> None:
        lines = Lines()
        with suppress(*GONE):
            while data := bytes(await stream.receive_some(65_536)):
                for happening in h2.receive(data):
                    match happening:
                        case Head():
                            h2.respond(self.status)
                            await self.say(*self.first)
                        case Body(part, size):
                            self.heard += [read_up(text) for text in lines.feed(part)]
                            self.left += size
                            if self.consumes:
                                h2.consumed(size)
                await stream.send_all(h2.outgoing())
        await trio.aclose_forcefully(stream)

    async def say(self, *texts: bytes) -> None:
        for text in texts:
            assert self.h2.write(text) == len(text)
        await self.streams[-1].send_all(self.h2.outgoing())

    def last(self, kind: type[Any]) -> Any:
        return next(frame for frame in reversed(self.heard) if isinstance(frame, kind))


def member(folder: Path, leader: Scripted, **settings: Any) -> Agent:
    places = Places(folder)
    places.prepare()
    atomic.write_value(folder / "node.json", Joined(CLUSTER, "node-1", "credential", "token"))
    atomic.write(folder / "ca.pem", AUTHORITY.pem)
    return agent_on(folder, leader.dial, **settings)


async def test_a_leader_of_another_cluster_is_left_by_name(nursery, tmp_path, autojump_clock):
    leader = Scripted(nursery, (line(Welcome(TERM, 1000, cluster="other")), line(Wanted(TERM, 1))))
    agent = member(tmp_path, leader)
    nursery.start_soon(agent.run)
    await until(lambda: agent.said)

    assert agent.said == [
        f"the link with leader.test:7443 ended: leader.test:7443 leads cluster other, this node is of {CLUSTER}"
    ]
    assert not agent.engines.told
    assert isinstance(leader.heard[0], Hello)
    assert leader.heard[0].cluster == CLUSTER


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"{}\n", "can't be read"),
        (b'{"t":"report","seq":1}\n', "can't be read"),
        (b"\xff\n", "can't be read"),
    ],
)
async def test_what_is_no_frame_ends_the_link(nursery, tmp_path, text, says, autojump_clock):
    leader = Scripted(nursery, (line(WELCOME), text))
    agent = member(tmp_path, leader)
    nursery.start_soon(agent.run)

    await until(lambda: says in agent.link.state)


async def test_what_is_no_http2_ends_the_link(nursery, tmp_path, autojump_clock):
    async def dial(server: str, ca: bytes | None) -> trio.abc.Stream:
        ours, theirs = trio.testing.memory_stream_pair()
        await theirs.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        return ours

    agent = member(tmp_path, Scripted(nursery))
    agent.link.dial = dial
    nursery.start_soon(agent.run)

    await until(lambda: "HTTP/2 frame of" in agent.link.state)


async def test_a_frame_without_end_is_not_held(nursery, tmp_path, autojump_clock):
    leader = Scripted(nursery)
    agent = member(tmp_path, leader)
    nursery.start_soon(agent.run)
    await until(lambda: leader.heard)

    async def endless() -> None:
        while agent.link.talk is not None:
            leader.h2.write(b"x" * 16_000)
            await leader.streams[-1].send_all(leader.h2.outgoing())
            await trio.sleep(0.01)

    with suppress(*GONE):
        await endless()
    await until(lambda: "a frame of more than 262144 bytes" in agent.link.state)


async def test_a_denial_is_read_and_not_more_of_it_than_fits(nursery, tmp_path, autojump_clock):
    for number, (body, says) in enumerate(
        [
            (b'{"why":"not today","leader":""}', "refused by leader.test:7443: not today"),
            (b"<html>", "refused without a reason that can be read"),
            (b"x" * 60_000, "refused without a reason that can be read"),
        ]
    ):
        leader = Scripted(nursery, (), status=401)
        agent = member(tmp_path / str(number), leader)

        async def deny(leader: Scripted = leader, body: bytes = body) -> None:
            await until(lambda: leader.streams)
            await trio.testing.wait_all_tasks_blocked()
            leader.h2.write(body)
            leader.h2.finish()
            await leader.streams[-1].send_all(leader.h2.outgoing())

        nursery.start_soon(agent.run)
        nursery.start_soon(deny)
        await until(lambda agent=agent, says=says: says in agent.link.state)
        agent.scope.cancel()


async def test_a_leader_that_opens_no_window_gets_the_newest_report_later_and_nothing_piles_up(
    nursery, tmp_path, autojump_clock
):
    leader = Scripted(nursery, consumes=False)
    agent = member(tmp_path, leader, silent=10_000)
    agent.engines.shards = tuple(ShardSeen(f"m-{n}.g1.r0", ShardState.LOADING, why="w" * 400) for n in range(40))
    nursery.start_soon(agent.run)
    await trio.sleep(600)
    talk = agent.link.talk
    reports = [frame.seq for frame in leader.heard if isinstance(frame, Report)]
    assert len(reports) < 8
    assert len(talk._out) < 5

    leader.consumes = True
    leader.h2.consumed(leader.left)
    await leader.say(line(WELCOME))
    await trio.sleep(5)
    later = [frame.seq for frame in leader.heard if isinstance(frame, Report)][len(reports) :]

    assert 4 <= len(later) <= 10  # one that was half sent, then fresh ones
    assert later[-1] - later[1] <= 6


async def test_questions_that_nobody_reads_the_answers_of_do_not_pile_up(nursery, tmp_path, autojump_clock):
    leader = Scripted(nursery, consumes=False)
    agent = member(tmp_path, leader, silent=10_000)
    agent.engines.text["m.g1.r0"] = "x" * 100_000
    nursery.start_soon(agent.run)
    await until(lambda: leader.heard)
    for number in range(1000):
        leader.h2.write(line(LogsAsked(number, "m.g1.r0", 10**9)))
        await leader.streams[-1].send_all(leader.h2.outgoing())
        await trio.sleep(0.01)

    assert agent.link.talk is not None
    assert len(agent.link.talk._out) + len(agent.link.talk._asked) < 16


async def test_a_log_that_does_not_fit_into_a_frame_comes_with_its_end(nursery, tmp_path, autojump_clock):
    leader = Scripted(nursery)
    agent = member(tmp_path, leader)
    agent.engines.text["m.g1.r0"] = "\x01" * 127_000 + "the end"
    nursery.start_soon(agent.run)
    await until(lambda: leader.heard)
    await leader.say(line(LogsAsked(7, "m.g1.r0", 10**9)))
    await until(lambda: isinstance(leader.heard[-1], Logs))

    logs = leader.last(Logs)
    assert logs.ask == 7
    assert logs.text.endswith("the end")
    assert len(line(logs)) <= 256 * 1024


async def test_a_report_that_does_not_fit_says_less(nursery, tmp_path, autojump_clock):
    leader = Scripted(nursery)
    agent = member(tmp_path, leader)
    agent.engines.shards = tuple(
        ShardSeen(f"m-{n}.g1.r0", ShardState.FAILED, why="w" * 5000, pids=tuple(range(50))) for n in range(60)
    )
    nursery.start_soon(agent.run)
    await until(lambda: any(isinstance(frame, Report) for frame in leader.heard))

    report = leader.last(Report)
    assert len(report.shards) == 60
    assert {len(shard.why) for shard in report.shards} == {500}


async def test_what_is_wanted_before_a_welcome_is_not_obeyed(nursery, tmp_path, autojump_clock):
    leader = Scripted(nursery, (line(Wanted(TERM, 3)), line(WELCOME), line(Wanted(TERM, 4))))
    agent = member(tmp_path, leader)
    nursery.start_soon(agent.run)
    await until(lambda: agent.said)

    assert "before it said who it is" in agent.said[0]
    assert not agent.engines.told


async def test_a_refusal_is_kept_as_the_state_and_engines_are_left_alone(nursery, tmp_path, autojump_clock):
    leader = Scripted(nursery, (line(WELCOME), line(Wanted(TERM, 3, (Launch("m.g1.r0", ("x",)),)))))
    agent = member(tmp_path, leader)
    nursery.start_soon(agent.run)
    await until(lambda: agent.engines.told)

    leader.first = (line(Refused("node-1 was removed from the cluster")),)
    await leader.say(line(Refused("node-1 was removed from the cluster")))
    await trio.sleep(60)

    assert agent.link.state == "refused by leader.test:7443: node-1 was removed from the cluster"
    assert len(agent.engines.told) == 1


async def test_the_age_of_the_newest_term_is_told_in_the_next_hello(nursery, tmp_path, autojump_clock):
    leader = Scripted(nursery, (line(WELCOME), line(Wanted(TERM, 1))))
    agent = member(tmp_path, leader)
    nursery.start_soon(agent.run)
    await until(lambda: agent.engines.told)
    await until(lambda: len([frame for frame in leader.heard if isinstance(frame, Hello)]) == 2)

    first, second = [frame for frame in leader.heard if isinstance(frame, Hello)]
    assert (first.seen, first.heard_ms) == (Term(), None)
    assert second.seen == TERM
    assert 5000 <= second.heard_ms <= 5500


async def test_a_term_file_that_is_garbage_is_set_aside(nursery, tmp_path, autojump_clock):
    leader = Scripted(nursery, (line(WELCOME), line(Wanted(TERM, 1))))
    Places(tmp_path).prepare()
    Places(tmp_path).seen.write_bytes(b"\0\0\0")
    agent = member(tmp_path, leader)
    nursery.start_soon(agent.run)
    await until(lambda: agent.engines.told)

    assert Places(tmp_path).read_seen() == TERM
    assert atomic.was_set_aside(Places(tmp_path).seen)
