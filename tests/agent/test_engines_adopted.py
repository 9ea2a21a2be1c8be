"""What the next agent makes of engines that went on without one: adopts what is proved, ends what is left over,
starts nothing by itself."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from agent import cgroups, proc
from agent.places import Places
from llmgw.core.shards import ShardState
from tests.agent.engine_scripts import (
    FORKS,
    SERVES,
    SLEEP,
    WITHIN_S,
    end_all,
    launch,
    left_alone,
    lives,
    node,
    ours,
    read_json,
    rewrite,
)
from tests.polling import until

HAS_LEAVES = cgroups.base("", "probe") is not None
both_ways = pytest.mark.parametrize(
    "leaves",
    [
        pytest.param(True, id="cgroup", marks=pytest.mark.skipif(not HAS_LEAVES, reason="no writable cgroup v2 here")),
        pytest.param(False, id="marks"),
    ],
)
ID = "m-1.g1.r0"


@pytest.fixture
def places(tmp_path):
    """A folder whose engines end with the test, whatever happened."""
    found = Places(tmp_path / "data")
    yield found
    end_all(found)


@asynccontextmanager
async def a_stranger() -> AsyncIterator[int]:
    """The pid of a process, in a session of its own, that is none of ours."""
    argv = [sys.executable, "-c", SLEEP]
    process = await trio.lowlevel.open_process(argv, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        yield process.pid
    finally:
        process.kill()
        with trio.move_on_after(WITHIN_S, shield=True):
            await process.wait()


def damage(file: Path, how: str) -> None:
    if how == "missing":
        file.unlink()
    else:
        file.write_bytes(b"" if how == "empty" else b"\x00{]garbage")


@both_ways
async def test_an_engine_is_adopted_with_its_ports_and_can_be_stopped(places, leaves):
    before = await left_alone(places, launch(source=FORKS), leaves)
    async with node(places.data, leaves=leaves) as here:
        after = here.one()
        assert (after.state, after.pid, after.ports) == (ShardState.LOADING, before.pid, before.ports)
        assert after.adopted
        assert not before.adopted
        assert set(here.engines.parts.ports.of(ID)) == set(before.ports.values())
        here.want(launch(source=FORKS))
        assert here.one().why == ""

        here.want()
        await here.wait_for(ShardState.STOPPED)
        assert not ours(places.scope)


async def test_an_engine_that_ended_meanwhile_is_told_with_its_exit(places):
    before = await left_alone(places, launch())
    os.kill(before.pid, signal.SIGUSR1)
    await until(lambda: not lives(before.pid))
    async with node(places.data) as here:
        failed = await here.wait_for(ShardState.FAILED)
        assert failed.exit.signal == signal.SIGUSR1
        here.want(launch())
        assert here.one().state is ShardState.FAILED  # its id has had its one life


@both_ways
async def test_orphans_of_an_engine_that_ended_meanwhile_are_told_and_killed(places, leaves):
    before = await left_alone(places, launch(source=FORKS), leaves)
    shim = read_json(places.of(ID).state)["shim_pid"]
    children = ours(places.scope) - {before.pid, shim}
    os.kill(shim, signal.SIGKILL)
    os.kill(before.pid, signal.SIGKILL)
    await until(lambda: not lives(before.pid))
    async with node(places.data, leaves=leaves) as here:
        lost = await here.wait_for(ShardState.LOST)
        assert "orphans" in lost.why
        assert children
        assert not any(map(lives, children))


async def test_an_exit_that_was_never_written_is_lost(places):
    before = await left_alone(places, launch())
    os.kill(read_json(places.of(ID).state)["shim_pid"], signal.SIGKILL)
    os.kill(before.pid, signal.SIGKILL)
    async with node(places.data) as here:
        lost = await here.wait_for(ShardState.LOST)
        assert lost.why == "gone without an exit status"
        assert lost.exit is None


@both_ways
async def test_another_process_with_its_number_is_neither_adopted_nor_killed(places, leaves):
    """PID reuse: the start time tells."""
    before = await left_alone(places, launch(), leaves)
    os.kill(before.pid, signal.SIGKILL)
    await until(lambda: not ours(places.scope))
    places.of(ID).exit.unlink()
    async with a_stranger() as pid:
        rewrite(places.of(ID).state, pid=pid, pgid=pid)
        async with node(places.data, leaves=leaves) as here:
            await here.wait_for(ShardState.LOST)
            assert lives(pid)


@pytest.mark.skipif(not HAS_LEAVES, reason="no writable cgroup v2 here")
async def test_a_process_outside_the_group_is_not_adopted_and_not_killed(places):
    """Its number and start are right, and yet nothing says that it is ours."""
    await left_alone(places, launch())
    end_all(places)
    places.of(ID).exit.unlink(missing_ok=True)
    async with a_stranger() as pid:
        rewrite(places.of(ID).state, pid=pid, start=proc.process(pid).start)
        async with node(places.data) as here:
            lost = await here.wait_for(ShardState.LOST)
            assert f"pid {pid} runs, but not in the group of this instance" in lost.why
            assert lives(pid)


async def test_after_a_reboot_it_is_lost(places):
    await left_alone(places, launch())
    end_all(places)
    rewrite(places.of(ID).state, boot_id="another boot")
    async with node(places.data) as here:
        assert here.one().state is ShardState.LOST
        assert here.one().why == "the machine was restarted"


async def test_a_stranger_on_the_port_of_an_adopted_engine_hides_it(places):
    before = await left_alone(places, launch())
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", before.ports["http"]))
        stranger.listen()
        async with node(places.data) as here:
            assert here.one().ports == {}  # from the first report on
            assert "listened on by somebody else" in here.one().why
            assert here.one().pid == before.pid


async def test_an_adopted_engine_that_listens_itself_keeps_its_port(places):
    before = await left_alone(places, launch(ID, SERVES, "{host}", "{port}"))
    async with node(places.data) as here:
        assert here.one().ports == before.ports


@both_ways
@pytest.mark.parametrize("how", ["garbage", "empty", "missing"])
@pytest.mark.parametrize("file", ["state", "spec", "intent"])
async def test_a_record_that_is_damaged_costs_no_engine(places, leaves, file, how):
    """F45."""
    wanted = launch()
    before = await left_alone(places, wanted, leaves)
    path: Path = getattr(places.of(ID), file)
    damage(path, how)
    async with node(places.data, leaves=leaves) as here:
        after = here.one()
        assert (after.state, after.pid, after.ports) == (ShardState.LOADING, before.pid, before.ports)
        if how != "missing":
            assert path.name in after.why
            assert path.with_name(path.name + ".bad").exists()
        here.want(wanted)
        assert "refused" not in here.one().why
        here.want()
        await here.wait_for(ShardState.STOPPED)
        assert not ours(places.scope)


async def test_a_record_that_is_gone_altogether_makes_strangers_that_end_only_on_a_leaders_word(places):
    before = await left_alone(places, launch())
    shutil.rmtree(places.of(ID).folder)
    async with node(places.data) as here:
        assert here.engines.seen() == ()
        (orphan,) = here.engines.orphans()
        assert (orphan.id, orphan.pids) == (ID, (before.pid,))

        here.want(launch())
        assert here.one().state is ShardState.FAILED  # not started a second time beside itself
        assert "run here without a record" in here.one().why
        assert lives(before.pid)

        here.want()
        await until(lambda: not here.engines.orphans(), WITHIN_S)
        assert not lives(before.pid)


async def test_another_agents_engines_on_this_machine_are_no_strangers(places, tmp_path):
    before = await left_alone(places, launch())
    async with node(tmp_path / "other") as here:
        here.want()
        assert here.engines.orphans() == ()
        assert lives(before.pid)


async def test_nothing_is_started_before_a_leader_has_answered(places):
    async with node(places.data, end=False) as here:
        here.want(launch(source="raise SystemExit(3)"))
        await here.wait_for(ShardState.FAILED)
    shutil.rmtree(places.of(ID).folder)
    place = places.of("m-2.g1.r0")
    place.make()
    async with node(places.data) as here:
        assert here.engines.seen() == ()
        assert not place.folder.exists()
        assert not ours(places.scope)


async def test_a_start_that_failed_is_still_failed_for_the_next_agent(places):
    wanted = launch(gpus=("GPU-a",), need_mib=1, memory_within_s=0.0)
    async with node(places.data, end=False) as here:
        here.want(wanted)
        why = (await here.wait_for(ShardState.FAILED)).why
    async with node(places.data) as here:
        assert (here.one().state, here.one().why) == (ShardState.FAILED, why)


async def test_a_folder_that_can_not_be_looked_at_in_time_is_unknown_and_holds_nobody_up(places):
    """A file that never ends its answer stands for a wedged process."""
    before = await left_alone(places, launch())
    stuck = places.of("m-2.g1.r0")
    stuck.make()
    os.mkfifo(stuck.intent)
    async with node(places.data, adopt_within=1.0) as here:
        assert here.one().pid == before.pid
        assert here.one("m-2.g1.r0").state is ShardState.UNKNOWN
        here.want(launch(), launch("m-2.g1.r0"))
        assert here.one("m-2.g1.r0").state is ShardState.UNKNOWN  # perhaps it runs: not started

        os.close(os.open(stuck.intent, os.O_RDWR | os.O_NONBLOCK))  # lets the thread go that waits on it
