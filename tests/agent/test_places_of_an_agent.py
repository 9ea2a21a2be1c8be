"""What an agent keeps on disk: whole or absent, its own alone, and what happens when the disk takes no more."""

import os
import signal
import subprocess

import pytest
import trio

from agent import atomic
from agent.places import InUse, Places, places
from llmgw.core.agent_settings import AgentSettings
from llmgw.core.shards import ShardState
from llmgw.core.term import NO_TERM, Term
from tests.agent.engine_scripts import end_all, launch, lives, node, ours


def test_the_newest_term_is_read_again(tmp_path):
    here = Places(tmp_path)
    assert here.read_seen() == NO_TERM
    here.write_seen(Term(1, 7, "a"))
    assert Places(tmp_path).read_seen() == Term(1, 7, "a")


def test_a_file_that_is_garbage_is_set_aside_for_a_person_to_see(tmp_path):
    here = Places(tmp_path)
    here.seen.write_bytes(b'{"n": 1, "epo')
    assert here.read_seen() == NO_TERM
    assert not here.seen.exists()
    assert (tmp_path / "seen.json.bad").read_bytes() == b'{"n": 1, "epo'


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    file = tmp_path / "seen.json"
    atomic.write(file, b"old")
    file.with_name("seen.json.new").mkdir()
    with pytest.raises(IsADirectoryError):
        atomic.write(file, b"new")
    assert file.read_bytes() == b"old"


def test_a_folder_has_one_agent(tmp_path):
    here = Places(tmp_path / "data")
    with here.held(), pytest.raises(InUse, match=f"used by another agent, pid {os.getpid()}"), here.held():
        raise AssertionError
    with here.held():
        pass


def test_where_it_is(tmp_path):
    assert places(AgentSettings(data_dir=str(tmp_path)), {}).data == tmp_path.resolve()
    assert places(AgentSettings(), {"STATE_DIRECTORY": f"{tmp_path}:/other"}).data == tmp_path.resolve()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, 512 KiB."""
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", tmp_path], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("no tmpfs can be mounted here")
    yield tmp_path
    end_all(Places(tmp_path / "data"))
    subprocess.run(["umount", "-l", tmp_path], check=True)


def fill(folder):
    with open(folder / "filler", "wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while file.write(b"x" * size) == size:
                    continue
            except OSError:
                continue


async def test_on_a_full_disk_nothing_is_started_and_what_runs_runs_on(small_disk):
    """F46."""
    async with node(small_disk / "data") as here:
        first = launch("m-1.g1.r0")
        here.want(first, launch("m-2.g1.r0"))
        pid = (await here.wait_for(ShardState.LOADING)).pid
        await here.wait_for(ShardState.LOADING, "m-2.g1.r0")
        for id in ("m-1.g1.r0", "m-2.g1.r0"):
            await here.log_says("up", id)  # or it would end because it can't say so
        fill(small_disk)

        here.want(first, launch("m-2.g1.r0"), launch("m-3.g1.r0"))
        refused = await here.wait_for(ShardState.FAILED, "m-3.g1.r0")
        assert "No space left on device" in refused.why
        assert lives(pid)

        # Room for how it ended was kept when it started.
        os.kill(pid, signal.SIGUSR1)
        assert (await here.wait_for(ShardState.FAILED)).exit.signal == signal.SIGUSR1

        here.want(first)
        await here.wait_for(ShardState.STOPPED, "m-2.g1.r0")
        assert any("can't write down 'stop'" in line for line in here.said)
        assert not ours(str(small_disk / "data"))


async def test_a_limit_on_the_size_of_files_starts_nothing_that_is_not_written_down(tmp_path):
    """The shim inherits it: its own record is refused, and the engine behind it never runs."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with node(tmp_path) as here:
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, before[1]))
        try:
            here.want(launch(source=f"open({str(tmp_path / 'ran')!r}, 'w')"))
            with trio.fail_after(20):
                failed = await here.wait_for(ShardState.FAILED)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert "can't be started: File too large" in failed.why
        assert not (tmp_path / "ran").exists()
