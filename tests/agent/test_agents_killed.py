"""Agents that are killed at whichever moment: no engine is left behind, none runs twice, a stop goes on (F42, F43)."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio

from agent import crash
from agent.places import Places
from llmgw.core.shards import Launch, ShardSeen, ShardState
from llmgw.core.term import Term
from llmgw.wire.agent_frames import Wanted, line
from tests.agent.engine_scripts import FORKS, WITHIN_S, end_all, launch, left_alone, node, ours
from tests.polling import until

ID = "m-1.g1.r0"


@pytest.fixture
def places(tmp_path):
    """A folder whose engines end with the test, whatever happened."""
    found = Places(tmp_path / "data")
    yield found
    end_all(found)


class AgentProcess:
    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self._lines = b""

    async def want(self, *launches: Launch) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.send_all(line(Wanted(Term(0, 1, "a"), 1, launches)))

    async def seen(self) -> tuple[ShardSeen, ...]:
        """Its next word."""
        assert self.process.stdout is not None
        while b"\n" not in self._lines:
            part = await self.process.stdout.receive_some()
            if not part:
                raise EOFError
            self._lines += part
        first, _, self._lines = self._lines.partition(b"\n")
        return msgspec.json.decode(first, type=tuple[ShardSeen, ...])

    async def until(self, state: ShardState) -> ShardSeen:
        with trio.fail_after(WITHIN_S):
            while True:
                for shard in await self.seen():
                    if shard.state is state:
                        return shard


@asynccontextmanager
async def agent_process(places: Places, crash_at: str = "") -> AsyncIterator[AgentProcess]:
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "tests.agent.small_agent", str(places.data)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, crash.VARIABLE: crash_at},
    )
    try:
        yield AgentProcess(process)
    finally:
        process.kill()
        with trio.move_on_after(WITHIN_S, shield=True):
            await process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            await trio.aclose_forcefully(stream)


async def test_a_second_agent_in_the_same_folder_is_refused(places):
    async with agent_process(places) as one:
        await one.seen()
        again = await trio.run_process(
            [sys.executable, "-m", "tests.agent.small_agent", str(places.data)], check=False, capture_stderr=True
        )
        assert again.returncode == 1
        assert f"is used by another agent, pid {one.process.pid}".encode() in again.stderr


async def test_ten_killed_agents_leave_one_engine_alone(places):
    counts = "import time\nfor n in range(1_000_000): print('line', n, flush=True); time.sleep(0.01)"
    pids = set()
    for _ in range(10):
        async with agent_process(places) as agent:
            await agent.want(launch(source=counts))
            pids.add((await agent.until(ShardState.LOADING)).pid)
    assert len(pids) == 1
    async with node(places.data) as here:
        assert {here.one().pid} == pids
        last = int((await here.log_says("line", times=2)).splitlines()[-2].split()[1])
        await here.log_says(f"line {last + 20}\n")
        log = here.engines.logs(ID, 90_000)[0].splitlines()
        numbers = [int(text.split()[1]) for text in log if text.startswith("line")]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def once(places: Places) -> tuple[Launch, Path]:
    """An engine that leaves a line for each time it was run."""
    runs = places.data.parent / "runs"
    return launch(source=f"open({str(runs)!r}, 'a').write('run\\n')\n{FORKS}"), runs


@pytest.mark.parametrize("step", [step for step in crash.STEPS if step.startswith("start.")])
async def test_an_agent_killed_while_it_starts_an_engine_leaves_none_twice_and_none_behind(places, step):
    """F43."""
    wanted, runs = once(places)
    await crashed(places, step, wanted)
    async with node(places.data) as here:
        here.want(wanted)
        await here.wait_for(ShardState.LOADING)
        await here.log_says("child", times=2)
        assert runs.read_text() == "run\n"

        here.want()
        await here.wait_for(ShardState.STOPPED)
        assert not ours(places.scope)


@pytest.mark.parametrize("step", [step for step in crash.STEPS if step.startswith("start.")])
async def test_an_agent_killed_while_it_starts_an_engine_nobody_wants_any_more(places, step):
    wanted, _ = once(places)
    await crashed(places, step, wanted)
    async with node(places.data) as here:
        here.want()
        await until(lambda: all(s.state is ShardState.STOPPED for s in here.engines.seen()), WITHIN_S)
        assert not ours(places.scope)


@pytest.mark.parametrize("step", [step for step in crash.STEPS if step.startswith("stop.")])
async def test_an_agent_killed_while_it_stops_an_engine_is_followed_by_one_that_goes_on(places, step):
    """F43: without a word from a leader."""
    deaf = launch(
        source=FORKS.replace("print('up'", "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up'"),
        stop_grace_s=0.2,
    )
    await left_alone(places, deaf)
    await crashed(places, step)
    async with node(places.data) as here:
        await here.wait_for(ShardState.STOPPED)
        assert not ours(places.scope)


@pytest.mark.parametrize("step", ["shim.forked", "shim.written"])
async def test_a_shim_that_dies_before_its_word_leaves_no_engine(places, step):
    wanted, runs = once(places)
    async with agent_process(places, step) as agent:
        await agent.want(wanted)
        failed = await agent.until(ShardState.FAILED)
        assert "its shim ended without a word" in failed.why
        await until(lambda: not ours(places.scope) - {agent.process.pid}, WITHIN_S)
        assert not runs.exists()


async def crashed(places: Places, step: str, *wanted: Launch) -> None:
    async with agent_process(places, step) as agent:
        await agent.want(*wanted)
        with trio.fail_after(WITHIN_S):
            assert await agent.process.wait() == 70
