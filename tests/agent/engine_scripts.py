"""Engines for tests: small programs that misbehave in one way each, and the agent's parts around them."""

import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import trio
import trio.testing
from attrs import define, field

from agent import cgroups, proc
from agent.engine_parts import GpuMemory
from agent.engines import Engines, engines
from agent.places import Places
from llmgw.core.agent_settings import AgentSettings
from llmgw.core.shards import Launch, ShardSeen, ShardState
from llmgw.core.term import Term
from llmgw.wire.agent_frames import Wanted
from tests.polling import until

WITHIN_S = 20.0
FIRST_PORT = 20_000 + os.getpid() % 100 * 100  # below those that the kernel lends; two runs of the tests keep apart
SLEEP = "import signal, time\nprint('up', flush=True)\nwhile True: time.sleep(600)"
DEAF = f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{SLEEP}"
# Two children in sessions of their own that outlive their parent and its SIGTERM.
FORKS = """
import os, signal, sys, time
for n in range(2):
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork():
            os._exit(0)
        print('child', os.getpid(), flush=True)
        while True: time.sleep(600)
for n in range(2): os.wait()
print('up', flush=True)
while True: time.sleep(600)
"""
DOUBLE_FORK = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    print('daemon', os.getpid(), flush=True)
    while True: time.sleep(600)
os.wait()
"""
SERVES = """
import socket, sys, time
socks = []
for port in sys.argv[2:]:
    s = socket.socket()
    s.bind((sys.argv[1], int(port)))
    s.listen()
    socks.append(s)
print('up', flush=True)
while True: time.sleep(600)
"""


def program(source: str, *argv: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", source, *argv)


def launch(id: str = "m-1.g1.r0", source: str = SLEEP, *argv: str, **more: object) -> Launch:
    return Launch(id, program(source, *argv), **{"stop_grace_s": 5.0, **more})  # type: ignore[arg-type]


@define
class FakeGpus:
    """What a driver would say, written by the test."""

    free: dict[str, int | None] = field(factory=dict)
    held: str | None = None
    asked: list[frozenset[int]] = field(factory=list)

    def free_mib(self, uuid: str) -> int | None:
        return self.free.get(uuid)

    def mib_of(self, instance: str) -> Mapping[str, int]:
        return {}

    def note_launch(self, instance: str, uuids: Iterable[str]) -> None:
        return

    def memory_back(self, instance: str, pids: Iterable[int], uuids: Iterable[str]) -> str | None:
        self.asked.append(frozenset(pids))
        return self.held


@define
class Node:
    """One agent's engines, and the word of a leader."""

    engines: Engines
    places: Places
    said: list[str]
    _rev: int = 0

    def want(self, *launches: Launch, paths: tuple[str, ...] = ()) -> None:
        self._rev += 1
        self.engines.obey(Wanted(Term(0, 1, "a"), self._rev, launches, paths))

    def one(self, id: str = "m-1.g1.r0") -> ShardSeen:
        return next(shard for shard in self.engines.seen() if shard.id == id)

    async def until(self, condition: Callable[[ShardSeen], object], id: str = "m-1.g1.r0") -> ShardSeen:
        with trio.fail_after(WITHIN_S):
            while True:
                shard = self.one(id)
                if condition(shard):
                    return shard
                with trio.move_on_after(0.05):
                    await self.engines.changed.wait()

    async def wait_for(self, state: ShardState, id: str = "m-1.g1.r0") -> ShardSeen:
        return await self.until(lambda shard: shard.state is state, id)

    async def log_says(self, text: str, id: str = "m-1.g1.r0", times: int = 1) -> str:
        await until(lambda: self.engines.logs(id, 65536)[0].count(text) >= times, WITHIN_S)
        return self.engines.logs(id, 65536)[0]


def settings(data: Path, **more: object) -> AgentSettings:
    return AgentSettings(**{"data_dir": str(data), "ports": f"{FIRST_PORT}-{FIRST_PORT + 99}", **more})  # type: ignore[arg-type]


@asynccontextmanager
async def node(
    data: Path, gpus: GpuMemory | None = None, leaves: bool = True, end: bool = True, **more: object
) -> AsyncIterator[Node]:
    """``end=False`` leaves the engines to the next node in the same folder."""
    places = Places(data)
    said: list[str] = []
    made = engines(settings(data, **more), places, gpus, said.append)
    if not leaves:
        made.parts.leaves = None
    await made.adopt()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run)
        await trio.testing.wait_all_tasks_blocked()
        try:
            yield Node(made, places, said)
        finally:
            nursery.cancel_scope.cancel()
            if end:
                end_all(places)


def ours(scope: str) -> set[int]:
    """Pids of every process with the mark of an agent in this folder, shims included."""
    table = proc.Table.read()
    return {pid for pid in table.processes if proc.environ(pid).get(proc.AGENT) == scope}


def end_all(places: Places) -> None:
    """Whatever a test left: by its mark, and by its leaf."""
    for _ in range(200):
        left = ours(places.scope) - {os.getpid()}
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        base = cgroups.base("", places.scope)
        if base is not None and base.is_dir():
            for leaf in base.iterdir():
                if leaf.is_dir():
                    cgroups.Leaf(leaf).kill()
                    cgroups.Leaf(leaf).remove()
        if not left:
            return
        reap_children()


def reap_children() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return


def lives(pid: int) -> bool:
    found = proc.process(pid)
    return found is not None and found.lives


def read_json(path: Path) -> dict[str, object]:
    value = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(value, dict)
    return value


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode()


def rewrite(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(read_json(path) | changes), encoding="utf-8")


async def left_alone(places: Places, wanted: Launch, leaves: bool = True, says: str = "up") -> ShardSeen:
    """An engine whose agent has gone."""
    async with node(places.data, leaves=leaves, end=False) as here:
        here.want(wanted)
        await here.wait_for(ShardState.LOADING)
        await here.log_says(says)
        return here.one()
